"""When a pod's addresses are taken for its own, how long that is waited for, and where it is reported."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from agent.machine import Machine, asks, call
from agent.scripted_plugin import MODERN, ScriptedPlugin, addresses
from factories import receipt
from k8s_rdma.agent.cni.add import (
    DEADLINE_S,
    DETECTION_POLL_INTERVAL_S,
    FIRST_DETECTION_DELAY_S,
    AddressDetection,
    address_detection,
    wait_for_address_detection,
)
from k8s_rdma.core.kernel import PodInterface
from k8s_rdma.errors import K8sRdmaError, Reason

V6 = "fd00::1/64"


def found(**changes):
    return PodInterface(mac="02:00:00:00:00:01", mtu=1500, is_up=True, addresses=frozenset({V6}), **changes)


class Looks:
    """Stands in for node, worker and time: the result of each look, and how long was waited."""

    def __init__(self, *looks):
        self.looks = list(looks)
        self.paused = []
        self.announced = []

    async def run(self, work, *arguments):
        return work(*arguments)

    def inspect_pod(self, _):
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]

    def announce(self, _, told):
        self.announced.append(told)

    async def pause(self, seconds):
        self.paused.append(seconds)

    def settle(self, **given):
        asyncio.run(wait_for_address_detection(receipt(), given, node=self, worker=self, pause=self.pause))


def test_settling_without_addresses_waits_for_none_and_announces_none():
    looks = Looks()
    looks.settle(rdma0=())
    looks.settle()
    assert (looks.paused, looks.announced) == ([], [])


def test_ipv4_is_announced_at_once():
    looks = Looks()
    looks.settle(rdma0=("10.0.0.1/24",))
    assert (looks.paused, looks.announced) == ([], [{"rdma0": ("10.0.0.1/24",)}])


def test_ipv6_is_announced_after_one_look_if_it_is_unused():
    looks = Looks({"rdma0": found()})
    looks.settle(rdma0=(V6,), rdma1=("10.0.0.1/24",))
    assert looks.paused == [FIRST_DETECTION_DELAY_S]
    assert looks.announced == [{"rdma0": (V6,), "rdma1": ("10.0.0.1/24",)}]


@pytest.mark.parametrize("state", ["unusable", "unverified"])
def test_address_is_awaited_until_all_stations_were_queried(state):
    asking = {"rdma0": found(**{state: frozenset({V6})})}
    looks = Looks(asking, asking, {"rdma0": found()})
    looks.settle(rdma0=(V6,))
    assert looks.paused == [FIRST_DETECTION_DELAY_S, DETECTION_POLL_INTERVAL_S, DETECTION_POLL_INTERVAL_S]
    assert looks.announced


def test_address_is_not_waited_for_without_a_link():
    looks = Looks({"rdma0": found(carrier=False, unusable=frozenset({V6}))})
    looks.settle(rdma0=(V6,))
    assert looks.paused == [FIRST_DETECTION_DELAY_S]


def test_addresses_that_another_station_has_fail_with_their_names():
    looks = Looks({"rdma0": found(duplicates=frozenset({V6})), "rdma1": found(duplicates=frozenset({V6}))})
    with pytest.raises(K8sRdmaError) as caught:
        looks.settle(rdma0=(V6,), rdma1=(V6,))
    assert caught.value.message == (
        "container c1: address fd00::1/64 of rdma0, fd00::1/64 of rdma1: "
        "in use by another station of its network"
    )
    assert caught.value.reason is Reason.IPAM_FAILURE
    assert not looks.announced


def test_address_that_stays_unusable_fails_at_the_deadline():
    looks = Looks({"rdma0": found(unusable=frozenset({V6}))})
    with pytest.raises(K8sRdmaError, match=f"{V6} of rdma0: duplicate address detection has not ended"):
        looks.settle(rdma0=(V6,))
    assert sum(looks.paused) == pytest.approx(DEADLINE_S, abs=DETECTION_POLL_INTERVAL_S)


def test_address_that_can_be_used_is_used_at_the_deadline():
    looks = Looks({"rdma0": found(unverified=frozenset({V6}))})
    looks.settle(rdma0=(V6,))
    assert sum(looks.paused) == pytest.approx(DEADLINE_S, abs=DETECTION_POLL_INTERVAL_S)
    assert looks.announced


def test_only_addresses_that_were_given_count_of_interfaces_that_are_there():
    others = frozenset({"fe80::1/64", "fd00::9/64"})
    there = {"rdma0": found(duplicates=others, unusable=others, unverified=others)}
    assert address_detection({"rdma0": (V6,), "gone": (V6,)}, there) == AddressDetection()


def machine_with(tmp_path, answer):
    """A machine, its plugin and the configuration of a call."""
    script = ScriptedPlugin(tmp_path)
    script.speak(MODERN, ADD=answer)
    return Machine(tmp_path), script, {"ipam": {"type": "scripted"}}


def test_add_fails_and_leaves_no_interface_if_another_station_has_an_address(tmp_path):
    machine, script, conf = machine_with(tmp_path, addresses("10.0.0.1/24", V6))
    machine.hardware.others_addresses.add(V6)
    env = replace(call("ADD"), path=str(script.file.parent))

    async def scenario():
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            with pytest.raises(K8sRdmaError, match="fd00::1/64 of eth0: in use by another station"):
                await verbs.add(env, netns, machine.stdin(asks({}), **conf))
            assert not node.ledger.receipts

    asyncio.run(scenario())
    assert machine.is_pristine()
    assert [each.ifname for each in script.calls("DEL")] == ["eth0"]
    assert not machine.hardware.announced


def test_add_announces_every_address(tmp_path):
    answer = f"echo '{json.dumps({'ips': [{'address': V6}]})}' | sed s/::1/::${{CNI_IFNAME#eth}}1/"
    machine, script, conf = machine_with(tmp_path, answer)

    async def scenario():
        with machine.running() as (_, verbs):
            netns = machine.hardware.create_namespace()
            env = replace(call("ADD"), path=str(script.file.parent))
            assert await verbs.add(env, netns, machine.stdin(asks({}, {}), **conf))

    asyncio.run(scenario())
    assert sorted(machine.hardware.announced) == [("eth0", "fd00::1/64"), ("eth1", "fd00::11/64")]
