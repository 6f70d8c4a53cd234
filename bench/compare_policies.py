"""Comparison of policies on mixed loads: `make policies` writes its table to docs/simulate.md.

Pods come and go on the clusters of examples/scenarios/mixes until one is refused; the figure is the bandwidth
reserved then. The best that is possible is found on small clusters that pods do not leave: the longest
sequence of the same pods that fits at all, by integer programming.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import highspy
import msgspec
from rich.progress import track

from docs_site.reference.tables import code, table
from docs_site.reference.written import with_table
from k8s_rdma.core.request import PfPolicy
from k8s_rdma_simulation.policies import POLICIES, link_mbps
from k8s_rdma_simulation.scenario import Distribution, Scenario, load_scenario
from k8s_rdma_simulation.simulation import Simulation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from k8s_rdma.core.request import Request

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "simulate.md"
MIXES = sorted((ROOT / "examples" / "scenarios" / "mixes").glob("*.yaml"))

RUNS = 8
SMALL_RUNS = 5
SMALL_NODES = 10

MOST_SEARCH_NODES = 1_000
"""Nodes of the solver's search after which a sequence counts as one that fits: the bound stays one."""


def load_at_first_refusal(plan: Scenario, policy: str, seed: int) -> float:
    """Return the share of the bandwidth that is reserved when a pod is refused for the first time."""
    load = Simulation(plan, policy, seed).run().load_at_first_refusal
    if load is None:
        msg = f"{plan.name}, {policy}, seed {seed}: no pod is refused"
        raise ValueError(msg)
    return load


def small(plan: Scenario) -> Scenario:
    """Shrink a scenario to few nodes that pods do not leave."""
    [group] = plan.nodes
    forever = Distribution(fixed=1e12)
    return msgspec.structs.replace(
        plan,
        nodes=(msgspec.structs.replace(group, count=SMALL_NODES),),
        pods=tuple(msgspec.structs.replace(pod, lifetime=forever) for pod in plan.pods),
    )


def best_load(plan: Scenario, seed: int) -> float:
    """Return the share of the bandwidth that the longest sequence of arrivals reserves that fits at all."""
    requests = [pod.request() for pod in plan.pods]
    capacity_mbps = sum(map(link_mbps, plan.inventories()))
    capacity_vfs = sum(pf.capacity_vfs for node in plan.inventories() for pf in node.pfs)
    pods: list[Request] = []
    loads = [0.0]
    mbps = vfs = 0
    for arrival in plan.draw(seed):
        pods.append(requests[arrival.shape])
        mbps += sum(_rates(pods[-1]))
        vfs += len(pods[-1].interfaces)
        if mbps > capacity_mbps or vfs > capacity_vfs:
            break
        loads.append(mbps / capacity_mbps)
    fits, limit = 0, len(loads)
    while limit - fits > 1:
        middle = (fits + limit) // 2
        if may_fit(plan, pods[:middle]):
            fits = middle
        else:
            limit = middle
    return loads[fits]


def may_fit(plan: Scenario, pods: Sequence[Request]) -> bool:
    """Report whether all these pods may fit together; False is proved.

    There is a number of pods for each request and node, and one of their interfaces for each PF. Interfaces
    of a request must be alike.
    """
    solver = highspy.Highs()
    solver.silent()
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("mip_max_nodes", MOST_SEARCH_NODES)
    requests = [*dict.fromkeys(pods)]
    on_nodes: dict[Request, list[object]] = {request: [] for request in requests}
    for node in plan.inventories():
        on_pfs: list[list[tuple[int, object]]] = [[] for _ in node.pfs]
        for request in requests:
            [(mbps, number)] = Counter(_rates(request)).items()
            count = solver.addIntegral(lb=0)
            on_nodes[request].append(count)
            placed = [solver.addIntegral(lb=0) for _ in node.pfs]
            solver.addConstr(sum(placed) == number * count)
            for on_pf, there in zip(on_pfs, placed, strict=True):
                on_pf.append((mbps, there))
                if request.policy is PfPolicy.SPREAD_PFS:
                    solver.addConstr(there <= count)
        for pf, there in zip(node.pfs, on_pfs, strict=True):
            solver.addConstr(sum(mbps * number for mbps, number in there) <= pf.link_mbps)
            solver.addConstr(sum(number for _, number in there) <= pf.capacity_vfs)
    for request, counts in on_nodes.items():
        solver.addConstr(sum(counts) == pods.count(request))
    solver.run()
    return solver.getModelStatus() != highspy.HighsModelStatus.kInfeasible


def _rates(request: Request) -> list[int]:
    return [interface.min_tx_rate_mbps for interface in request.interfaces]


def compare(mixes: Sequence[Path], runs: int, small_runs: int) -> str:
    """Compare all policies, and return the table; each processor takes one policy on one mix at a time."""
    plans = [load_scenario(str(path)) for path in mixes]
    with ProcessPoolExecutor() as pool:
        bests = [*track(pool.map(best_loads, plans, repeat(small_runs)), "best possible", len(plans))]
        cells = [(policy, plan, best) for policy in POLICIES for plan, best in zip(plans, bests, strict=True)]
        figures = [
            *track(pool.map(mean_loads, *zip(*cells, strict=True), repeat(runs)), "policies", len(cells))
        ]
    rows = []
    for index, policy in enumerate(POLICIES):
        loads, shares = zip(*figures[index * len(plans) : (index + 1) * len(plans)], strict=True)
        rows.append([code(policy), *map(_percent, [*loads, fmean(loads), fmean(shares)])])
    return table(("policy", *(path.stem.replace("-", " ") for path in mixes), "mean", "of the best"), rows)


def best_loads(plan: Scenario, runs: int) -> list[float]:
    """Return the best load of each seed on the small cluster."""
    return [best_load(small(plan), seed) for seed in range(1, runs + 1)]


def mean_loads(policy: str, plan: Scenario, best: Sequence[float], runs: int) -> tuple[float, float]:
    """Return the mean load at the first refusal, and that of the small cluster as a share of the best."""
    shares = [
        load_at_first_refusal(small(plan), policy, seed) / possible
        for seed, possible in enumerate(best, start=1)
    ]
    return fmean(load_at_first_refusal(plan, policy, seed) for seed in range(1, runs + 1)), fmean(shares)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


if __name__ == "__main__":
    made = compare(MIXES, RUNS, SMALL_RUNS)
    PAGE.write_text(with_table(PAGE.read_text(), "policies", made))
