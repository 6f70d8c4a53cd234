"""Running pods that ask for other rates, as the pod watch shows them."""

from __future__ import annotations

import asyncio

import pytest

from extender.changing_rates import (
    ANNOTATION,
    KEY,
    annotations_of,
    ask,
    asked,
    c,
    delivered,
    programs,
    status,
    takes_placements,
    used_mbps,
)
from extender.node_server import PF0
from extender.world import World, until
from k8s_rdma.core.placement import PlacedInterface
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.extender.node_cache import ClusterState
from k8s_rdma.extender.reservation import Reservation, Stage
from k8s_rdma.extender.wanted_rates import WantedRates
from k8s_rdma.kube.api import PodView
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, generation_in
from k8s_rdma.wire.placement_keys import FixedKeys

__all__ = ["c"]

pytestmark = pytest.mark.anyio

W1 = NodeName("w1")


async def test_pod_with_earlier_rates_in_a_new_sandbox_has_its_placement_delivered(c: World):
    takes_placements(c)
    await c.fitting("probe")
    await ask(c, "gold", (300, 0))
    await status(c, "gold", "admitted")
    programs(c, ("gold", 1, 300), ("silver", 0, 300))
    takes_placements(c)
    await c.fitting("probe")
    await status(c, "gold", "programmed")
    await until(c.expect(rate_changes_pending=0))
    programs(c, ("gold", 0, 500), ("silver", 0, 300))
    takes_placements(c)
    await c.fitting("probe")
    c.nodes["w1"].delivered.clear()
    await c.patch_pod("gold", {"metadata": {"annotations": {"note": "its status changes"}}})
    await delivered(c, 1)


async def test_reverted_edit_leaves_the_pod_as_it_is(c: World):
    await ask(c, "gold", (5_000, 0))
    await status(c, "gold", "refused")
    await ask(c, "gold", (500, 600))
    found = await status(c, "gold", "programmed")
    assert (found.generation, found.message) == (0, "")
    await until(c.expect(rate_changes_pending=0))


async def test_earlier_placement_that_is_written_over_a_later_one_is_put_back(c: World):
    first = (await annotations_of(c, "gold"))[PLACEMENT_ANNOTATION]
    await ask(c, "gold", (300, 0))
    await status(c, "gold", "admitted")
    programs(c, ("gold", 1, 300), ("silver", 0, 300))
    await c.fitting("probe")
    await status(c, "gold", "programmed")
    await c.patch_pod("gold", {"metadata": {"annotations": {PLACEMENT_ANNOTATION: first}}})
    while generation_in((await annotations_of(c, "gold"))[PLACEMENT_ANNOTATION]) != 1:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert await used_mbps(c) == 600


async def test_forged_generation_has_no_effect(c: World):
    text = (await annotations_of(c, "gold"))[PLACEMENT_ANNOTATION]
    forged = text.replace(',"interfaces"', ',"generation":7,"interfaces"').replace("500", "5")
    await c.patch_pod("gold", {"metadata": {"annotations": {PLACEMENT_ANNOTATION: forged}}})
    await ask(c, "silver", (1, 0))
    await status(c, "silver", "admitted")
    assert await used_mbps(c) == 800


def view(name: str, text: str, namespace: str = "default", *, node: NodeName | None = W1) -> PodView:
    return PodView(
        namespace=namespace,
        name=name,
        uid=PodUid(f"{namespace}-{name}"),
        node=node,
        finished=False,
        annotations={ANNOTATION: text},
    )


def reserved(mbps: int) -> Reservation:
    placed = PlacedInterface(pf=PF0, min_tx_rate_mbps=mbps, max_tx_rate_mbps=0)
    return Reservation(interfaces=(placed,), pod="default/p", created_at=0.0, stage=Stage.BOUND)


def test_changes_of_a_namespace_with_very_many_do_not_have_those_of_others_forgotten():
    wanted = WantedRates(ClusterState(), keys=FixedKeys(KEY))
    wanted.on_update(view("p", asked((2, 0))), reserved(1))
    for number in range(11_000):
        wanted.on_update(view(f"p{number}", asked((2, 0)), "other"), reserved(1))
    assert PodUid("default-p") in wanted.pending.by_uid
    assert len(wanted.pending.by_uid) <= 10_000


@pytest.mark.parametrize("padding", ["", " " * 4_000], ids=["short", "long"])
def test_pod_waits_for_rates_from_the_event_that_shows_other_ones_to_its_end(padding: str):
    ended: list[PodUid] = []
    wanted = WantedRates(ClusterState(), keys=FixedKeys(KEY), on_end=ended.append)
    for _ in range(2):
        wanted.on_update(view("p", asked((1, 0)) + padding), reserved(1))
        assert not wanted.pending.by_uid
    for _ in range(2):
        wanted.on_update(view("p", asked((2, 0)) + padding), reserved(1))
        [pending] = wanted.pending.by_uid.values()
        assert (pending.text, pending.node) == (asked((2, 0)) + padding, W1)
    assert wanted.changed.is_set()
    wanted.on_update(view("p", asked((1, 0)) + padding), reserved(1))
    assert not wanted.pending.by_uid
    wanted.on_update(view("p", "[{]" + padding), reserved(1))
    assert PodUid("default-p") in wanted.uids()
    wanted.on_delete(PodUid("default-p"))
    assert (set(wanted.uids()), ended) == (set(), ["default-p"])


def test_no_pod_waits_for_rates_without_a_key_or_a_node():
    unsigned, signed = WantedRates(ClusterState()), WantedRates(ClusterState(), keys=FixedKeys(KEY))
    unsigned.on_update(view("p", asked((2, 0))), reserved(1))
    signed.on_update(view("p", asked((2, 0)), node=None), reserved(1))
    assert not unsigned.pending.by_uid
    assert not signed.pending.by_uid
