"""Policies, strategies and the detail of refusals, from filter to the placement that is written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from extender.node_server import PF0, pf, report
from extender.world import World, until, world
from k8s_rdma.core.refusal import Detail
from k8s_rdma.core.request import PfPolicy
from k8s_rdma.core.types import NodeName, PodUid, Strategy
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, decode
from k8s_rdma.wire.placement_keys import PlacementKeys

if TYPE_CHECKING:
    from k8s_rdma.core.placement import Placement

pytestmark = pytest.mark.anyio

KEY = PlacementKeys.shared(b"a key that agents share")
NOT_ENOUGH = "RDMA Scheduler Extension: Node did not have enough free RDMA resources. ("


def pfs(*numa: int | None, mbps: int | None = 10_000) -> tuple[Any, ...]:
    """The PFs of a node, by their NUMA nodes."""
    return tuple(pf(f"0000:03:00.{at}", numa_node=node, mbps=mbps) for at, node in enumerate(numa))


async def placed(w: World, name: str) -> Placement:
    pod = await w.read_pod(name)
    text = pod["metadata"]["annotations"][PLACEMENT_ANNOTATION]
    uid, node = PodUid(pod["metadata"]["uid"]), NodeName(pod["spec"]["nodeName"])
    return decode(text, uid=uid, node=node, keys=KEY)


async def bound(w: World, name: str, *rates: int, policy: str | None = None) -> list[int]:
    """Create the pod, have it scheduled, and tell which PFs it got."""
    await w.create_pod(name, *rates, policy=policy)
    [node] = await w.fitting(name)
    assert await w.bind(name, node) == ""
    return [int(each.pf[-1]) for each in (await placed(w, name)).interfaces]


async def test_bind_places_as_the_policy_says_and_writes_it():
    async with world("w1", key=KEY) as w:
        w.nodes["w1"].report = report("w1", *pfs(0, 1, 1))
        assert await bound(w, "any", 3_000, 3_000) == [0, 0]
        assert (await placed(w, "any")).policy is PfPolicy.ANY
        assert await bound(w, "numa", 9_000, 4_000, policy="same-numa") in ([1, 2], [2, 1])
        assert (await placed(w, "numa")).policy is PfPolicy.SAME_NUMA
        assert sorted(await bound(w, "rails", 1_000, 1_000, 1_000, policy="spread-pfs")) == [0, 1, 2]
        assert (await placed(w, "rails")).policy is PfPolicy.SPREAD_PFS
        assert len(set(await bound(w, "one", 2_000, 2_000, policy="same-pf"))) == 1


async def test_filter_distinguishes_nodes_that_no_eviction_helps_under_the_policy_from_full_ones():
    async with world("w1", "w2", "w3") as w:
        w.nodes["w1"].report = report("w1", *pfs(0, 0))
        w.nodes["w2"].report = report("w2", *pfs(0, 0), held={"other": [9_500]})
        w.nodes["w3"].report = report("w3", *pfs(0))
        await w.create_pod("p", 1_000, 1_000, policy="spread-pfs")
        found = await w.filter("p")
    assert found["NodeNames"] == ["w1"]
    assert found["FailedNodes"] == {
        "w2": f"{NOT_ENOUGH}policy spread-pfs: 2 interfaces of 1000 Mb/s need 2 PFs; "
        "1 of 2 PFs has a free VF and enough bandwidth)"
    }
    assert found["FailedAndUnresolvableNodes"] == {
        "w3": f"{NOT_ENOUGH}policy spread-pfs: 2 interfaces of 1000 Mb/s need 2 PFs; the node has 1 PF)"
    }


async def test_filter_refuses_an_unknown_policy_for_every_node():
    async with world("w1", "w2") as w:
        await w.create_pod("p", 5, policy="same_pf")
        found = await w.filter("p")
        await w.create_pod("q", policy="same_pf")
        assert await w.fitting("q") == ["w1", "w2"]
    [text] = set(found["FailedAndUnresolvableNodes"].values())
    assert text == (
        "RDMA Scheduler Extension: 'rdma_interfaces_required' field in pod YAML file is malformatted. "
        "(k8s-rdma.io/policy: same_pf is no policy; known are any, same-pf, spread-pfs, same-numa; "
        "did you mean same-pf?)"
    )


async def test_pod_that_waits_for_a_rail_is_tried_again_when_it_is_free():
    async with world("w1") as w:
        w.nodes["w1"].report = report("w1", *pfs(0, 0), held={"other": [9_500]})
        await w.create_pod("p", 1_000, 1_000, policy="spread-pfs")
        assert await w.fitting("p") == []
        w.nodes["w1"].report = report("w1", *pfs(0, 0), generation=2)
        await until(lambda: w.api.touched == ["w1"])
        assert await w.fitting("p") == ["w1"]


@pytest.mark.parametrize(
    ("strategy", "homes", "preferred"),
    [("binpack", [0, 0], "w1"), ("spread", [0, 1], "w2"), ("balanced", [0, 0], "w1")],
)
async def test_strategy_is_of_nodes_and_of_their_pfs(strategy: str, homes: list[int], preferred: str):
    """w1 has more of its bandwidth reserved than of its VFs in use; w2 is empty."""
    async with world("w1", "w2", key=KEY, strategy=Strategy(strategy)) as w:
        w.nodes["w1"].report = report("w1", *pfs(0, 0), held={"other": [2_500]})
        w.nodes["w2"].report = report("w2", *pfs(0, 0))
        await w.create_pod("p", 0)
        scores = await w.prioritize("p", "w1", "w2")
        assert scores[preferred] == max(scores.values())
        await w.create_pod("q", 2_500, 2_500)
        assert await w.fitting("q", "w2") == ["w2"]
        assert await w.bind("q", "w2") == ""
        assert [int(each.pf[-1]) for each in (await placed(w, "q")).interfaces] == homes


@pytest.mark.parametrize(("detail", "texts"), [("numbers", 3), ("cause", 1)])
async def test_nodes_that_refuse_for_one_cause_answer_alike_if_refusals_have_only_the_cause(
    detail: str, texts: int
):
    async with world("w1", "w2", "w3", refusal_detail=Detail(detail)) as w:
        for number, node in enumerate(w.nodes.values(), 1):
            node.report = report(node.name, pf(PF0), held={"other": 9_000 + number})
        await w.create_pod("p", 9_500)
        failed = (await w.filter("p"))["FailedNodes"]
        assert failed.keys() == w.nodes.keys()
        assert len(set(failed.values())) == texts
        assert json.dumps(failed).count("needs 1 interface of 9500 Mb/s") == len(w.nodes)
