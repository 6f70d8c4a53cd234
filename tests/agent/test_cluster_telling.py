"""The agent's reports to the cluster: network status, events, and evictions."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from agent.cluster_world import refusal, world
from factories import PF1, interface, receipt
from k8s_rdma.core.ledger import Attachment
from k8s_rdma.core.types import ContainerId, PodUid
from k8s_rdma.errors import K8sRdmaError, Reason
from k8s_rdma.kube.event_recorder import MAX_MESSAGE_BYTES, REPEAT_S
from k8s_rdma.wire.ipam_result import IpamResult, IpConfig
from k8s_rdma_demo.cluster.http_server import Response
from k8s_rdma_demo.cluster.objects import EVENTS

pytestmark = pytest.mark.anyio

STATUS = "k8s-rdma.io/network-status"
FULL = K8sRdmaError("node w1: no room", reason=Reason.INSUFFICIENT)
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


def given(pod, network="net", container="c1", **kwargs):
    attachment = Attachment(network, ContainerId(container), "eth0")
    return replace(receipt(container, *kwargs.get("interfaces", ())), pod=pod, attachment=attachment)


def status(w, name="p"):
    text = (w.pod(name)["metadata"].get("annotations") or {}).get(STATUS)
    return [(each["name"], each["interface"]) for each in json.loads(text)] if text else None


async def test_pod_is_annotated_with_its_interfaces(tmp_path):
    async with world(tmp_path) as w:
        pod = await w.run_pod(annotations={"a": "b"})
        addresses = IpamResult(ips=(IpConfig("10.56.0.2/24"), IpConfig("fd00::2/64")))
        w.cluster.attached(given(pod), {"rdma0": addresses})
        await w.until(lambda: status(w) is not None)
        annotations = w.pod()["metadata"]["annotations"]
        assert annotations["a"] == "b"
        assert json.loads(annotations[STATUS]) == [
            {
                "name": "net",
                "interface": "rdma0",
                "ips": ["10.56.0.2", "fd00::2"],
                "mac": "0a:00:00:00:00:00",
                "mtu": 1500,
                "default": False,
                "device-info": {
                    "type": "pci",
                    "version": "1.1.0",
                    "pci": {"pci-address": "0000:03:00.0", "pf-pci-address": "0000:03:00.0"},
                },
            }
        ]


async def test_several_attachments_of_a_pod_are_one_write_with_all_of_them(tmp_path):
    async with world(tmp_path) as w:
        pod = await w.run_pod()
        w.cluster.attached(given(pod, "a"), {})
        w.cluster.attached(given(pod, "b", interfaces=(interface(PF1, 0, "rdma1"),)), {})
        await w.until(lambda: status(w) is not None)
        await w.settled()
        assert status(w) == [("a", "rdma0"), ("b", "rdma1")]
        assert w.asked("PATCH", "/p") == 1


async def test_newer_annotation_is_written_after_the_one_in_progress(tmp_path):
    async with world(tmp_path) as w:
        pod = await w.run_pod()

        def meanwhile(request):
            if request.method == "PATCH" and w.asked("PATCH", "/p") == 1:
                w.cluster.attached(given(pod, "b"), {})

        w.fault = meanwhile
        w.cluster.attached(given(pod, "a"), {})
        await w.until(lambda: status(w) == [("a", "rdma0"), ("b", "rdma0")])


async def test_attachments_of_an_older_sandbox_are_no_longer_annotated(tmp_path):
    async with world(tmp_path) as w:
        pod = await w.run_pod()
        w.cluster.attached(given(pod, "a", "old"), {})
        await w.until(lambda: status(w) == [("a", "rdma0")])
        w.cluster.attached(given(pod, "b", "new"), {})
        await w.until(lambda: status(w) == [("b", "rdma0")])


async def test_pod_made_anew_has_no_interfaces_of_the_former_one_in_its_annotation(tmp_path):
    async with world(tmp_path) as w:
        pod = await w.run_pod()
        w.cluster.attached(given(replace(pod, uid=PodUid("before"))), {})
        await w.settled()
        assert w.asked("PATCH", "/p") == 1
        assert status(w) is None


async def test_failed_annotation_is_written_later_and_only_the_latest(tmp_path):
    async with world(tmp_path) as w:
        pod, other = await w.run_pod(), await w.run_pod("other")
        w.fault = lambda request: Response(status=503, body=b"") if request.method == "PATCH" else None
        w.cluster.attached(given(pod, "a"), {})
        w.cluster.attached(given(other), {})
        await w.until(lambda: w.asked("PATCH", "/p") >= 3)
        w.cluster.attached(given(pod, "b", "c2"), {})
        w.fault = None
        await w.until(lambda: status(w, "other") is not None and status(w) is not None)
        assert status(w) == [("b", "rdma0")]
        assert [pause for pause in w.clock.paused if pause in (1, 2, 4)][:3] == [1, 2, 4]


async def test_refusals_every_2_s_are_one_event_that_counts_them(tmp_path):
    async with world(tmp_path) as w:
        pod = await w.run_pod()
        for _ in range(61):
            w.cluster.refused(pod, FULL)
            await w.settled() if w.clock.seconds == 1000 else None
            w.clock.seconds += 2
        await w.until(lambda: [each["count"] for each in w.events() if each["type"] == "Warning"] == [61])
        [event] = [each for each in w.events() if each["type"] == "Warning"]
        assert (event["reason"], event["message"]) == ("RdmaInsufficient", "node w1: no room")
        assert event["involvedObject"]["uid"] == pod.uid
        assert event["source"] == {"component": "k8s-rdma-agent", "host": "w1"}
        assert event["firstTimestamp"] < event["lastTimestamp"]
        writes = w.asked("PATCH", event["metadata"]["name"])
        assert 1 <= writes <= 120 / REPEAT_S


async def test_another_cause_is_another_event_and_its_message_fits(tmp_path):
    async with world(tmp_path) as w:
        pod = await w.run_pod()
        w.cluster.refused(pod, FULL)
        w.cluster.refused(pod, K8sRdmaError("ä" * 2000, reason=Reason.MALFORMED_ANNOTATION))
        w.cluster.placed_anew(pod, "PF a had no room")
        w.cluster.annotation_ignored(pod, "k8s-rdma.io/polcy: unknown annotation")
        await w.until(lambda: len(w.events()) == 4)
        told = {each["reason"]: each for each in w.events()}
        assert set(told) == {
            "RdmaInsufficient",
            "RdmaMalformedAnnotation",
            "RdmaPlacedAnew",
            "RdmaUnknownAnnotation",
        }
        assert told["RdmaUnknownAnnotation"]["type"] == "Warning"
        assert told["RdmaPlacedAnew"]["type"] == "Normal"
        long = told["RdmaMalformedAnnotation"]["message"]
        assert MAX_MESSAGE_BYTES - 3 <= len(long.encode()) <= MAX_MESSAGE_BYTES
        assert long.endswith("ä ...")


async def test_cap_that_did_not_hold_is_an_event_by_whether_it_does_again(tmp_path):
    async with world(tmp_path) as w:
        pod = await w.run_pod()
        w.cluster.cap_altered(pod, "it was gone", restored=True)
        w.cluster.cap_altered(pod, "it is gone", restored=False)
        await w.until(lambda: len(w.events()) == 2)
        told = {each["reason"]: (each["type"], each["message"]) for each in w.events()}
        assert told == {
            "RdmaCapRestored": ("Warning", "it was gone"),
            "RdmaCapLost": ("Warning", "it is gone"),
        }


async def test_change_of_rates_is_an_event_by_whether_it_is_refused(tmp_path):
    async with world(tmp_path) as w:
        pod = await w.run_pod()
        w.cluster.rates_changed(pod, "programmed", refused=False)
        w.cluster.rates_changed(pod, "no room", refused=True)
        await w.until(lambda: len(w.events()) == 2)
        told = {each["reason"]: (each["type"], each["message"]) for each in w.events()}
        assert told == {
            "RdmaRatesChanged": ("Normal", "programmed"),
            "RdmaRatesRefused": ("Warning", "no room"),
        }


async def test_event_is_reported_again_once_the_time_of_day_was_put_back(tmp_path):
    """As a node's is that began with a wrong clock; no event would be reported until it is as late again."""
    async with world(tmp_path) as w:
        pod = await w.run_pod()
        w.cluster.rates_changed(pod, "first", refused=True)
        await w.until(lambda: len(w.events()) == 1)
        w.clock.seconds -= 365 * 86_400
        w.cluster.rates_changed(pod, "again", refused=True)
        await w.until(lambda: [each["message"] for each in w.events()] == ["again"])


