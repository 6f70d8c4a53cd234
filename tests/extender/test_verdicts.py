"""The verdicts on many nodes at once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

import pytest

from extender.caches import scheduler_cache
from extender.node_server import report
from k8s_rdma.core.request import InterfaceRequest, Request
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.extender.filter import NOT_SEARCHED, FeasibilityChecker
from k8s_rdma.extender.fit_cache import FitCache
from k8s_rdma.extender.node_source import facts_of
from k8s_rdma.extender.pod_requests import PendingPod
from k8s_rdma.extender.search_queue import SearchQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from k8s_rdma.extender.node_cache import NodeSnapshot
    from k8s_rdma.extender.verdicts import Feasible, Infeasible, Verdict

NAMES = [NodeName(f"w{number}") for number in range(100)]
POD = PendingPod(
    uid=PodUid("p"),
    namespace="n",
    name="p",
    priority=0,
    request=Request((InterfaceRequest(min_tx_rate_mbps=6_000),)),
)


class Counting(FitCache):
    """Counts how often all of a request is looked at."""

    looked = 0

    def verdicts(self, request: Request, namespace: str = "") -> dict[NodeSnapshot, Verdict]:
        self.looked += 1
        return super().verdicts(request, namespace)


def verdicts(fit_cache: FitCache, clock: Callable[[], float]) -> FeasibilityChecker:
    """On nodes of which no two are alike."""
    cache = scheduler_cache(clock, fit_cache=fit_cache)
    for number, name in enumerate(NAMES):
        cache.state.observe(name, facts_of(report(name, held={"other": number}), name), 0.0)
    return FeasibilityChecker(cache=cache, clock=clock, queue=SearchQueue(clock))


class Costly(FitCache):
    """Lets time pass at each search: 10 ms of a large request, 0.1 of a small one."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def verdict(
        self, request: Request, situation: NodeSnapshot, namespace: str = ""
    ) -> Feasible | Infeasible:
        if situation not in self.verdicts(request, namespace):
            self.now += 0.01 if len(request.interfaces) > 1 else 0.0001
        return super().verdict(request, situation, namespace)


@pytest.mark.anyio
async def test_every_node_is_searched_for_a_small_request_when_others_search_for_large_ones():
    """Eight filters of another namespace, each with a second of searches, and one that takes 10 ms in all."""
    fit_cache = Costly()
    looks = verdicts(fit_cache, lambda: fit_cache.now)
    large = [
        replace(
            POD,
            uid=PodUid(f"c{at}"),
            namespace="crowd",
            request=Request((InterfaceRequest(min_tx_rate_mbps=at),) * 2),
        )
        for at in range(8)
    ]
    async with asyncio.TaskGroup() as group:
        for pod in large:
            group.create_task(looks.search(pod, NAMES))
        await asyncio.sleep(0)
        before = fit_cache.now
        await looks.search(POD, NAMES)
        waited_s = fit_cache.now - before
    assert NOT_SEARCHED not in [verdict for _, verdict in looks.on(POD, NAMES)]
    assert waited_s < 0.1


def test_request_is_looked_at_once_for_all_nodes_that_there_is_no_time_to_search():
    fit_cache = Counting()
    ticks = count(0.0, 1.0)
    found = verdicts(fit_cache, lambda: next(ticks)).on(POD, NAMES)
    assert [verdict for _, verdict in found] == [NOT_SEARCHED] * len(NAMES)
    assert fit_cache.looked == 1


def test_each_node_is_searched_while_there_is_time():
    fit_cache = FitCache()
    found = verdicts(fit_cache, lambda: 0.0).on(POD, NAMES)
    assert NOT_SEARCHED not in [verdict for _, verdict in found]
    assert fit_cache.searches == len(NAMES)
