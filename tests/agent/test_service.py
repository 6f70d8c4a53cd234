"""Calls of the CNI executable: the answer to each, and which of them others hear of."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from agent.machine import Machine, asks
from agent.pods import conf
from agent.runtime import Runtime, in_turn
from k8s_rdma.agent.cni.service import Service
from k8s_rdma.agent.report import Reporter
from k8s_rdma.linux.netns import Namespaces, current_namespace
from k8s_rdma.wire.cni_socket import SocketRequest

if TYPE_CHECKING:
    from k8s_rdma.wire.cni_socket import Reply

VERSION = "1.1.0"


def ask_with(machine: Machine, command: str, netns: int | None) -> Reply:
    """The answer to a call of a pod that asks for an interface, with this namespace."""
    arguments = "K8S_POD_NAMESPACE=default;K8S_POD_NAME=p;K8S_POD_UID=uid-p"
    env = {"CNI_COMMAND": command, "CNI_CONTAINERID": "c1", "CNI_IFNAME": "eth0", "CNI_PATH": "/opt/cni/bin"}
    env |= {"CNI_NETNS": "/run/netns/x", "CNI_ARGS": arguments}
    request = SocketRequest(env=env, stdin=machine.stdin(asks({})), has_netns=netns is not None)
    with closing(Namespaces()) as namespaces, machine.running() as (node, verbs):
        service = Service(node=node, commands=verbs.commands, namespaces=namespaces, reporter=Reporter(node))
        return asyncio.run(service.call(request, netns, lambda: True))


def test_add_without_a_namespace_is_refused_and_its_del_succeeds(machine: Machine) -> None:
    refused = ask_with(machine, "ADD", None)
    told = json.loads(refused.stdout)
    assert (refused.exit_status, told["code"]) == (1, 4)
    assert told["msg"].endswith("CNI_NETNS /run/netns/x: the executable could not open it")
    assert (ask_with(machine, "DEL", None).exit_status, machine.kernel.applied) == (0, [])


def test_add_in_the_nodes_own_namespace_is_refused_and_its_del_succeeds(machine: Machine) -> None:
    own = current_namespace()
    try:
        refused = ask_with(machine, "ADD", own)
        told = json.loads(refused.stdout)
        assert (refused.exit_status, told["code"]) == (1, 4)
        assert told["msg"].endswith("is the node's own network namespace, not one of a container")
        assert (ask_with(machine, "DEL", own).exit_status, machine.kernel.applied) == (0, [])
    finally:
        os.close(own)


def test_devices_in_use_are_looked_up_again_after_adds_and_dels_that_failed_as_well(machine: Machine) -> None:
    async def scenario(runtime: Runtime) -> None:
        for command, exit_status in (("ADD", 0), ("ADD", 1), ("STATUS", 0), ("GC", 0), ("DEL", 0)):
            before = machine.pod_changes
            answer = await runtime.ask(command, conf(VERSION), annotations=asks({}))
            assert answer.exit_status == exit_status
            assert machine.pod_changes - before == (command in {"ADD", "DEL"})

    in_turn(machine, scenario)


def test_log_has_container_and_pod_of_calls_but_no_status_that_succeeds(machine: Machine) -> None:
    async def scenario(runtime: Runtime) -> None:
        with capture_logs(processors=[merge_contextvars]) as logs:
            for command in ("STATUS", "ADD"):
                await runtime.ask(command, conf(VERSION), annotations=asks({}))
            machine.hardware.silent = "netlink says no"
            runtime.node.refresh()
            await runtime.ask("STATUS", conf(VERSION))
        calls = [each for each in logs if each["event"].startswith("cni_call")]
        assert [each["event"] for each in calls] == ["cni_call", "cni_call_refused"]
        assert (calls[0]["command"], calls[0]["container"], calls[0]["pod"]) == ("ADD", "c1", "default/p")

    in_turn(machine, scenario)


@pytest.mark.parametrize("stdin", [b"", b"no JSON", b'{"cniVersion": 5}'])
def test_configuration_that_names_no_version_is_refused_in_the_words_of_1_0_0(
    machine: Machine, stdin: bytes
) -> None:
    env = {"CNI_COMMAND": "STATUS", "CNI_PATH": "/opt/cni/bin"}
    with closing(Namespaces()) as namespaces, machine.running() as (node, verbs):
        service = Service(node=node, commands=verbs.commands, namespaces=namespaces, reporter=Reporter(node))
        request = SocketRequest(env=env, stdin=stdin, has_netns=False)
        reply = asyncio.run(service.call(request, None, lambda: True))
    assert (reply.exit_status, json.loads(reply.stdout)["cniVersion"]) == (1, "1.0.0")
