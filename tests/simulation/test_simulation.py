from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k8s_rdma.errors import MalformedError
from k8s_rdma_simulation.command import encode
from k8s_rdma_simulation.policies import POLICIES
from k8s_rdma_simulation.scenario import Arrival, Scenario, load_scenario, load_trace
from k8s_rdma_simulation.simulation import SAMPLES, Result, Simulation

EXAMPLES = Path(__file__).parents[2] / "examples" / "scenarios"
ALWAYS = {"fixed": 100.0}


def pod(name: str, mbps: int, **settings: Any) -> dict[str, Any]:
    return {"name": name, "interfaces": [{"min_tx_rate": mbps}], "lifetime": ALWAYS, **settings}


def scenario(**changes: Any) -> Scenario:
    """Two nodes with a link of 100 Gb/s, on which one pod arrives per second."""
    document = {
        "name": "test",
        "duration": 1_000.0,
        "nodes": [{"count": 2, "pfs": [{"linkMbps": 100_000, "vfs": 8}]}],
        "arrivals": {"exponential": 1.0},
        "pods": [pod("a", 60_000)],
        **changes,
    }
    return msgspec.convert(document, Scenario)


def run(plan: Scenario, *arrivals: Arrival, policy: str = "binpack") -> Result:
    return Simulation(plan, policy, 1, arrivals or None).run()


def test_pod_waits_until_another_ends() -> None:
    arrivals = [Arrival(float(at), 100.0, 0) for at in range(3)]
    [shape] = run(scenario(), *arrivals).shapes
    assert (shape.arrived, shape.bound, shape.ended, shape.refusals) == (3, 3, 3, 1)
    assert shape.longest_wait_s == 98  # until the first one's end


def test_pod_waits_for_the_report_of_the_end_and_for_its_backoff() -> None:
    plan = scenario(scheduler={"reportDelay": 5.0, "backoff": 300.0, "maxBackoff": 300.0})
    arrivals = [Arrival(0.0, 100.0, 0), Arrival(0.0, 1_000.0, 0), Arrival(1.0, 100.0, 0)]
    assert run(plan, *arrivals).shapes[0].longest_wait_s == 300
    assert (
        run(
            msgspec.structs.replace(plan, scheduler=scenario(scheduler={"reportDelay": 5.0}).scheduler),
            *arrivals,
        )
        .shapes[0]
        .longest_wait_s
        == 104
    )


def test_gang_is_bound_whole_or_not_at_all() -> None:
    plan = scenario(pods=[pod("gang", 60_000, gang=3), pod("single", 60_000)])
    result = run(plan, Arrival(0.0, 10.0, 0), Arrival(1.0, 10.0, 1), Arrival(1.0, 10.0, 1))
    gang, single = result.shapes
    assert (gang.bound, gang.waiting) == (0, 3)
    assert (single.bound, single.refusals) == (2, 0)


def test_pods_of_a_failed_node_come_again() -> None:
    plan = scenario(
        nodes=[{"pfs": [{"linkMbps": 100_000, "vfs": 8}]}],
        nodeFailures={"every": {"fixed": 40.0}, "repair": {"fixed": 10.0}},
        duration=150.0,
    )
    [shape] = run(plan, Arrival(0.0, 90.0, 0)).shapes
    assert (shape.arrived, shape.bound, shape.ended) == (1, 3, 1)  # 0 to 40, 50 to 90, 100 to 110
    assert shape.restarted == 2


def test_failed_link_keeps_its_pods_and_takes_no_others() -> None:
    plan = scenario(
        nodes=[{"pfs": [{"linkMbps": 100_000, "vfs": 8}]}],
        linkFailures={"every": {"fixed": 40.0}, "repair": {"fixed": 30.0}},
        pods=[pod("a", 10_000)],
        duration=75.0,
    )
    [shape] = run(plan, Arrival(0.0, 60.0, 0), Arrival(50.0, 100.0, 0)).shapes
    assert (shape.bound, shape.ended, shape.restarted) == (2, 1, 0)
    assert shape.longest_wait_s == 20


