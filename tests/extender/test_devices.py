"""Pods that hold exclusive devices: bound for the worst of kubelet's choices, then counted as reported."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.node_server import PF0, PF1, NodeServer, held_interface, pf, report
from extender.preemption import create, place, preempt
from extender.preemption import uid as uid_of
from extender.world import World, cluster, extending, world
from k8s_rdma.config.extender import NamespaceLimit
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, decode
from k8s_rdma.wire.placement_keys import PlacementKeys
from k8s_rdma.wire.report import Allocation, NodeReport, ReportedPod

if TYPE_CHECKING:
    from k8s_rdma.core.placement import Placement

POOL = "tencent.com/rdma"
KEY = PlacementKeys.shared(b"a key that agents share")
Given = tuple[str, int, int]
"""A device that kubelet chose: of which PF, for which of the pod's interfaces, and its reservation."""


def pools(node: str, *counts: int, vfs: int = 4, mbps: int = 10_000) -> NodeReport:
    """A node whose PFs have so many VFs in the pool."""
    addresses = (PF0, PF1)
    return report(
        node,
        *(
            pf(address, vfs=vfs, mbps=mbps, pools={POOL: count} if count else {})
            for address, count in zip(addresses, counts, strict=False)
        ),
    )


def gives(node: NodeServer, **pods: Sequence[Given]) -> None:
    """Let the node report that these pods hold these devices, and that no other pod holds any."""
    generation = int(node.report.generation.partition(".")[2]) + 1
    allocations = tuple(
        Allocation(
            pod=ReportedPod(namespace="default", name=f"pod-{uid}", uid=uid),
            container_id=f"c-{uid}",
            phase="attached",
            interfaces=tuple(
                msgspec.structs.replace(held_interface(address, rate), pool=POOL, entry=entry)
                for address, entry, rate in held
            ),
        )
        for uid, held in pods.items()
        if held
    )
    node.report = msgspec.structs.replace(
        node.report, generation=f"epoch.{generation}", allocations=allocations
    )


async def placement_of(w: World, name: str, node: str = "w1", key: PlacementKeys | None = None) -> Placement:
    meta = (await w.read_pod(name))["metadata"]
    text = meta["annotations"][PLACEMENT_ANNOTATION]
    return decode(text, uid=PodUid(meta["uid"]), node=NodeName(node), keys=key)


@pytest.mark.anyio
async def test_pod_is_refused_for_the_worst_choice_of_pf():
    async with world("w1", "w2", "w3") as w:
        w.nodes["w1"].report = pools("w1", 2, 2)
        w.nodes["w2"].report = pools("w2", 1, 1)
        w.nodes["w3"].report = pools("w3", 0, 0)
        await w.create_pod("p", 6_000, 6_000, devices={POOL: 2})
        answer = await w.filter("p")
        assert answer["NodeNames"] == ["w2", "w3"], (
            "one device each; and no pool, so that it asks for two VFs"
        )
        assert list(answer["FailedAndUnresolvableNodes"]) == ["w1"]
        assert (
            "a PF may come to carry 12000 Mb/s of that, and has 10000 Mb/s when empty"
            in (answer["FailedAndUnresolvableNodes"]["w1"])
        )


@pytest.mark.anyio
async def test_pod_that_asks_both_pools_by_count_is_refused_with_both_numbers_and_for_good():
    async with world("w1") as w:
        w.nodes["w1"].report = pools("w1", 2, 2)
        await w.create_pod("p", 1_000, devices={POOL: 2})
        answer = await w.filter("p")
        assert answer["FailedNodes"] == {}
        why = answer["FailedAndUnresolvableNodes"]["w1"]
        assert f"asks both pools: its containers request 2 of {POOL}" in why
        assert "its annotation has 1 interface, not 2" in why
        assert (await w.bind("p", "w1")).startswith("RDMA Scheduler Extension: Node did not have enough")


