"""Placements that are delivered to an agent without credentials: hostile until one proves to be its pod's."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from agent.machine import Machine, call
from agent.patience import Patience
from factories import PF0
from k8s_rdma.agent.cluster.no_cluster import NoCluster
from k8s_rdma.agent.cni.node_access import NodeAccess
from k8s_rdma.agent.live_rates import LiveRates
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.errors import K8sRdmaError, Reason
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, encode
from k8s_rdma.wire.placement_keys import FixedKeys, PlacementKeys

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from k8s_rdma.agent.node import Node

KEY = PlacementKeys.shared(b"a key")
OTHER_KEY = PlacementKeys.shared(b"another key")
NODE = NodeName("w1")
P = PodUid("uid-p")


def placed(mbps: int, generation: int, node: str = NODE) -> Placement:
    interface = PlacedInterface(pf=PF0, min_tx_rate_mbps=mbps)
    return Placement(node=NodeName(node), interfaces=(interface,), generation=generation)


def document(mbps: int, generation: int, *, uid: PodUid = P, node: str = NODE) -> bytes:
    return encode(placed(mbps, generation, node), uid, KEY).encode()


class Delivered:
    """A node whose agent has no credentials, with a pod of 500 Mb/s."""

    def __init__(self, machine: Machine, node: Node, cluster: NoCluster, live: LiveRates) -> None:
        self.machine, self.node, self.cluster, self.live = machine, node, cluster, live

    def rates(self) -> list[tuple[int, int]]:
        """Generation and programmed reservation of each interface."""
        return [
            (receipt.generation, self.machine.hardware.functions[interface.vf].min_tx_rate_mbps)
            for receipt in self.node.ledger.receipts.values()
            for interface in receipt.interfaces
        ]

    def refused(self, text: bytes) -> str:
        with pytest.raises(K8sRdmaError) as refusal:
            self.cluster.deliver(text)
        return refusal.value.message


def run(machine: Machine, scenario: Callable[[Delivered], Awaitable[None]], keys: PlacementKeys | None = KEY):
    async def main() -> None:
        cluster = NoCluster(NODE, FixedKeys(keys), lambda: node.ledger.generations())  # noqa: PLW0108
        machine.cluster = cluster
        with machine.running(keys) as (node, verbs):
            access = NodeAccess(
                node=node,
                worker=machine.worker,
                device_specs=machine.specifications.devices,
                locks=verbs.commands.locks,
            )
            live = LiveRates(access, cluster, now=lambda: 0.0, pause=Patience().pause)
            annotations = {
                PLACEMENT_ANNOTATION: document(500, 0).decode(),
                "rdma_interfaces_required": '[{"min_tx_rate": 500}]',
            }
            stdin = machine.stdin(annotations, name="net")
            netns = machine.hardware.create_namespace()
            await verbs.add(call("ADD", "c1", uid=P, name="p"), netns, stdin)
            it = Delivered(machine, node, cluster, live)
            await scenario(it)
            await verbs.delete(call("DEL", "c1", uid=P), "net")
            assert cluster.placements() == {}

    asyncio.run(main())


def test_rates_of_a_running_pod_are_those_of_its_delivered_placement(machine: Machine) -> None:
    async def scenario(it: Delivered) -> None:
        waiting = asyncio.ensure_future(it.cluster.wait_for_placements(it.cluster.placements()))
        it.cluster.deliver(document(700, 1))
        assert await waiting == {P: placed(700, 1)}
        assert await it.live.change_all(it.cluster.placements()) is None
        assert it.rates() == [(1, 700)]
        it.cluster.deliver(document(700, 1))  # once more
        it.cluster.deliver(document(300, 4))
        assert await it.live.change_all(it.cluster.placements()) is None
        assert it.rates() == [(4, 300)]

    run(machine, scenario)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "no valid JSON"),
        (b"\xff{}", "no UTF-8"),
        (b"[]", "object"),
        (b"{" * 100_000, "nested deeper than 64 levels"),
        (document(700, 1).replace(b"700", b"800"), "not made with this cluster's key"),
        (encode(placed(700, 1), P, None).encode(), "hmac: absent, and this cluster signs placements"),
        (encode(placed(700, 1), P, OTHER_KEY).encode(), "not made with this cluster's key"),
        (document(700, 1, node="w2"), "made for node w2, not w1"),
        (document(700, 1, uid=PodUid("uid-q")), "with UID uid-q, which has no interfaces here"),
    ],
)
def test_placement_that_does_not_count_is_refused_without_effect(
    machine: Machine, text: bytes, why: str
) -> None:
    async def scenario(it: Delivered) -> None:
        assert why in it.refused(text)
        assert it.cluster.placements() == {}
        await it.live.change_all(it.cluster.placements())
        assert it.rates() == [(0, 500)]

    run(machine, scenario)


def test_earlier_placement_is_refused_before_and_after_the_later_one_is_programmed(machine: Machine) -> None:
    async def scenario(it: Delivered) -> None:
        it.cluster.deliver(document(700, 2))
        why = "placement: of generation 1, and there was generation 2"
        assert it.refused(document(900, 1)) == why
        await it.live.change_all(it.cluster.placements())
        it.cluster = NoCluster(NODE, FixedKeys(KEY), it.node.ledger.generations)  # of a restarted agent
        assert it.refused(document(900, 1)) == why
        assert it.rates() == [(2, 700)]

    run(machine, scenario)


def test_agent_without_a_key_refuses_every_placement_and_names_the_setting(machine: Machine) -> None:
    async def scenario(it: Delivered) -> None:
        with pytest.raises(K8sRdmaError, match="placementKeyFile") as refusal:
            it.cluster.deliver(document(700, 1))
        assert refusal.value.reason is Reason.NOT_ALLOWED
        assert it.rates() == [(0, 500)]

    run(machine, scenario, keys=None)


def test_placement_that_the_node_refuses_does_not_stop_the_next_one(machine: Machine) -> None:
    async def scenario(it: Delivered) -> None:
        it.cluster.deliver(document(200_000, 1))
        assert await it.live.change_all(it.cluster.placements()) == 1.0
        assert it.live.refusals()[P].generation == 1
        it.cluster.deliver(document(600, 2))
        assert await it.live.change_all(it.cluster.placements()) is None
        assert (it.rates(), it.live.refusals()) == ([(2, 600)], {})

    run(machine, scenario)
