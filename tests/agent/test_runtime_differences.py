"""Runtimes and network configurations that say less, or more, than those of today."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from agent.machine import PLUGINS, Machine, asks
from agent.pods import KnowingCluster
from k8s_rdma.core.types import PodUid
from k8s_rdma.wire.cni_request import parse_environment

if TYPE_CHECKING:
    from pathlib import Path

    from k8s_rdma.agent.cni.add import AddResult
    from k8s_rdma.core.ledger import Pod

ENV = {
    "CNI_COMMAND": "ADD",
    "CNI_CONTAINERID": "c1",
    "CNI_NETNS": "/run/netns/x",
    "CNI_IFNAME": "eth0",
    "CNI_PATH": PLUGINS,
    "CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=p",
}


class IdentifyingCluster(KnowingCluster):
    async def identified(self, pod: Pod) -> Pod:
        return replace(pod, uid=PodUid("uid-of-api"))


def add(machine: Machine, stdin: bytes, times: int = 1) -> AddResult | None:
    async def main() -> AddResult | None:
        with machine.running() as (_, verbs):
            added = None
            for number in range(times):
                env = parse_environment(ENV | {"CNI_CONTAINERID": f"c{number}"})
                netns = machine.hardware.create_namespace()
                added = await verbs.add(env, netns, stdin)
                await verbs.delete(env, "net")
        return added

    return asyncio.run(main())


def test_pod_without_uid_of_the_runtime_has_the_api_servers(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.cluster = cluster = IdentifyingCluster(asks({"min_tx_rate": 5}))
    added = add(machine, machine.stdin(None))
    assert added is not None
    assert added.receipt.pod.uid == "uid-of-api"
    assert [receipt.pod.uid for receipt in cluster.given] == ["uid-of-api"]


def test_keys_without_effect_here_fail_no_pod_and_are_logged_once(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    stdin = machine.stdin(asks({"min_tx_rate": 5}), if0="enp4s0f0", master="enp4s0f0")
    with structlog.testing.capture_logs() as logs:
        assert add(machine, stdin, times=2) is not None
    [line] = [line for line in logs if line["event"] == "netconf_keys_meaningless"]
    assert (line["network"], line["keys"]) == ("net", ["if0", "master"])