@pytest.mark.anyio
async def test_pod_with_devices_and_without_annotation_is_bound_plainly_and_is_not_counted():
    async with world("w1") as w:
        w.nodes["w1"].report = pools("w1", 2, 2)
        await w.create_pod("p", devices={POOL: 2})
        assert await w.fitting("p") == ["w1"]
        assert await w.bind("p", "w1") == ""
        assert not (await w.read_pod("p"))["metadata"].get("annotations")
        await w.create_pod("q", 10_000, 10_000)
        assert await w.fitting("q") == ["w1"]


@pytest.mark.anyio
async def test_bind_writes_the_pods_own_rates_in_order_and_signs_them():
    async with world("w1", key=KEY) as w:
        w.nodes["w1"].report = pools("w1", 2, 1)
        await w.create_pod("p", 2_000, 5_000, devices={POOL: 2})
        assert await w.fitting("p") == ["w1"]
        assert await w.bind("p", "w1") == ""
        placement = await placement_of(w, "p", key=KEY)
        assert [each.min_tx_rate_mbps for each in placement.request().interfaces] == [2_000, 5_000]
        assert placement.devices() == {POOL: 2}
        assert {each.pf for each in placement.interfaces} == {PF0, PF1}


@pytest.mark.anyio
async def test_worst_choice_counts_until_the_node_reports_which_devices_it_is():
    async with world("w1") as w:
        w.nodes["w1"].report = pools("w1", 1, 1)
        uid = (await w.create_pod("p", 6_000, devices={POOL: 1}))["metadata"]["uid"]
        await w.create_pod("q", 6_000)
        assert await w.bind("p", "w1") == ""
        assert await w.fitting("q") == [], "kubelet may choose either PF"
        gives(w.nodes["w1"], **{uid: [(PF0, 0, 6_000)]})
        assert await w.fitting("q") == ["w1"]
        assert await w.bind("q", "w1") == ""
        assert [each.pf for each in (await placement_of(w, "q")).interfaces] == [PF1]


@pytest.mark.anyio
async def test_pods_that_take_all_of_a_link_each_have_a_pf_of_their_own():
    async with world("w1") as w:
        w.nodes["w1"].report = pools("w1", 1, 1)
        uids = []
        for at, name in enumerate("pq"):
            uids.append((await w.create_pod(name, 10_000, devices={POOL: 1}))["metadata"]["uid"])
            assert await w.fitting(name) == ["w1"]
            assert await w.bind(name, "w1") == ""
            held = {uid: [((PF0, PF1)[n], 0, 10_000)] for n, uid in enumerate(uids[: at + 1])}
            gives(w.nodes["w1"], **held)
        await w.create_pod("r", 1)
        assert await w.fitting("r") == []


@pytest.mark.anyio
async def test_pools_leave_the_vfs_that_annotations_request():
    async with world("w1") as w:
        w.nodes["w1"].report = pools("w1", 4, vfs=2)
        await w.create_pod("p", 0, 0, 0, 0, devices={POOL: 4})
        assert await w.bind("p", "w1") == ""
        await w.create_pod("q", 0, 0)
        assert await w.fitting("q") == ["w1"]


@pytest.mark.anyio
async def test_limit_of_a_namespace_counts_requested_devices_not_all_that_kubelet_may_choose():
    limits = (NamespaceLimit(namespace="default", reserved_mbps=9_000, vfs=3),)
    async with world("w1", limits=limits) as w:
        w.nodes["w1"].report = pools("w1", 2, 2)
        uid = (await w.create_pod("p", 4_000, 1_000, devices={POOL: 2}))["metadata"]["uid"]
        assert await w.bind("p", "w1") == ""
        limits_now = w.extender.metrics.render()
        assert 'k8s_rdma_extender_namespace_reserved_mbps{namespace="default"} 5000' in limits_now
        gives(w.nodes["w1"], **{uid: [(PF1, 1, 1_000)]})
        await w.create_pod("q", 4_000)
        assert await w.fitting("q") == ["w1"]
        limits_now = w.extender.metrics.render()
        assert 'k8s_rdma_extender_namespace_vfs{namespace="default"} 2' in limits_now


Arrange = Callable[[World, str], Awaitable[None]]


