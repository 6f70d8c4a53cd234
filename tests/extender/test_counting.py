"""The fit cache's counts equal the answers of its search, to the word."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from core.test_offers import loaded
from k8s_rdma.core.inventory import Inventory, Pf
from k8s_rdma.core.pf_use import Used
from k8s_rdma.core.placement import Placement, Rejection, place, score
from k8s_rdma.core.refusal import Detail
from k8s_rdma.core.request import PfPolicy, Request
from k8s_rdma.extender.fit_cache import FitCache
from k8s_rdma.extender.node_cache import NodeSnapshot
from k8s_rdma.extender.verdicts import COUNTED, Feasible, Infeasible
from k8s_rdma.wire.extender import NOT_ENOUGH_FREE
from packing_oracle import NODE, inventory, pci, request
from placement_oracle import COARSE, MLX5, REQUESTS, needy, nodes

if TYPE_CHECKING:
    from k8s_rdma.core.rate_ability import RateAbility
    from placement_oracle import Situation


@pytest.mark.parametrize("detail", Detail)
def test_verdicts_are_those_of_place(detail: Detail) -> None:
    refused = 0
    for seed in range(1_500):
        wanted, (node, used) = loaded(seed)
        fit_cache, snapshot = FitCache(detail=detail), NodeSnapshot(node, used)
        undecided = fit_cache.count(wanted, [snapshot])
        found = place(wanted, node, used)
        counted = fit_cache.verdicts(wanted).get(snapshot)
        assert (counted is None) == bool(undecided)
        if isinstance(found, Rejection):
            verdict = fit_cache.verdict(wanted, snapshot)
            assert isinstance(verdict, Infeasible)
            assert (verdict.reason, verdict.text) == (
                found.reason,
                f"{NOT_ENOUGH_FREE} ({found.text(detail)})",
            )
            refused += counted is not None
        else:
            assert counted in (None, COUNTED)
            assert fit_cache.verdict(wanted, snapshot) == Feasible(score(found, node, used))
    assert refused > 50


def one_pf(ability: RateAbility, used: Used) -> Situation:
    pf = Pf(name="p", pci=pci(0), capacity_vfs=6, link_mbps=100, rates=ability)
    return Inventory(node=NODE, pfs=(pf,)), {pf.pci: used}


BESIDE_A_HALF = one_pf(replace(MLX5, weights=4), Used(1, 50, (50,)))
"""All VFs may weigh 8 together, this one weighs 4, and each one that joins at least 1."""
ROUNDED_UP = one_pf(COARSE, Used(1, 10))
LINK_DOWN = inventory((100, 6), (None, 6)), {pci(0): Used(1, 50)}


@given(st.tuples(REQUESTS, nodes()) | needy(), st.sampled_from(PfPolicy))
@example((request(*[1] * 5), BESIDE_A_HALF), PfPolicy.ANY)
@example((request(95), ROUNDED_UP), PfPolicy.ANY)
@example((request(90), LINK_DOWN), PfPolicy.ANY)
@example((request(1, 1, 1), (inventory((100, 2)), {})), PfPolicy.ANY)
@example((request(1, 1), (inventory((100, 2)), {})), PfPolicy.SPREAD_PFS)
def test_counting_agrees_with_place_for_any_pfs(asked: tuple[Request, Situation], policy: PfPolicy) -> None:
    wanted, situation = replace(asked[0], policy=policy), asked[1]
    fit_cache, snapshot = FitCache(), NodeSnapshot(*situation)
    fit_cache.count(wanted, [snapshot])
    found = place(wanted, *situation)
    match fit_cache.verdicts(wanted).get(snapshot):
        case Feasible():
            assert isinstance(found, Placement)
        case Infeasible(reason, text):
            assert isinstance(found, Rejection)
            assert (reason, text) == (found.reason, f"{NOT_ENOUGH_FREE} ({found.numbers})")


def test_nodes_of_one_hardware_share_the_verdict_that_not_even_the_empty_one_takes_it() -> None:
    node = inventory((100_000, 20), (None, 20))
    wanted = request(*[60_000] * 2)
    nodes = [NodeSnapshot(node, dict.fromkeys([node.pfs[0].pci], use)) for use in uses()]
    fit_cache = FitCache()
    assert not fit_cache.count(wanted, nodes)
    [verdict] = {*map(fit_cache.verdicts(wanted).get, nodes)}
    assert isinstance(verdict, Infeasible)
    assert verdict.may_pass  # a link is down
    assert fit_cache.searches == 0


def uses():
    return loaded(random.Random(1).randrange(100))[1][1].values()


def test_counted_verdicts_are_dropped_at_the_limit_like_others() -> None:
    node = inventory((100_000, 20))
    fit_cache = FitCache(limit=3)
    snapshots = [NodeSnapshot(node, {}) for _ in range(2)]
    for rate in (1, 2, 3):
        fit_cache.count(request(rate), snapshots)
    assert len(fit_cache) == 2
    assert set(fit_cache.verdicts(request(3))) == set(snapshots)
