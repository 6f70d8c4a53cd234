"""What the fit cache counts is what its search says, to the word."""

from __future__ import annotations

import random

import pytest

from core.test_bounds import loaded
from k8s_rdma.core.placement import Rejection, place, score
from k8s_rdma.core.refusal import Detail
from k8s_rdma.extender.fit_cache import COUNTED, Feasible, FitCache, Infeasible
from k8s_rdma.extender.node_cache import NodeSnapshot
from k8s_rdma.wire.extender import NOT_ENOUGH_FREE
from packing_oracle import inventory, request


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


def test_what_is_counted_makes_room_as_any_verdict_does() -> None:
    node = inventory((100_000, 20))
    fit_cache = FitCache(limit=3)
    snapshots = [NodeSnapshot(node, {}) for _ in range(2)]
    for rate in (1, 2, 3):
        fit_cache.count(request(rate), snapshots)
    assert len(fit_cache) == 2
    assert set(fit_cache.verdicts(request(3))) == set(snapshots)
