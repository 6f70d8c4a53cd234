"""Events of pods that are stuck, of a cluster that has many of both."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from k8s_rdma.core.namespace_policy import NO_POLICIES
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.types import NodeName, PciAddress, PodUid
from k8s_rdma.doctor.cluster.pods import PodFacts, check_pods
from k8s_rdma.doctor.collectors.asking_pods import asking_pods
from k8s_rdma.wire.ed25519_keys import PrivateKey
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, encode
from k8s_rdma.wire.placement_keys import PlacementKeys

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PODS = "/api/v1/pods"


class Listed:
    """In the place of the API server: answers lists, and counts them by path."""

    def __init__(self, pods: int, events: int) -> None:
        self.lists: list[str] = []
        self.pods = [_pod(number) for number in range(pods)]
        self._events = events

    def now(self) -> datetime:
        return datetime.now(UTC)

    def items(self, path: str, query: Mapping[str, str] | None = None) -> Iterator[dict[str, Any]]:
        self.lists.append(path)
        if path == PODS:
            return iter(self.pods)
        selected = (query or {}).get("fieldSelector", "").removeprefix("involvedObject.uid=")
        namespace = path.split("/")[4]
        of_pods = (pod for pod in self.pods if pod["metadata"]["namespace"] == namespace)
        return (
            _event(pod, number)
            for pod in of_pods
            if selected in (pod["metadata"]["uid"], "involvedObject.kind=Pod")
            for number in range(self._events)
        )


def _pod(number: int) -> dict[str, Any]:
    annotations = {"rdma_interfaces_required": "[{}]"}
    meta = {"namespace": f"team-{number % 2}", "name": f"p{number}", "uid": f"u{number}"}
    return {"metadata": meta | {"annotations": annotations}, "spec": {}, "status": {"phase": "Pending"}}


def _event(pod: dict[str, Any], number: int) -> dict[str, Any]:
    """The latest, of number 0, comes first, as etcd's order is that of names."""
    at = datetime.fromtimestamp(1_800_000_000 - number, UTC).isoformat()
    told = {"reason": "FailedScheduling", "message": f"{pod['metadata']['name']}: {number}"}
    return {"involvedObject": {"uid": pod["metadata"]["uid"]}, "lastTimestamp": at, **told}


def test_events_are_listed_once_for_a_namespace_however_many_pods_are_stuck_there() -> None:
    api = Listed(pods=194, events=3)
    found = asking_pods(api, {})
    events = ["/api/v1/namespaces/team-0/events", "/api/v1/namespaces/team-1/events"]
    assert sorted(api.lists) == [*events, PODS]
    assert {each.name: [message for _, message in each.events] for each in found} == {
        f"team-{at % 2}/p{at}": [f"p{at}: 2", f"p{at}: 1", f"p{at}: 0"] for at in range(194)
    }


def test_pods_that_the_policy_of_now_refuses_are_known_whether_bound_or_not() -> None:
    api, trusting = Listed(pods=4, events=0), {"rdma_interfaces_required": '[{"trust": true}]'}
    for pod in api.pods[:2]:
        pod["metadata"]["annotations"] = trusting
    api.pods[1]["spec"]["nodeName"] = "w1"
    api.pods[2]["metadata"]["annotations"] = {"rdma_interfaces_required": "["}
    found = {each.name: each.not_allowed for each in asking_pods(api, {}, NO_POLICIES)}
    why = "may not have trust true (interface 0): no policy is for it"
    assert found == {
        "team-0/p0": f"namespace team-0 {why}",
        "team-1/p1": f"namespace team-1 {why}",
        "team-0/p2": "",
        "team-1/p3": "",
    }
    assert not any(each.not_allowed for each in asking_pods(api, {}))


def test_pod_that_misspells_its_annotation_has_one_finding() -> None:
    api = Listed(pods=3, events=1)
    api.pods[0]["metadata"]["annotations"] = {"k8s-rdma.io/interface": "[{}]"}
    api.pods[1]["metadata"]["annotations"] = {"other.example.org/interface": "[{}]"}
    misspelt, asking = asking_pods(api, {})
    assert (misspelt.name, misspelt.has_request, misspelt.events) == ("team-0/p0", False, ())
    assert (asking.name, asking.has_request, asking.unknown_keys) == ("team-0/p2", True, ())
    [finding, *_] = [each for each in check_pods(PodFacts(pods=(misspelt,))) if each.about]
    assert finding.found.endswith("did you mean k8s-rdma.io/interfaces?")


def test_pod_with_a_placement_names_its_key_also_without_a_request() -> None:
    api, keys = Listed(pods=3, events=0), PlacementKeys.from_keys(PrivateKey(bytes(32)))
    placement = Placement(node=NodeName("w1"), interfaces=(PlacedInterface(pf=PciAddress("0000:03:00.0")),))
    for pod, by in zip(api.pods, (keys, PlacementKeys.shared(b"a secret of a cluster"), None), strict=True):
        text = encode(placement, PodUid(pod["metadata"]["uid"]), by)
        pod["metadata"]["annotations"] = {PLACEMENT_ANNOTATION: text}
    assert [each.key for each in asking_pods(api, {})] == [keys.accepted[0].id, "hmac", ""]


def test_the_latest_events_of_a_pod_are_kept_when_it_has_many() -> None:
    [found] = asking_pods(Listed(pods=1, events=1000), {})
    assert [message for _, message in found.events] == [f"p0: {number}" for number in reversed(range(20))]


@pytest.mark.parametrize(
    ("times", "age_s"),
    [
        ({"lastTimestamp": 240}, 240),
        ({"eventTime": 900}, 900),
        ({"eventTime": 900, "series": 60}, 60),
        ({"lastTimestamp": None}, None),
    ],
)
def test_schedulers_word_has_the_age_of_its_latest_event(times: dict[str, int], age_s: float | None) -> None:
    """As when it met an extender that restarted: the message is of an outage that is over."""
    api = Listed(pods=1, events=0)
    now = api.now()

    def at(seconds: int | None) -> str | None:
        return None if seconds is None else (now - timedelta(seconds=seconds)).isoformat()

    dated = {key: at(seconds) for key, seconds in times.items()}
    if "series" in dated:
        dated["series"] = {"count": 2, "lastObservedTime": dated["series"]}
    event = {
        **_event(api.pods[0], 0),
        "lastTimestamp": None,
        "message": 'Post "http://x/filter": EOF',
        **dated,
    }

    class WithEvent(Listed):
        def items(self, path: str, query: Mapping[str, str] | None = None) -> Iterator[dict[str, Any]]:
            return iter(self.pods) if path == PODS else iter([event])

    [found] = asking_pods(WithEvent(pods=1, events=0), {})
    assert found.events[-1][1].endswith("EOF")
    assert found.said_s_ago == (None if age_s is None else pytest.approx(age_s, abs=30))