async def test_event_that_expired_is_made_anew_with_its_count(tmp_path):
    async with world(tmp_path) as w:
        pod = await w.run_pod()
        w.cluster.refused(pod, FULL)
        await w.until(lambda: len(w.events()) == 1)
        name = w.events()[0]["metadata"]["name"]
        await w.http.delete(f"/api/v1/namespaces/default/events/{name}")
        w.clock.seconds += REPEAT_S
        w.cluster.refused(pod, FULL)
        await w.until(lambda: [each["count"] for each in w.events()] == [2])
        assert w.events()[0]["metadata"]["name"] != name


async def test_event_whose_making_was_not_answered_is_not_made_twice(tmp_path):
    async with world(tmp_path) as w:
        pod = await w.run_pod()
        lost = []

        def made_without_answer(request):
            if request.method == "POST" and request.path.endswith("/events") and not lost:
                lost.append(request)
                body = json.loads(request.body)
                w.store.put(EVENTS, {**body, "metadata": {**body["metadata"], "uid": "e"}})
                return Response(status=504, body=b"")
            return None

        w.fault = made_without_answer
        w.cluster.refused(pod, FULL)
        await w.until(
            lambda: w.asked("PATCH", (lost and json.loads(lost[0].body)["metadata"]["name"]) or "-") == 1
        )
        assert len(w.events()) == 1