async def not_started(_w: World, _uid: str) -> None:
    pass


async def in_part(w: World, uid: str) -> None:
    gives(w.nodes["w1"], **{uid: [(PF1, 1, 3_000)]})


async def sandbox_died(w: World, uid: str) -> None:
    gives(w.nodes["w1"], **{uid: [(PF0, 0, 6_000), (PF1, 1, 3_000)]})
    await w.filter("q")
    gives(w.nodes["w1"])


@pytest.mark.anyio
@pytest.mark.parametrize("arrange", [not_started, in_part, sandbox_died])
async def test_worst_choice_is_not_sold_before_and_after_a_restart(arrange: Arrange):
    async with cluster("w1") as c:
        c.nodes["w1"].report = pools("w1", 1, 1)
        uid = (await c.create_pod("p", 6_000, 3_000, devices={POOL: 2}))["metadata"]["uid"]
        await c.create_pod("q", 7_500)
        async with extending(c, KEY) as w:
            assert await w.bind("p", "w1") == ""
            await arrange(w, uid)
            assert await w.fitting("q") == []
        async with extending(c, KEY) as w:
            assert await w.fitting("q") == []
            gives(w.nodes["w1"], **{uid: [(PF0, 0, 6_000), (PF1, 1, 2_000)]})
            assert await w.fitting("q") == ["w1"]


@pytest.mark.anyio
async def test_owner_gains_no_bandwidth_by_editing_the_annotation_after_the_bind():
    async with world("w1", key=KEY) as w:
        w.nodes["w1"].report = pools("w1", 1, 1)
        await w.create_pod("p", 6_000, devices={POOL: 1})
        assert await w.bind("p", "w1") == ""
        less = {"metadata": {"annotations": {"rdma_interfaces_required": '[{"min_tx_rate": 1}]'}}}
        await w.patch_pod("p", less)
        assert (await placement_of(w, "p", key=KEY)).request().interfaces[0].min_tx_rate_mbps == 6_000
        await w.create_pod("q", 6_000)
        assert await w.fitting("q") == []


@pytest.mark.anyio
async def test_pod_bound_by_another_scheduler_counts_on_every_pf_until_its_node_reports_it():
    async with world("w1", binder="scheduler") as w:
        w.nodes["w1"].report = pools("w1", 1, 1)
        uid = (await w.create_pod("p", 6_000, devices={POOL: 1}))["metadata"]["uid"]
        await w.create_pod("q", 6_000)
        await w.bind_by_hand("p", "w1")
        while await w.fitting("q"):  # noqa: ASYNC110  it has no event for tests
            await asyncio.sleep(0.01)
        gives(w.nodes["w1"], **{uid: [(PF1, 0, 6_000)]})
        assert await w.fitting("q") == ["w1"]
        gives(w.nodes["w1"])
        assert await w.fitting("q") == ["w1"], "what was reported stays its claim"


@pytest.mark.anyio
async def test_victims_make_room_for_every_choice_of_kubelets():
    async with world("w1") as w:
        w.nodes["w1"].report = pools("w1", 1, 1)
        for name in ("a", "b"):
            await place(w, name, "w1", 8_000)
        await create(w, "high", 5_000, priority=9, devices={POOL: 1})
        assert await w.fitting("high") == []
        found = await preempt(w, "high", w1=["a"])
        assert {node: sorted(names) for node, names in found.items()} == {"w1": ["a", "b"]}
        await create(w, "equal", 1_000, priority=9)
        assert await w.fitting("equal") == [], "what is made room for is held on both PFs"


@pytest.mark.anyio
async def test_pod_with_devices_is_a_victim_on_any_possible_pf_until_its_pf_is_known():
    async with world("w1") as w:
        w.nodes["w1"].report = pools("w1", 1, 1)
        await place(w, "low", "w1", 8_000, devices={POOL: 1})
        await create(w, "high", 9_000, priority=9)
        assert await w.fitting("high") == []
        assert await preempt(w, "high", w1=["low"]) == {"w1": ["low"]}
        gives(w.nodes["w1"], **{uid_of(w, "low"): [(PF0, 0, 8_000)]})
        assert await w.fitting("high") == ["w1"]