def test_strategies_differ_if_a_large_pod_comes_last() -> None:
    plan = scenario(pods=[pod("small", 40_000), pod("large", 100_000)])
    arrivals = [Arrival(0.0, 900.0, 0), Arrival(1.0, 900.0, 0), Arrival(2.0, 900.0, 1)]
    refusals = {policy: run(plan, *arrivals, policy=policy).shapes[1].refusals for policy in POLICIES}
    assert refusals["spread"] == 1
    assert refusals["binpack"] == refusals["best-fit"] == refusals["least-capacity"] == 0


def test_load_at_the_first_refusal_ends_the_run() -> None:
    result = run(scenario(stopAtFirstRefusal=True))
    assert result.load_at_first_refusal == 0.6
    assert result.seconds < 100


def test_warm_up_is_left_out_of_figures() -> None:
    plan = scenario(warmUp=500.0, duration=1_000.0)
    assert run(plan, Arrival(0.0, 400.0, 0)).reserved == 0
    assert run(plan, Arrival(0.0, 750.0, 0)).reserved == pytest.approx(0.15)


def test_search_ends_at_the_share_of_nodes_that_the_scheduler_searches() -> None:
    plan = scenario().scheduler
    assert [plan.nodes_to_find(nodes) for nodes in (50, 1_000, 10_000)] == [50, 420, 500]
    assert scenario(scheduler={"percentageOfNodes": 100}).scheduler.nodes_to_find(5_000) == 5_000


def test_interrupted_run_has_the_figures_until_then() -> None:
    parts: list[float] = []

    def interrupt(part: float) -> bool:
        parts.append(part)
        return len(parts) < 2

    plan = scenario(pods=[pod("a", 1_000)], arrivals={"fixed": 0.01})
    result = Simulation(plan, "binpack", 1).run(interrupt)
    assert not result.complete
    assert 0 < result.seconds < 1_000
    assert result.events == 2_000


@pytest.mark.parametrize("policy", POLICIES)
def test_equal_seeds_give_equal_bytes(policy: str) -> None:
    plan = msgspec.structs.replace(load_scenario(str(EXAMPLES / "ai-cluster.yaml")), max_pods=100)
    first, second, other = (encode([Simulation(plan, policy, seed).run()]) for seed in (1, 1, 2))
    assert first == second != other


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_scenario_runs(path: Path) -> None:
    plan = load_scenario(str(path))
    trace = load_trace(plan, str(path))
    result = Simulation(msgspec.structs.replace(plan, max_pods=500), "binpack", 1, trace).run()
    assert sum(shape.bound for shape in result.shapes) > 0
    assert result.over_link == 0


STALE = {"replicas": 4, "bindDelay": 5.0}
ONE_NODE = [{"pfs": [{"linkMbps": 100_000, "vfs": 8}]}]


def test_scheduler_decides_on_the_next_pod_after_its_bind() -> None:
    plan = scenario(pods=[pod("a", 10_000)], scheduler={"bindDelay": 5.0})
    [shape] = run(plan, *[Arrival(0.0, 100.0, 0)] * 3).shapes
    assert (shape.bound, shape.conflicts, shape.longest_wait_s) == (3, 0, 15.0)
    plan = scenario(pods=[pod("a", 10_000)], scheduler=STALE)
    assert run(plan, *[Arrival(0.0, 100.0, 0)] * 3).shapes[0].longest_wait_s == 5.0


def test_binder_refuses_room_that_others_took_after_the_decision() -> None:
    plan = scenario(nodes=ONE_NODE, scheduler=STALE)
    [shape] = run(plan, *[Arrival(0.0, 100.0, 0)] * 2).shapes
    assert (shape.bound, shape.conflicts, shape.refusals) == (
        2,
        1,
        1,
    )  # refused at 6 s, as the first runs then
    assert shape.longest_wait_s == 110.0  # the first one's end, and the second's own bind


