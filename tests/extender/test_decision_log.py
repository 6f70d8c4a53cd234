"""Decisions about pods: a line and a count each, and the last refusal of each pod, within bounds."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import structlog

from extender.serving import BIND, FILTER, PRIORITIZE, served
from extender.test_metrics import PREFIX, figures
from extender.test_settled_pods import P, Q
from extender.world import cluster
from k8s_rdma.core.types import PodUid
from k8s_rdma.errors import Reason
from k8s_rdma.extender.decision_log import BOUND, FIT, MAX_AGE_S, MAX_PODS, SETTLED, LastRefusals, Outcome
from server.exposition_reader import value

pytestmark = pytest.mark.anyio


def outcome(pod: str, reason: str = Reason.INSUFFICIENT, *, verb: str = "filter", **more: object) -> Outcome:
    told = {"candidates": 3, "reasons": Counter({reason: 2, Reason.NO_RDMA: 1}), **more}
    return Outcome(verb=verb, pod=f"default/{pod}", uid=f"uid-{pod}", reason=reason, duration_s=0.0, **told)


def test_refusal_is_known_until_the_pod_fits_or_is_bound():
    now = 10.0
    attempts = LastRefusals(lambda: now)
    attempts.record(outcome("p"))
    now = 20.0
    attempts.record(outcome("p", verb="bind", error="gone", node="w1", reasons={}))
    attempt = attempts.last_of(PodUid("uid-p"))
    assert (attempt.why, attempt.first_at, attempt.refused_at) == ("w1: gone", 10.0, 20.0)
    attempts.record(outcome("p", "fit", verb="prioritize"))
    assert attempts.pending() == [attempt], "prioritize says nothing of whether it fits"
    for good in (FIT, BOUND):
        attempts.record(outcome("p"))
        assert attempts.named("default/p") == "uid-p"
        attempts.record(outcome("p", good))
        assert attempts.named("default/p") is None


def test_longest_wait_is_that_of_the_pod_refused_first():
    now = 10.0
    attempts = LastRefusals(lambda: now)
    [(_, _, read)] = attempts.readings().values()
    assert read() == 0
    attempts.record(outcome("p"))
    now = 30.0
    attempts.record(outcome("q"))
    attempts.record(outcome("p"))
    now = 40.0
    assert read() == 30
    attempts.record(outcome("p", FIT))
    assert read() == 10


def test_refusal_counts_the_nodes_of_each_cause():
    attempts = LastRefusals(lambda: 0.0)
    attempts.record(outcome("p"))
    assert attempts.last_of(PodUid("uid-p")).why == "0/3 nodes: 2 insufficient, 1 no_rdma"


def test_refusals_are_bounded_and_forgotten_if_not_tried_again():
    now = 0.0
    attempts = LastRefusals(lambda: now)
    for number in range(MAX_PODS + 1):
        attempts.record(outcome(str(number)))
    assert attempts.last_of(PodUid("uid-0")) is None
    assert len(attempts.pending()) == MAX_PODS
    attempts.retain({PodUid("uid-1")}, 0.0)
    assert len(attempts.pending()) == MAX_PODS, "tried since the list began"
    attempts.retain({PodUid("uid-1")}, 1.0)
    assert [attempt.outcome.pod for attempt in attempts.pending()] == ["default/1"]
    now = MAX_AGE_S + 1
    assert attempts.pending() == []


def refusal(uid: PodUid, reason: str = "insufficient") -> Outcome:
    return Outcome(verb="filter", pod=f"default/{uid}", uid=uid, reason=reason, candidates=1, duration_s=0.1)


def test_refusal_is_not_kept_when_its_pod_has_ended():
    refusals = LastRefusals(lambda: 0.0)
    refusals.on_delete(P)
    refusals.record(refusal(P))
    refusals.record(refusal(Q))
    assert [attempt.outcome.uid for attempt in refusals.pending()] == [Q]


def test_refusal_is_not_kept_when_its_pod_was_missing_in_a_list():
    now = 1.0
    refusals = LastRefusals(lambda: now)
    refusals.record(refusal(P))
    now = 2.0
    refusals.retain(frozenset({Q}), listed_at=2.0)
    refusals.record(refusal(P))
    assert refusals.pending() == []


def test_refusals_are_kept_again_when_the_last_ones_were_forgotten_for_their_age():
    now = 0.0
    refusals = LastRefusals(lambda: now)
    refusals.record(refusal(P))
    now = 1_000.0
    assert refusals.pending() == []
    refusals.record(refusal(P))
    assert len(refusals.pending()) == 1


def test_refusals_end_when_a_bind_finds_the_pod_settled():
    refusals = LastRefusals(lambda: 0.0)
    refusals.record(refusal(P))
    refusals.record(refusal(P, SETTLED))
    assert refusals.pending() == []


KEYS = {
    "event",
    "log_level",
    "verb",
    "pod",
    "uid",
    "candidates",
    "reason",
    "reasons",
    "node",
    "error",
    "duration_s",
}


async def test_decisions_are_counted_by_verb_and_reason():
    async with cluster("w1", "w2", "w3") as c, served(c) as s:
        await s.ready()
        for name in ("w1", "w2"):
            c.nodes[name].holds(other=9_000)
        await c.create_pod("p", 5_000)
        await s.post(FILTER, c.args("p"))
        await s.post(PRIORITIZE, c.args("p"))
        await s.post(FILTER, c.args("p", "w1", "w2"))
        await s.post(BIND, c.bind_args("p", "w3"))
        await c.create_pod("plain")
        await s.post(FILTER, c.args("plain"))
        await c.create_pod("bad", annotation="{")
        await s.post(FILTER, c.args("bad"))
        found = await figures(s)
    fit_cache = f"{PREFIX}decisions_total"
    for reason in ("fit", "insufficient", "nothing_asked", "malformed_annotation"):
        assert value(found, fit_cache, verb="filter", reason=reason) == 1
    assert value(found, fit_cache, verb="prioritize", reason="fit") == 1
    assert value(found, fit_cache, verb="bind", reason="bound") == 1
    verdicts = f"{PREFIX}verdicts_total"
    assert value(found, verdicts, verb="filter", reason="insufficient") == 4
    assert value(found, verdicts, verb="filter", reason="fit") == 1


async def test_refused_bind_is_counted_by_its_reason():
    async with cluster("w1") as c, served(c) as s:
        await s.ready()
        await c.create_pod("p", 5_000)
        await s.post(FILTER, c.args("p"))
        c.nodes["w1"].holds(other=9_000)
        await s.post(BIND, c.bind_args("p", "w1"))
        c.nodes["w1"].raw = b""
        await s.post(BIND, c.bind_args("p", "w1"))
        found = await figures(s)
    for reason in ("insufficient", "unreadable_node"):
        assert value(found, f"{PREFIX}decisions_total", verb="bind", reason=reason) == 1


async def test_each_decision_is_one_log_line_with_the_same_keys():
    async with cluster("w1") as c, served(c) as s:
        await s.ready()
        pod = await c.create_pod("p", 1)
        with structlog.testing.capture_logs() as lines:
            await s.post(FILTER, c.args("p", "w1", "gone"))
            await s.post(PRIORITIZE, c.args("p"))
            await s.post(BIND, c.bind_args("p", "w1"))
    told = [line for line in lines if line["event"] == "decision"]
    assert [line["verb"] for line in told] == ["filter", "prioritize", "bind"]
    assert all(set(line) == KEYS for line in told)
    assert {(line["pod"], line["uid"]) for line in told} == {("default/p", pod["metadata"]["uid"])}
    assert told[0]["reasons"] == {"fit": 1, "unreadable_node": 1}
    assert [line["candidates"] for line in told] == [2, 1, 1]
    assert told[2]["node"] == "w1"
    assert json.dumps(told)