async def test_pod_without_an_api_object_has_no_events(tmp_path):
    async with world(tmp_path) as w:
        pod = replace(receipt().pod, uid=PodUid("container:c1"))
        w.cluster.refused(pod, FULL)
        w.cluster.attached(given(pod), {})
        w.cluster.placed_anew(pod, "x")
        w.cluster.cap_altered(pod, "x", restored=True)
        await w.settled()
        assert len(w.events()) == 1  # of `settled`


async def test_event_is_given_up_when_the_agent_may_not_write_them(tmp_path):
    async with world(tmp_path) as w:
        pod = await w.run_pod()
        w.fault = lambda request: refusal(403) if request.path.endswith("/events") else None
        w.cluster.refused(pod, FULL)
        w.cluster.attached(given(pod), {})
        await w.until(lambda: status(w) is not None)
        assert w.asked("POST", "/events") == 1


async def refused_for(w, pod, seconds, error=FULL):
    """Refused every 10 s for so long, and once more."""
    for _ in range(int(seconds // 10)):
        w.cluster.refused(pod, error)
        w.clock.seconds += 10
    w.cluster.refused(pod, error)


async def test_eviction_is_tried_again_when_a_disruption_budget_forbade_it(tmp_path):
    async with world(tmp_path, stuck_after_s=60) as w:
        pod = await w.run_pod(phase="Running", labels={"app": "a"})
        await w.http.post(BUDGETS, json={"metadata": {"name": "b"}, "spec": {"selector": {}}})
        await refused_for(w, pod, 60)
        await w.until(lambda: w.asked("POST", "/eviction") == 1)
        await w.settled()
        assert "deletionTimestamp" not in w.pod()["metadata"]
        await w.patch(f"{BUDGETS}/b/status", {"status": {"disruptionsAllowed": 1}})
        w.clock.seconds += 2
        w.cluster.refused(pod, FULL)
        await w.until(lambda: "deletionTimestamp" in w.pod()["metadata"])


async def test_eviction_that_could_not_be_requested_in_time_spares_a_pod_that_runs_by_then(tmp_path):
    async with world(tmp_path, stuck_after_s=60) as w:
        pod = await w.run_pod()
        w.fault = lambda request: (
            Response(status=503, body=b"") if request.path.endswith("/eviction") else None
        )
        w.clock.goes_on.clear()
        await refused_for(w, pod, 60)
        await w.until(lambda: 1 in w.clock.paused)
        w.cluster.attached(given(pod), {})
        w.fault = None
        w.clock.goes_on.set()
        await w.until(lambda: status(w) is not None)
        await w.settled()
        assert "deletionTimestamp" not in w.pod()["metadata"]


async def test_write_that_fails_for_itself_alone_holds_up_no_other(tmp_path):
    async with world(tmp_path) as w:
        pod, other = await w.run_pod(), await w.run_pod("other")
        w.fault = lambda request: Response(status=500, body=b"") if request.path.endswith("/p") else None
        w.cluster.attached(given(pod), {})
        w.cluster.attached(given(other), {})
        await w.until(lambda: status(w, "other") is not None)
        await w.settled()
        assert status(w) is None
        w.fault = None
        await w.until(lambda: status(w) is not None)


async def test_no_write_is_tried_again_for_a_pod_that_is_gone(tmp_path):
    async with world(tmp_path) as w:
        pod = await w.run_pod()
        await w.promise(pod)
        await w.until(lambda: bool(w.cluster.placements()))
        w.fault = lambda request: Response(status=500, body=b"") if request.method == "PATCH" else None
        w.clock.goes_on.clear()
        w.cluster.attached(given(pod), {})
        await w.until(lambda: 1 in w.clock.paused)
        await w.delete(pod)
        await w.until(lambda: not w.cluster.placements())
        w.fault = None
        before = w.asked("PATCH", "/p")
        w.clock.goes_on.set()
        await w.settled()
        assert w.asked("PATCH", "/p") == before


async def test_pod_made_anew_is_not_evicted_for_the_one_before(tmp_path):
    async with world(tmp_path, stuck_after_s=60) as w:
        pod = await w.run_pod()
        await refused_for(w, replace(pod, uid=PodUid("before")), 60)
        await w.until(lambda: w.asked("POST", "/eviction") == 1)
        await w.settled()
        assert "deletionTimestamp" not in w.pod()["metadata"]


async def test_fault_in_telling_one_thing_loses_no_other(tmp_path):
    async with world(tmp_path) as w:
        pod = await w.run_pod()
        w.cluster.attached(given(replace(pod, name=7, uid=PodUid("x"))), {})  # type: ignore[arg-type]
        w.cluster.attached(given(pod), {})
        await w.until(lambda: status(w) is not None)


async def test_full_queue_drops_the_oldest_and_blocks_no_caller(tmp_path):
    async with world(tmp_path) as w:
        pod = await w.run_pod()
        w.fault = lambda request: Response(status=503, body=b"") if request.method == "PATCH" else None
        w.cluster.attached(given(pod), {})
        await w.until(lambda: w.asked("PATCH", "/p") >= 1)
        for number in range(600):
            w.cluster.attached(given(replace(pod, name=f"x{number}", uid=PodUid(f"x{number}"))), {})
        w.fault = None
        await w.until(lambda: w.asked("PATCH", "/x599") == 1)
        assert w.asked("PATCH", "/x0") == 0
        assert w.asked("PATCH", "/x87") == 0
        assert w.asked("PATCH", "/x89") == 1
