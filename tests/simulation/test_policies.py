"""Policies of simulations, and the comparison that docs/simulate.md shows."""

from __future__ import annotations

import re

import msgspec
import pytest

from bench.compare_policies import MIXES, PAGE, best_load, compare, load_at_first_refusal, may_fit, small
from k8s_rdma.core.pf_use import Used
from k8s_rdma.core.request import PfPolicy, Request
from k8s_rdma.core.types import NodeName
from k8s_rdma.planning.cluster import Cluster, Fit, PlannedNode
from k8s_rdma_simulation.policies import POLICIES, Candidate, Mix
from k8s_rdma_simulation.scenario import Scenario, load_scenario
from packing_oracle import inventory, pci, request


def worths(policy: str, pod: Request, reserved_mbps: list[int]) -> list[int]:
    """The worth of nodes of one link of 100 Gb/s with so much reserved, while only such pods arrive."""
    cluster = Cluster()
    mix = Mix(cluster, {pod: 1.0})
    found = []
    for index, mbps in enumerate(reserved_mbps):
        name = NodeName(f"node-{index}")
        cluster.add_node(name, PlannedNode(inventory((100_000, 8)), foreign={pci(0): Used(1, mbps)}))
        state = cluster.state(name)
        fit = cluster.fit(pod, state)
        assert isinstance(fit, Fit)
        found.append(POLICIES[policy].worth(Candidate(cluster, mix, state, pod, fit)))
    return found


@pytest.mark.parametrize("policy", ["binpack", "best-fit", "fullest", "least-capacity"])
def test_fuller_node_is_worth_more(policy: str) -> None:
    fuller, emptier = worths(policy, request(30_000), [50_000, 40_000])
    assert fuller > emptier


def test_least_fragmentation_keeps_room_that_the_next_pod_can_use() -> None:
    """30 of 50 Gb/s leave 20 that no pod of 30 can use; 30 of 60 leave 30."""
    wasting, saving = worths("least-fragmentation", request(30_000), [50_000, 40_000])
    assert saving > wasting


def test_least_fragmentation_equals_binpack_without_waste() -> None:
    fuller, emptier = worths("least-fragmentation", request(10_000), [50_000, 40_000])
    assert fuller > emptier


def test_tenths_are_equal_for_different_scores() -> None:
    pod, reserved_mbps = request(30_000), [41_000, 40_000]
    assert len({*worths("binpack-tenths", pod, reserved_mbps)}) == 1
    assert len({*worths("binpack", pod, reserved_mbps)}) == 2


def nodes(count: int, vfs: int = 8) -> Scenario:
    """Nodes of two links of 100 Gb/s."""
    document = {
        "name": "test",
        "duration": 1_000.0,
        "nodes": [{"count": count, "pfs": [{"count": 2, "linkMbps": 100_000, "vfs": vfs}]}],
        "arrivals": {"fixed": 1.0},
        "pods": [{"name": "a", "interfaces": [{"min_tx_rate": 60_000}], "lifetime": {"fixed": 1.0}}],
    }
    return msgspec.convert(document, Scenario)


@pytest.mark.parametrize(
    ("plan", "pods", "expected"),
    [
        (nodes(1), [request(60_000), request(60_000), request(40_000), request(40_000)], True),
        (nodes(1), [request(60_000)] * 3, False),
        (nodes(2), [request(60_000)] * 4, True),
        (nodes(2), [request(50_000, 50_000, 50_000)] * 2, True),
        (nodes(3), [request(50_000, 50_000, 50_000)] * 4, False),  # half of each node's links is left
        (nodes(1, vfs=1), [request(1_000)] * 3, False),
        (nodes(1, vfs=1), [request(1_000, 1_000)], True),
    ],
)
def test_integer_programming_says_whether_pods_fit(
    plan: Scenario, pods: list[Request], expected: bool
) -> None:
    assert may_fit(plan, pods) is expected


def test_interfaces_on_separate_pfs_take_one_each() -> None:
    apart = Request(request(30_000, 30_000).interfaces, PfPolicy.SPREAD_PFS)
    alone = request(100_000)
    assert may_fit(nodes(1), [apart] * 3)
    assert not may_fit(nodes(1), [apart, alone])
    assert may_fit(nodes(1), [request(30_000, 30_000), alone])


@pytest.mark.parametrize("path", MIXES, ids=lambda path: path.stem)
def test_no_policy_reserves_more_than_the_best(path) -> None:
    plan = small(load_scenario(str(path)))
    best = best_load(plan, 1)
    assert all(load_at_first_refusal(plan, policy, 1) <= best <= 1 for policy in ("binpack", "best-fit"))


def test_comparison_has_a_row_for_each_policy() -> None:
    [heading, _, *rows] = compare([path for path in MIXES if path.stem == "fractions"], 1, 1).splitlines()
    assert heading == "| policy | fractions | mean | of the best |"
    assert [row.split("|")[1].strip(" `") for row in rows] == [*POLICIES]


def test_table_of_the_page_has_each_policy_and_mix() -> None:
    [made] = re.findall(
        "<!-- made: policies -->\n\n(.*?)\n\n<!-- /made: policies -->", PAGE.read_text(), re.DOTALL
    )
    [heading, _, *rows] = [[cell.strip(" `") for cell in row.split("|")[1:-1]] for row in made.splitlines()]
    mixes = [path.stem.replace("-", " ") for path in MIXES]
    assert heading == ["policy", *mixes, "mean", "of the best"]
    assert [row[0] for row in rows] == [*POLICIES]
    assert all(0 <= float(cell) <= 100 for row in rows for cell in row[1:])
