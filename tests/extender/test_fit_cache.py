"""Verdicts are searched once, and are not kept without bound."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from extender.node_server import PF0, PF1, pf, report
from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.pf_use import Used
from k8s_rdma.core.refusal import Detail
from k8s_rdma.core.request import InterfaceRequest, PfPolicy, Request
from k8s_rdma.core.shortage import Lack
from k8s_rdma.core.types import Enforce, NodeName, PfSelector, Strategy, VfDriver
from k8s_rdma.errors import Reason
from k8s_rdma.extender.fit_cache import MAX_INTERFACES, MAX_REQUESTS, FitCache
from k8s_rdma.extender.node_cache import NodeSnapshot
from k8s_rdma.extender.node_source import facts_of
from k8s_rdma.extender.verdicts import COUNTED, UNRESOLVABLE, Feasible, Infeasible, Shortage


def request(*rates: int) -> Request:
    return Request(tuple(InterfaceRequest(min_tx_rate_mbps=rate) for rate in rates))


def situation(**held: int) -> NodeSnapshot:
    inventory = facts_of(report("w1", pf(PF0, takes=("mtu",))), NodeName("w1")).inventory
    return NodeSnapshot(inventory, {pf.pci: Used(len(held), sum(held.values())) for pf in inventory.pfs})


def test_verdict_is_searched_once_for_a_request_and_a_situation():
    fit_cache = FitCache()
    here, there = situation(), situation(a=1)
    first = fit_cache.verdict(request(1), here)
    assert isinstance(first, Feasible)
    assert fit_cache.verdict(request(1), here) is first
    assert fit_cache.verdicts(request(1)) == {here: first}
    fit_cache.verdict(request(1), there)
    fit_cache.verdict(request(2), here)
    assert fit_cache.searches == len(fit_cache) == 3


def test_lack_of_a_node_does_not_depend_on_the_nodes_before_it():
    """Sums of free capacity are compared first only after a node that refused the request."""
    inventory = facts_of(report("w1", pf(PF0), pf(PF1)), NodeName("w1")).inventory
    lacks = {
        NodeSnapshot(inventory, {pf.pci: held for pf, held in zip(inventory.pfs, used, strict=True)}): lack
        for *used, lack in (
            (Used(0, 0), Used(0, 0), None),
            (Used(4, 0), Used(4, 0), Lack.VFS),
            (Used(1, 9_999), Used(1, 9_999), Lack.LARGEST),
            (Used(1, 0), Used(1, 9_999), Lack.BANDWIDTH),
            (Used(1, 0), Used(1, 5_000), Lack.PLACES),
        )
    }
    wanted = request(7_500, 7_500)
    for nodes in permutations(lacks):
        fit_cache = FitCache()
        assert fit_cache.count(wanted, nodes) == []
        verdicts = fit_cache.verdicts(wanted)
        assert {node: getattr(verdict, "lack", None) for node, verdict in verdicts.items()} == lacks
        for node, verdict in verdicts.items():
            assert isinstance(verdict, Shortage) or verdict is COUNTED
            if isinstance(verdict, Shortage):
                assert verdict.on(node) == FitCache().verdict(wanted, node)


def test_verdict_is_shared_by_requests_that_differ_in_names_and_addresses_alone():
    fit_cache, here = FitCache(), situation()
    asked = [
        Request(
            (
                InterfaceRequest(options=InterfaceOptions(network=f"n{at}")),
                InterfaceRequest(min_tx_rate_mbps=5, options=InterfaceOptions(mac=f"02:00:00:00:00:0{at}")),
            )
        )
        for at in range(3)
    ]
    first = fit_cache.verdict(asked[0], here)
    assert all(fit_cache.verdict(each, here) is first for each in asked)
    assert fit_cache.verdicts(asked[2]) == {here: first}
    unlike = [
        Request((asked[0].interfaces[1], asked[0].interfaces[0])),
        Request((asked[0].interfaces[0], InterfaceRequest(min_tx_rate_mbps=5))),
        Request((asked[0].interfaces[0], replace(asked[0].interfaces[1], min_tx_rate_mbps=6))),
    ]
    for each in unlike:
        fit_cache.verdict(each, here)
    assert fit_cache.searches == 1 + len(unlike)


@pytest.mark.parametrize(
    ("options", "enforce", "reason", "may_pass"),
    [
        (InterfaceOptions(vlan=5), Enforce.AUTO, Reason.DRIVER_REFUSES, False),
        (
            InterfaceOptions(pf=PfSelector(names=frozenset({"enp9s0"}))),
            Enforce.AUTO,
            Reason.NO_SUCH_PF,
            False,
        ),
        (InterfaceOptions(mtu=9216), Enforce.AUTO, Reason.NO_SUCH_PF, True),
        (InterfaceOptions(driver=VfDriver.VFIO_PCI), Enforce.AUTO, Reason.DRIVER_REFUSES, True),
        (InterfaceOptions(), Enforce.SOFTWARE, Reason.DRIVER_REFUSES, True),
    ],
)
def test_misfit_may_pass_when_an_operator_can_arrange_it_on_a_running_node(
    options: InterfaceOptions, enforce: Enforce, reason: Reason, may_pass: bool
):
    asked = InterfaceRequest(max_tx_rate_mbps=5, enforce=enforce, options=options)
    verdict = FitCache().verdict(Request((asked,)), situation())
    assert isinstance(verdict, Infeasible)
    assert (verdict.reason, verdict.may_pass) == (reason, may_pass)


def test_verdict_is_another_for_every_policy():
    fit_cache = FitCache()
    asked = [request(1, 1), named(1, 1)]
    for each in asked:
        for policy in PfPolicy:
            fit_cache.verdict(replace(each, policy=policy), situation())
    assert fit_cache.searches == len(asked) * len(PfPolicy)


def named(*rates: int) -> Request:
    """As `request`, and with options, of which some do not matter."""
    found = request(*rates).interfaces
    return Request(tuple(replace(each, options=InterfaceOptions(network="n")) for each in found))


def test_misfit_is_permanent_if_the_empty_node_cannot_meet_the_policy():
    verdict = FitCache().verdict(replace(request(1, 1), policy=PfPolicy.SPREAD_PFS), situation())
    assert isinstance(verdict, Infeasible)
    assert (verdict.reason in UNRESOLVABLE, verdict.may_pass) == (True, False)
    assert verdict.text.endswith("(policy spread-pfs: 2 interfaces of 1 Mb/s need 2 PFs; the node has 1 PF)")


@pytest.mark.parametrize("policy", [PfPolicy.ANY, PfPolicy.SAME_PF])
def test_misfit_is_for_eviction_while_a_link_is_down_only_if_eviction_would_help(policy: PfPolicy):
    """The PF whose link is up holds it when empty, the other one never as it is now."""
    up, down = pf(PF0), pf(PF1, mbps=None)
    facts = facts_of(report("w1", up, down), NodeName("w1"))
    full = NodeSnapshot(facts.inventory, {facts.inventory.pfs[0].pci: Used(1, 10_000)})
    for rate, reason in ((10_000, Reason.INSUFFICIENT), (10_001, Reason.EXCEEDS_CAPACITY)):
        verdict = FitCache().verdict(replace(request(rate), policy=policy), full)
        assert isinstance(verdict, Infeasible)
        assert (verdict.reason, verdict.may_pass) == (reason, True)


@pytest.mark.parametrize(
    ("strategy", "preferred"), [(Strategy.BINPACK, "fuller"), (Strategy.SPREAD, "emptier")]
)
def test_fit_is_scored_as_the_strategy_has_it(strategy: Strategy, preferred: str):
    fit_cache = FitCache(strategy)
    scores = {
        "fuller": fit_cache.verdict(request(1), situation(a=5_000)),
        "emptier": fit_cache.verdict(request(1), situation()),
    }
    assert max(scores, key=lambda which: scores[which].score) == preferred


def test_placement_follows_the_strategy():
    facts = facts_of(report("w1", pf(PF0), pf(PF1)), NodeName("w1"))
    half = NodeSnapshot(facts.inventory, {facts.inventory.pfs[0].pci: Used(1, 5_000)})
    homes = {strategy: FitCache(strategy).place(request(1), half) for strategy in Strategy}
    assert homes[Strategy.BINPACK].interfaces[0].pf == PF0
    assert homes[Strategy.SPREAD].interfaces[0].pf == PF1


def test_misfit_reports_only_the_cause_if_configured_so():
    here, there = situation(a=5_000), situation(a=4_000, b=3_000)
    asked = request(9_000)
    by_number = [FitCache().verdict(asked, each).text for each in (here, there)]
    by_cause = [FitCache(detail=Detail.CAUSE).verdict(asked, each).text for each in (here, there)]
    assert by_number[0] != by_number[1]
    assert (
        by_cause[0]
        == by_cause[1]
        == (
            "RDMA Scheduler Extension: Node did not have enough free RDMA resources. "
            "(needs 1 interface of 9000 Mb/s; no PF has 9000 Mb/s free)"
        )
    )


def test_misfit_carries_the_sentence_for_the_scheduler():
    verdict = FitCache().verdict(request(9_000), situation(a=5_000))
    assert isinstance(verdict, Infeasible)
    assert verdict.reason is Reason.INSUFFICIENT
    assert verdict.text.startswith(
        "RDMA Scheduler Extension: Node did not have enough free RDMA resources. ("
    )
    assert verdict.text.endswith(")")


def test_verdicts_of_the_least_recent_request_are_forgotten_at_the_limit():
    fit_cache = FitCache(limit=4)
    here, there = situation(), situation(a=1)
    for rate in (1, 2):
        fit_cache.verdict(request(rate), here)
        fit_cache.verdict(request(rate), there)
    fit_cache.verdicts(request(1))
    fit_cache.verdict(request(3), here)
    assert len(fit_cache) == 3
    assert set(fit_cache.verdicts(request(1))) == {here, there}
    assert fit_cache.verdicts(request(2)) == {}


def test_one_request_alone_stays_within_the_limit():
    fit_cache = FitCache(limit=3)
    for used in range(10):
        fit_cache.verdict(request(1), situation(a=used))
    assert len(fit_cache) <= 3


def test_requests_without_any_verdict_are_forgotten_too():
    fit_cache = FitCache()
    for rate in range(MAX_REQUESTS + 10):
        fit_cache.verdicts(request(rate))
    assert len(fit_cache._tables) == MAX_REQUESTS


def test_large_requests_are_forgotten_sooner():
    fit_cache = FitCache()
    most = MAX_INTERFACES // 1024
    for rate in range(1, most + 10):
        fit_cache.verdicts(request(*[rate] * 1024))
    assert len(fit_cache._tables) == most
    for rate in range(MAX_REQUESTS):
        fit_cache.verdicts(request(rate))
    assert len(fit_cache._tables) == MAX_REQUESTS
    fit_cache.verdicts(request(*[1] * 1024))
    assert fit_cache._interfaces == MAX_REQUESTS - 1 + 1024


def test_verdicts_of_others_stay_when_one_namespace_has_many_requests():
    fit_cache, here = FitCache(), situation()
    fit_cache.verdict(request(7), here, "victim")
    for rate in range(1, MAX_REQUESTS + 50):
        fit_cache.verdict(request(rate, rate), here, "crowd")
    assert fit_cache.verdicts(request(7)) == {here: fit_cache.verdict(request(7), here)}
    assert fit_cache.verdicts(request(1, 1)) == {}


def test_large_new_request_is_kept_in_a_full_table():
    """Its interfaces made it the greediest: it was forgotten while it was searched for."""
    fit_cache, here = FitCache(), situation()
    for rate in range(1, MAX_REQUESTS + 1):
        fit_cache.verdict(request(rate), here, "crowd")
    large = request(*[1] * 1024)
    verdict = fit_cache.verdict(large, here, "victim")
    assert fit_cache.verdicts(large) == {here: verdict}
    assert len(fit_cache._tables) == MAX_REQUESTS
