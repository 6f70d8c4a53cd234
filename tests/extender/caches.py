"""A scheduler cache that only the test fills."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from k8s_rdma.config.extender import ExtenderConfig
from k8s_rdma.extender.fit_cache import FitCache
from k8s_rdma.extender.pod_requests import PodRequestCache
from k8s_rdma.extender.requeue import Requeuer, UnschedulablePods
from k8s_rdma.extender.scheduler_cache import SchedulerCache
from k8s_rdma.wire.placement_keys import UNSIGNED, KeySource

if TYPE_CHECKING:
    from collections.abc import Callable

    from k8s_rdma.extender.settled_pods import SettledPods


def scheduler_cache(
    clock: Callable[[], float],
    *,
    fit_cache: FitCache | None = None,
    requests: PodRequestCache | None = None,
    requeuer: Requeuer | None = None,
    keys: KeySource = UNSIGNED,
    settled: SettledPods | None = None,
    **settings: Any,
) -> SchedulerCache:
    """Without an API server."""
    fit_cache = FitCache() if fit_cache is None else fit_cache
    return SchedulerCache(
        ExtenderConfig(**settings),
        requests=PodRequestCache() if requests is None else requests,
        fit_cache=fit_cache,
        requeuer=requeuer or Requeuer(UnschedulablePods(), fit_cache, api=None, clock=clock),
        api=None,
        clock=clock,
        keys=keys,
        settled=settled,
    )
