"""Verdicts are searched once, and are not kept without bound."""

from __future__ import annotations

from extender.node_server import PF0, pf, report
from k8s_rdma.core.ids import NodeName
from k8s_rdma.core.inventory import Used
from k8s_rdma.core.request import InterfaceRequest, Request
from k8s_rdma.errors import Reason
from k8s_rdma.extender.decisions import MAX_REQUESTS, Decisions, Fit, Misfit
from k8s_rdma.extender.facts import facts_of
from k8s_rdma.extender.state import Situation


def request(*rates: int) -> Request:
    return Request(tuple(InterfaceRequest(min_tx_rate_mbps=rate) for rate in rates))


def situation(**held: int) -> Situation:
    inventory = facts_of(report("w1", pf(PF0)), NodeName("w1")).inventory
    return Situation(inventory, {pf.pci: Used(len(held), sum(held.values())) for pf in inventory.pfs})


def test_verdict_is_searched_once_for_a_request_and_a_situation():
    decisions = Decisions()
    here, there = situation(), situation(a=1)
    first = decisions.verdict(request(1), here)
    assert isinstance(first, Fit)
    assert decisions.verdict(request(1), here) is first
    assert decisions.known(request(1)) == {here: first}
    decisions.verdict(request(1), there)
    decisions.verdict(request(2), here)
    assert decisions.searches == len(decisions) == 3


def test_misfit_carries_the_sentence_for_the_scheduler():
    verdict = Decisions().verdict(request(9_000), situation(a=5_000))
    assert isinstance(verdict, Misfit)
    assert verdict.reason is Reason.INSUFFICIENT
    assert verdict.text.startswith(
        "RDMA Scheduler Extension: Node did not have enough free RDMA resources. ("
    )
    assert verdict.text.endswith(")")


def test_verdicts_of_the_request_asked_for_longest_ago_are_forgotten_at_the_limit():
    decisions = Decisions(limit=4)
    here, there = situation(), situation(a=1)
    for rate in (1, 2):
        decisions.verdict(request(rate), here)
        decisions.verdict(request(rate), there)
    decisions.known(request(1))
    decisions.verdict(request(3), here)
    assert len(decisions) == 3
    assert set(decisions.known(request(1))) == {here, there}
    assert decisions.known(request(2)) == {}


def test_one_request_alone_stays_within_the_limit():
    decisions = Decisions(limit=3)
    for used in range(10):
        decisions.verdict(request(1), situation(a=used))
    assert len(decisions) <= 3


def test_requests_without_any_verdict_are_forgotten_too():
    decisions = Decisions()
    for rate in range(MAX_REQUESTS + 10):
        decisions.known(request(rate))
    assert len(decisions._tables) == MAX_REQUESTS
