"""A replica's knowledge of pods is of the Lease that it holds now, as users of other schedulers found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from extender.world import cluster, extending, until
from kube.memory_leases import SteppedLeases

if TYPE_CHECKING:
    from k8s_rdma.extender.extender import Extender

pytestmark = pytest.mark.anyio


def waiting_pods(extender: Extender) -> set[str]:
    return {pod.name for pod in extender.cache.pods.unbound_pods()}


async def test_preparation_for_a_former_lease_does_not_make_a_replica_ready_for_the_next_one():
    """github.com/Project-HAMi/HAMi/issues/2911: the leaders are A, B and A again while A still reads pods.

    Pods that B bound meanwhile were not counted (kubernetes/kubernetes#137308).
    """
    leases = SteppedLeases()
    leases.put("other")
    lease = leases.lease()
    async with cluster("w1") as c, extending(c, lease=lease) as w:
        await w.create_pod("p", 1)
        await until(lambda: any("held by other" in missing for missing in w.extender.missing()))
        w.api.streaming.clear()
        leases.put("")
        leases.step()
        await until(lease.holds)
        leases.put("other")
        leases.step()
        await until(lambda: not lease.holds())
        w.api.streaming.set()
        await until(lambda: "p" in waiting_pods(w.extender))
        for later in map(str, range(10)):  # long enough for the former preparation, if it goes on
            await w.create_pod(later, 1)
            await until(lambda later=later: later in waiting_pods(w.extender))
        w.api.streaming.clear()
        leases.put("")
        leases.step()
        await until(lease.holds)
        for _ in range(5):
            assert "is starting" in await w.bind("p", "w1")
        w.api.streaming.set()
        await until(lambda: not w.extender.missing())
        assert await w.bind("p", "w1") == ""
