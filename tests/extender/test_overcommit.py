"""No node is ever promised more than it has, whatever comes at once and whatever fails."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.faulty_api import Fault
from extender.node_server import PF0, PF1, pf, report
from extender.world import World, until, world
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION

if TYPE_CHECKING:
    from collections.abc import Sequence

VFS = 3
MBPS = 10_000


async def taken(w: World, node: str) -> dict[str, list[int]]:
    """Return reservations on each PF of a node, Mb/s: the promises to pods bound there, by the API server,
    and the interfaces that the node has given to pods that are gone."""
    result: dict[str, list[int]] = {}
    bound = set()
    for item in (await w.http.get("/api/v1/pods")).json()["items"]:
        if item["spec"].get("nodeName") == node:
            bound.add(item["metadata"]["uid"])
            for interface in json.loads(item["metadata"]["annotations"][PLACEMENT_ANNOTATION])["interfaces"]:
                result.setdefault(interface["pf"], []).append(interface["min_tx_rate"])
    for allocation in w.nodes[node].report.allocations:
        if allocation.pod.uid not in bound:
            for given_away in allocation.interfaces:
                result.setdefault(given_away.pf, []).append(given_away.min_tx_rate)
    return result


async def assert_kept(w: World) -> None:
    for node in w.nodes:
        for reserved in (await taken(w, node)).values():
            assert len(reserved) <= VFS
            assert sum(reserved) <= MBPS


@pytest.mark.anyio
async def test_exactly_one_of_two_binds_succeeds_when_they_fit_alone_but_not_together():
    async with world("w1") as w:
        w.api.writing.clear()
        for name in ("p", "q"):
            await w.create_pod(name, 6_000)
            assert await w.fitting(name) == ["w1"]
        binds = [asyncio.create_task(w.bind(name, "w1")) for name in ("p", "q")]
        await w.api.begun.wait()
        await until(lambda: any(bind.done() for bind in binds))
        w.api.writing.set()
        errors = await asyncio.gather(*binds)
        assert sorted(bool(error) for error in errors) == [False, True]
        assert len(w.api.started) == 1


@pytest.mark.anyio
async def test_node_is_filled_and_not_more_when_many_pods_are_bound_at_once():
    async with world("w1", "w2") as w:
        for node in w.nodes.values():
            node.report = report(node.name, pf(PF0, vfs=VFS, mbps=MBPS), pf(PF1, vfs=VFS, mbps=MBPS))
        names = [f"p{i}" for i in range(30)]
        for name in names:
            await w.create_pod(name, 5_000)
            await w.filter(name)
        errors = await asyncio.gather(*(w.bind(n, "w1" if i % 2 else "w2") for i, n in enumerate(names)))
        assert errors.count("") == 8
        await assert_kept(w)
        assert {await w.node_of(n) for n in names} == {"w1", "w2", None}


PODS = 6
pods = st.integers(0, PODS - 1)
bursts = st.lists(st.tuples(pods, st.sampled_from(["w1", "w2"])), min_size=2, max_size=PODS)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("bind"), bursts),
        st.tuples(st.sampled_from(["allocate", "release", "delete"]), pods),
        st.tuples(st.just("late"), st.none()),
    ),
    min_size=1,
    max_size=10,
)
requests = st.lists(
    st.lists(st.sampled_from([0, 3_000, 5_000, 7_000]), min_size=1, max_size=3), min_size=PODS, max_size=PODS
)


@given(wanted=requests, steps=steps, faults=st.lists(st.sampled_from([None, *Fault]), max_size=PODS))
@settings(max_examples=40)
def test_promises_fit_every_pf_after_any_sequence_of_binds_faults_and_ends(
    wanted: Sequence[Sequence[int]], steps: Sequence[tuple[str, Any]], faults: Sequence[Fault | None]
) -> None:
    asyncio.run(_play(wanted, steps, faults))


async def _play(
    wanted: Sequence[Sequence[int]], steps: Sequence[tuple[str, Any]], faults: Sequence[Fault | None]
) -> None:
    async with world("w1", "w2", api_request_timeout_s=3600.0) as w:
        for node in w.nodes.values():
            node.report = report(node.name, pf(PF0, vfs=VFS, mbps=MBPS))
        w.api.faults[:] = faults
        for index, rates in enumerate(wanted):
            await w.create_pod(f"p{index}", *rates)
        deleted = set()
        for what, which in steps:
            if what == "bind":
                await asyncio.gather(*(w.bind(f"p{index}", node) for index, node in which))
            elif what == "late":
                w.api.late.set()
                await asyncio.gather(*w.api.late_writes, return_exceptions=True)
            elif what == "delete":
                if which not in deleted:
                    await w.delete_pod(f"p{which}")
                deleted.add(which)
            else:
                await _report(w, f"p{which}", given=what == "allocate")
            await assert_kept(w)


async def _report(w: World, name: str, *, given: bool) -> None:
    """The nodes take back the pod's interfaces; if it is bound, its node gives it the promised ones."""
    uid = w.pods[name]["metadata"]["uid"]
    found = await w.http.get(f"/api/v1/namespaces/default/pods/{name}")
    bound_to = found.json()["spec"].get("nodeName") if found.status_code == 200 else None
    for node in w.nodes.values():
        held = {a.pod.uid: [i.min_tx_rate for i in a.interfaces] for a in node.report.allocations}
        held.pop(uid, None)
        if given and node.name == bound_to:
            text = found.json()["metadata"]["annotations"][PLACEMENT_ANNOTATION]
            held[uid] = [interface["min_tx_rate"] for interface in json.loads(text)["interfaces"]]
        node.holds(**held)