RATES = st.lists(st.sampled_from([0, 2_000, 5_000, 8_000]), min_size=1, max_size=3).map(tuple)
WANTED = st.lists(st.tuples(RATES, st.booleans()), min_size=5, max_size=5)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["bind", "bind", "give", "give one", "delete", "restart"]),
        st.integers(0, 4),
        st.integers(0, 9),
    ),
    min_size=3,
    max_size=14,
)


@given(wanted=WANTED, counts=st.tuples(st.integers(0, 3), st.integers(1, 3)), steps=STEPS)
@settings(max_examples=25)
def test_no_pf_carries_more_than_its_link_whatever_devices_kubelet_gives(
    wanted: Sequence[tuple[tuple[int, ...], bool]],
    counts: tuple[int, int],
    steps: Sequence[tuple[str, int, int]],
) -> None:
    """While pods come and go, nodes report them in part, and the extender restarts."""
    asyncio.run(_play(wanted, counts, steps))


async def _play(
    wanted: Sequence[tuple[tuple[int, ...], bool]],
    counts: tuple[int, int],
    steps: Sequence[tuple[str, int, int]],
) -> None:
    async with cluster("w1") as c:
        node = c.nodes["w1"]
        node.report = pools("w1", *counts)
        held: dict[str, list[Given]] = {}
        for at, (rates, pooled) in enumerate(wanted):
            await c.create_pod(f"p{at}", *rates, devices={POOL: len(rates)} if pooled else None)
        uids = [c.pods[f"p{at}"]["metadata"]["uid"] for at in range(len(wanted))]
        deleted: set[int] = set()
        runs: list[list[tuple[str, int, int]]] = [[]]
        for step in steps:
            runs.append([]) if step[0] == "restart" else runs[-1].append(step)
        for run in runs:
            async with extending(c, KEY) as w:
                for what, which, pick in run:
                    if what == "bind" and which not in deleted:
                        await w.bind(f"p{which}", "w1")
                    elif what.startswith("give") and which not in deleted and wanted[which][1]:
                        await _give(w, which, wanted[which][0], counts, held, pick, one="one" in what)
                    elif what == "delete" and which not in deleted:
                        deleted.add(which)
                        await w.delete_pod(f"p{which}")
                        held.pop(uids[which], None)
                    gives(node, **held)
                    for address in (PF0, PF1):
                        there = [rate for pods in held.values() for pf_, _, rate in pods if pf_ == address]
                        plain = await _plain(w, wanted, deleted, address)
                        assert sum(there) + sum(plain) <= 10_000, (address, held)


async def _plain(
    w: World, wanted: Sequence[tuple[tuple[int, ...], bool]], deleted: set[int], address: str
) -> list[int]:
    """Return the promises on the PF to pods that ask by annotation."""
    found = []
    for at, (_, pooled) in enumerate(wanted):
        if not pooled and at not in deleted and await w.node_of(f"p{at}"):
            placement = await placement_of(w, f"p{at}", key=KEY)
            found += [each.min_tx_rate_mbps for each in placement.interfaces if each.pf == address]
    return found


async def _give(  # noqa: PLR0917 - kubelet's choice depends on these
    w: World,
    which: int,
    rates: tuple[int, ...],
    counts: tuple[int, int],
    held: dict[str, list[Given]],
    pick: int,
    *,
    one: bool,
) -> None:
    """kubelet gives the pod devices that are free, if it is bound: one, or all that it misses."""
    if await w.node_of(f"p{which}") is None:
        return
    mine = held.setdefault(w.pods[f"p{which}"]["metadata"]["uid"], [])
    for entry, rate in enumerate(rates):
        taken = [address for pods in held.values() for address, _, _ in pods]
        free = [
            address
            for address, count in zip((PF0, PF1), counts, strict=True)
            for _ in range(count - taken.count(address))
        ]
        if free and entry not in [known for _, known, _ in mine]:
            mine.append((free[pick % len(free)], entry, rate))
            if one:
                return
