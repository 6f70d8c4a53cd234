"""A configuration with a mistake, by which a plugin can neither give nor take back, and its correction."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from agent.machine import Machine, asks, call
from agent.scripted_plugin import MODERN, ScriptedPlugin, addresses
from k8s_rdma.errors import K8sRdmaError

REFUSED = """echo '{"code":7,"msg":"no range"}'; exit 1"""
UNLESS_RIGHT = """case "$stdin" in *'"right"'*) %s ;; *) """ + REFUSED + " ;; esac"
MISTAKE = {"mistake": True}


@pytest.fixture
def plugin(tmp_path):
    """Fails ADD and DEL but by a configuration in which there is `right`."""
    script = ScriptedPlugin(tmp_path)
    script.speak(MODERN, ADD=UNLESS_RIGHT % addresses("10.0.0.5/24"), DEL=UNLESS_RIGHT % "true")
    return script


@pytest.fixture
def machine(tmp_path, plugin):
    return Machine(tmp_path)


def of(machine, verb, container="c1"):
    return replace(call(verb, container), path=str(machine.directory))


def ipam(machine, **content):
    chained = {"prevResult": content.pop("prevResult")} if "prevResult" in content else {}
    return machine.stdin(asks({}), ipam={"type": "scripted"} | content, **chained)


def delegate(machine, **content):
    return machine.stdin({}, delegate={"type": "scripted"} | content)


async def refused(coroutine):
    with pytest.raises(K8sRdmaError, match="no range"):
        await coroutine


@pytest.mark.parametrize("conf", [ipam, delegate])
def test_corrected_configuration_ends_an_attachment_that_a_mistake_left(machine, conf):
    async def scenario():
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            await refused(verbs.add(of(machine, "ADD"), netns, conf(machine, **MISTAKE)))
            await refused(verbs.delete(of(machine, "DEL"), "net", conf(machine, **MISTAKE)))
            assert node.ledger.receipts
            await verbs.delete(of(machine, "DEL"), "net", conf(machine, right=True))
            assert not node.ledger.receipts
            assert machine.is_pristine()

    asyncio.run(scenario())


@pytest.mark.parametrize("conf", [ipam, delegate])
def test_configuration_without_the_plugin_lets_no_lease_be_forgotten(machine, conf):
    async def scenario():
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            await refused(verbs.add(of(machine, "ADD"), netns, conf(machine, **MISTAKE)))
            await refused(verbs.delete(of(machine, "DEL"), "net", machine.stdin({})))
            assert node.ledger.receipts

    asyncio.run(scenario())


def test_gc_ends_it_by_the_corrected_configuration_also_after_a_restart(machine):
    async def scenario():
        with machine.running() as (_, verbs):
            netns = machine.hardware.create_namespace()
            await refused(verbs.add(of(machine, "ADD"), netns, ipam(machine, **MISTAKE)))
        with machine.running() as (node, verbs):
            nothing_held = {"cni.dev/valid-attachments": []}
            fields = json.loads(ipam(machine, right=True)) | nothing_held
            await verbs.collect(of(machine, "GC"), json.dumps(fields).encode())
            assert not node.ledger.receipts

    asyncio.run(scenario())


def test_new_sandbox_of_the_pod_starts_by_the_corrected_configuration(machine):
    async def scenario():
        with machine.running() as (node, verbs):
            older, newer = (machine.hardware.create_namespace() for _ in range(2))
            await refused(verbs.add(of(machine, "ADD"), older, ipam(machine, **MISTAKE)))
            machine.hardware.destroy_namespace(older)
            assert await verbs.add(of(machine, "ADD", "c2"), newer, ipam(machine, right=True))
            assert {key.container for key in node.ledger.receipts} == {"c2"}

    asyncio.run(scenario())


def test_attachment_is_ended_by_the_configuration_of_its_add(machine, plugin):
    async def scenario():
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            await verbs.add(of(machine, "ADD"), netns, ipam(machine, right=True))
            plugin.speak(MODERN, DEL="""case "$stdin" in *'"right"'*) """ + REFUSED + " ;; esac")
            await refused(verbs.delete(of(machine, "DEL"), "net", ipam(machine, other=True)))
            assert node.ledger.receipts
            assert all('"right"' in json.dumps(each.stdin) for each in plugin.calls("DEL"))

    asyncio.run(scenario())


@pytest.mark.parametrize("stdin", [b"", b"{}", b'{"name":"net","type":"x","ipam":{"type":5}}'])
def test_mistake_stays_known_if_the_present_configuration_cannot_be_read(machine, stdin):
    async def scenario():
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            await refused(verbs.add(of(machine, "ADD"), netns, ipam(machine, **MISTAKE)))
            await refused(verbs.delete(of(machine, "DEL"), "net", stdin))
            assert node.ledger.receipts

    asyncio.run(scenario())


def test_lease_of_a_chained_call_that_failed_is_ended_in_its_own_network_alone(machine, plugin):
    prev = {"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": "/run/netns/x"}]}
    in_doubt = """case "$stdin" in *'"net-rdma"'*) """ + REFUSED + " ;; esac"

    async def scenario():
        with machine.running() as (node, verbs):
            plugin.speak(MODERN, ADD=REFUSED, DEL=in_doubt)
            netns = machine.hardware.create_namespace()
            await refused(verbs.add(of(machine, "ADD"), netns, ipam(machine, prevResult=prev)))
            await refused(verbs.delete(of(machine, "DEL"), "net", ipam(machine)))
            assert node.ledger.receipts
            gc = json.loads(ipam(machine)) | {"cni.dev/valid-attachments": []}
            await refused(verbs.collect(of(machine, "GC"), json.dumps(gc).encode()))
            assert {each.stdin["name"] for each in plugin.calls("DEL")} == {"net-rdma"}

    asyncio.run(scenario())