def test_gang_is_bound_whole_or_not_at_all_by_the_binder() -> None:
    plan = scenario(pods=[pod("single", 60_000), pod("gang", 60_000, gang=2)], scheduler=STALE)
    result = run(plan, Arrival(0.0, 2_000.0, 0), Arrival(0.0, 10.0, 1))
    assert [(shape.bound, shape.conflicts, shape.waiting) for shape in result.shapes] == [
        (1, 0, 0),
        (0, 1, 2),
    ]
    assert result.samples[-1].waiting == 2
    assert result.reserved == pytest.approx(0.3 * 0.995)


def test_bind_on_a_node_that_has_failed_is_refused() -> None:
    failing = {"every": {"fixed": 3.0}, "repair": {"fixed": 100.0}}
    plan = scenario(nodes=ONE_NODE, scheduler=STALE, nodeFailures=failing, duration=50.0)
    [shape] = run(plan, Arrival(0.0, 100.0, 0)).shapes
    assert (shape.bound, shape.conflicts, shape.waiting) == (0, 1, 1)


def test_links_are_overcommitted_by_stale_schedulers_but_for_the_binders_judgement() -> None:
    def found(**settings: Any) -> Result:
        return run(
            scenario(arrivals={"exponential": 30.0}, scheduler={**STALE, "bindDelay": 20.0, **settings})
        )

    judged, unjudged = found(), found(judgeBinds=False)
    assert judged.shapes[0].conflicts > 0
    assert judged.over_link == 0
    assert unjudged.shapes[0].conflicts == 0
    assert unjudged.over_link > 0


def test_samples_are_bounded_and_after_the_warm_up() -> None:
    result = run(scenario(warmUp=500.0), Arrival(0.0, 900.0, 0))
    assert len(result.samples) == SAMPLES
    assert result.samples[0].at_s > 500.0
    assert [sample.reserved for sample in result.samples] == [0.3] * 160 + [0.0] * 40


POD_SHAPES = st.builds(
    lambda at, mbps, count, gang, policy: {
        "name": f"shape-{at}",
        "interfaces": [{"min_tx_rate": mbps, "count": count}],
        "gang": gang,
        "policy": policy,
        "lifetime": {"exponential": 50.0},
    },
    st.integers(0, 10**9),
    st.integers(0, 100_000),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from(["any", "same-pf", "spread-pfs", "same-numa"]),
)
TIMES = {"every": {"exponential": 100.0}, "repair": {"exponential": 30.0}}


@settings(max_examples=30, deadline=None)
@given(
    st.lists(POD_SHAPES, min_size=1, max_size=4, unique_by=lambda shape: shape["name"]),
    st.sampled_from([*POLICIES]),
    st.sampled_from([{}, STALE, {"bindDelay": 0.1}]),
    st.integers(0, 100),
)
def test_no_link_is_overcommitted_and_no_pod_is_lost(
    pods: list[dict[str, Any]], policy: str, scheduler: dict[str, Any], seed: int
) -> None:
    plan = scenario(
        nodes=[{"count": 3, "pfs": [{"count": 2, "linkMbps": 100_000, "vfs": 4}]}],
        duration=300.0,
        nodeFailures=TIMES,
        linkFailures=TIMES,
        pods=pods,
        scheduler=scheduler,
        maxPods=200,
    )
    result = Simulation(plan, policy, seed).run()
    assert result.over_link == 0
    assert 0 <= result.reserved <= 1
    for shape in result.shapes:
        running = shape.arrived + shape.restarted - shape.ended - shape.restarted - shape.waiting
        assert running >= 0
        assert shape.bound == shape.ended + shape.restarted + running


def test_unknown_policy_is_refused_by_name() -> None:
    with pytest.raises(MalformedError, match="policy best: wanted one of binpack"):
        Simulation(scenario(), "best", 1)
