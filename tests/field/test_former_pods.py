"""State of VFs that other programs leave to the next pod, or fail on."""

from __future__ import annotations

import asyncio

import pytest

from agent.machine import Machine, asks, call
from fakes.machine import ATTRIBUTES

SRIOV_CNI = "https://github.com/k8snetworkplumbingwg/sriov-cni"


@pytest.mark.parametrize(
    ("source", "altname"),
    [
        (f"{SRIOV_CNI}/issues/445", "eth0"),  # the interface's name in the pod: "file exists" for ever
        (f"{SRIOV_CNI}/issues/250", "f0v0np0"),  # udev's: another one on the way home
    ],
)
def test_alternative_name_of_a_vf_keeps_no_pod_from_starting_and_ending(tmp_path, source, altname):
    machine = Machine(tmp_path)

    async def scenario():
        with machine.running() as (node, verbs):
            for _ in range(2):
                machine.hardware.add_altname("f0v0", None, altname)
                netns = machine.hardware.create_namespace()
                await verbs.add(call("ADD"), netns, machine.stdin(asks({})))
                machine.hardware.add_altname("eth0", netns, "f0v0")
                await verbs.delete(call("DEL"), "net")
                assert node.hardware == machine.pristine, source

    asyncio.run(scenario())


def test_mtu_and_other_settings_of_a_pod_are_not_its_successors(tmp_path):
    """https://github.com/k8snetworkplumbingwg/sriov-cni/pull/316: an MTU that a pod set stayed."""
    machine = Machine(tmp_path)

    async def scenario():
        with machine.running() as (_, verbs):
            for _ in range(2):
                netns = machine.hardware.create_namespace()
                await verbs.add(call("ADD"), netns, machine.stdin(asks({})))
                device = machine.hardware.device(netns, "eth0")
                assert (device.mtu, device.attributes) == (1500, ATTRIBUTES)
                machine.hardware.alter_interface("eth0", netns, mtu=900)
                machine.hardware.tune_interface("eth0", netns, txqueuelen="7", **{"ring sizes": "64"})
                await verbs.delete(call("DEL"), "net")

    asyncio.run(scenario())
