"""Refusals of a pod in a row: when they are reported, and for which reasons the pod is evicted."""

from __future__ import annotations

import pytest

from agent.cluster_world import URL, world
from agent.test_cluster_telling import given, refused_for
from k8s_rdma.agent.cluster.refusals import GAP_S
from k8s_rdma.errors import K8sRdmaError, Reason

pytestmark = pytest.mark.anyio


async def test_passing_refusal_is_reported_only_when_it_lasts(tmp_path):
    async with world(tmp_path) as w:
        pod = await w.run_pod()
        held = K8sRdmaError("held by an older sandbox", reason=Reason.HELD_BY_OLDER_SANDBOX)
        w.cluster.refused(pod, held)
        w.clock.seconds += 10
        w.cluster.refused(pod, held)
        await w.settled()
        assert [each["reason"] for each in w.events()] == ["RdmaPlacedAnew"]
        w.clock.seconds += 21
        w.cluster.refused(pod, held)
        await w.until(lambda: "RdmaHeldByOlderSandbox" in {each["reason"] for each in w.events()})


@pytest.mark.parametrize(
    "reason",
    [
        Reason.STALE_PLACEMENT,
        Reason.INSUFFICIENT,
        Reason.EXCEEDS_CAPACITY,
        Reason.NO_SUCH_PF,
        Reason.DRIVER_REFUSES,
        Reason.NO_RDMA,
    ],
)
async def test_stuck_pod_is_evicted_after_an_event_that_says_so(tmp_path, reason):
    async with world(tmp_path, stuck_after_s=60) as w:
        pod = await w.run_pod()
        await refused_for(w, pod, 50, K8sRdmaError("no", reason=reason))
        await w.settled()
        assert w.asked("POST", "/eviction") == 0
        w.clock.seconds += 10
        w.cluster.refused(pod, K8sRdmaError("no", reason=reason))
        await w.until(lambda: "deletionTimestamp" in w.pod()["metadata"])
        sent = [path for method, path in w.requests if method == "POST" and "marker" not in path]
        assert sent.index(f"{URL}/p/eviction") > max(
            i for i, path in enumerate(sent) if path.endswith("/events")
        )
        [event] = [each for each in w.events() if each["reason"] == "RdmaEvicting"]
        assert event["message"] == "evicted, since it has been without its RDMA interfaces for 60 s: no"


@pytest.mark.parametrize("reason", [Reason.MALFORMED_ANNOTATION, Reason.UNREADABLE_NODE, Reason.IPAM_FAILURE])
async def test_pod_that_another_node_would_refuse_too_is_never_evicted(tmp_path, reason):
    async with world(tmp_path, stuck_after_s=60) as w:
        pod = await w.run_pod()
        await refused_for(w, pod, 600, K8sRdmaError("no", reason=reason))
        await w.settled()
        assert w.asked("POST", "/eviction") == 0


async def test_no_pod_is_evicted_by_default(tmp_path):
    async with world(tmp_path) as w:
        pod = await w.run_pod()
        await refused_for(w, pod, 6000)
        await w.settled()
        assert w.asked("POST", "/eviction") == 0


@pytest.mark.parametrize("between", ["attached", "gap", "another reason"])
async def test_refusals_that_were_interrupted_count_anew(tmp_path, between):
    async with world(tmp_path, stuck_after_s=60) as w:
        pod = await w.run_pod()
        await refused_for(w, pod, 50)
        if between == "attached":
            w.cluster.attached(given(pod), {})
        elif between == "gap":
            w.clock.seconds += GAP_S + 1
        else:
            w.cluster.refused(pod, K8sRdmaError("x", reason=Reason.KERNEL_FAILURE))
        await refused_for(w, pod, 50)
        await w.settled()
        assert w.asked("POST", "/eviction") == 0
