"""Pods that ask for interfaces, with the events of those that wait."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any

from k8s_rdma.doctor.cluster.pods import PodFact
from k8s_rdma.doctor.cluster.scheduler_file import DEFAULT_NAME
from k8s_rdma.doctor.looking.versions import UNFINISHED
from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.api import MIRROR
from k8s_rdma.wire.annotation import ANNOTATION, read_request
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, key_named_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from k8s_rdma.core.namespace_policy import NamespacePolicies
    from k8s_rdma.core.request import Request
    from k8s_rdma.kube.documents import Documents

_LATER = 500
"""Pods whose events are looked at."""
_EVENTS_OF_POD = 20
"""The latest are kept."""
_SETTLED_S = 60.0
"""After its start, a node has told of a pod long since (`wire.rdma_node`)."""


def asking_pods(
    api: Documents,
    holding: Mapping[str, frozenset[str]],
    policies: NamespacePolicies | None = None,
) -> tuple[PodFact, ...]:
    """Unfinished ones that ask for any or have a placement; events of the first that are stuck.

    holding: UIDs of pods with interfaces, of the nodes that tell of them. policies: the operator's; None
    where they are not known.
    """
    asking, facts = [], []
    for pod in api.items("/api/v1/pods", UNFINISHED):
        request = _request(pod)
        if request is None or request or PLACEMENT_ANNOTATION in _annotations(pod):
            asking.append(pod)
            refused = "" if policies is None or request is None else _not_allowed(pod, request, policies)
            facts.append(replace(_fact(pod), held=_held(api, pod, holding), not_allowed=refused))
    stuck = [pod for pod, fact in zip(asking, facts, strict=True) if not (fact.running and fact.placed)]
    events = _events(api, stuck[:_LATER])
    return tuple(
        replace(fact, events=events.get(str(pod["metadata"]["uid"]), ()))
        for pod, fact in zip(asking, facts, strict=True)
    )


def full_name(obj: dict[str, Any]) -> str:
    """`namespace/name` of an object."""
    return f"{obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}"


def _annotations(pod: dict[str, Any]) -> dict[str, str]:
    return pod["metadata"].get("annotations") or {}


def _request(pod: dict[str, Any]) -> Request | None:
    """What it asks for; None where its annotation is malformed, so that nobody starts it."""
    try:
        return read_request(_annotations(pod).get(ANNOTATION), strict=False).request
    except MalformedError:
        return None


def _not_allowed(pod: dict[str, Any], request: Request, policies: NamespacePolicies) -> str:
    """What of it the policy of its namespace refuses; empty where nothing."""
    try:
        policies.permit(str(pod["metadata"].get("namespace")), request)
    except MalformedError as error:
        return error.message
    return ""


def _events(api: Documents, pods: Sequence[dict[str, Any]]) -> dict[str, tuple[tuple[str, str], ...]]:
    """Reason and message of the latest events, the latest last, by the pods' UIDs.

    One list for each namespace, page by page: the API server keeps no index of events, and reads all of a
    namespace for each list, whichever of them the list is to select.
    """
    found: dict[str, list[tuple[str, int, str, str]]] = {str(pod["metadata"]["uid"]): [] for pod in pods}
    number = count()
    for namespace in sorted({str(pod["metadata"]["namespace"]) for pod in pods}):
        path = f"/api/v1/namespaces/{namespace}/events"
        for event in api.items(path, {"fieldSelector": "involvedObject.kind=Pod"}):
            latest = found.get(str((event.get("involvedObject") or {}).get("uid")))
            if latest is None:
                continue
            at = str(event.get("lastTimestamp") or event.get("eventTime") or "")
            heappush(latest, (at, next(number), str(event.get("reason", "")), str(event.get("message", ""))))
            if len(latest) > _EVENTS_OF_POD:
                heappop(latest)
    return {uid: tuple(each[2:] for each in sorted(latest)) for uid, latest in found.items()}


def _held(api: Documents, pod: dict[str, Any], holding: Mapping[str, frozenset[str]]) -> bool | None:
    """Whether its node tells of its interfaces; None where it tells of nobody's, or the pod is young."""
    uids = holding.get(str(pod["spec"].get("nodeName") or ""))
    started = pod.get("status", {}).get("startTime")
    if uids is None or not started:
        return None
    settled = (api.now() - datetime.fromisoformat(started)).total_seconds() > _SETTLED_S
    meta = pod["metadata"]
    known_as = {meta["uid"], _annotations(pod).get(MIRROR)}
    return not uids.isdisjoint(known_as) if settled else None


def _fact(pod: dict[str, Any]) -> PodFact:
    placement = _annotations(pod).get(PLACEMENT_ANNOTATION)
    return PodFact(
        name=full_name(pod),
        node=str(pod["spec"].get("nodeName") or ""),
        placed=placement is not None,
        running=pod.get("status", {}).get("phase") == "Running",
        scheduler=str(pod["spec"].get("schedulerName") or DEFAULT_NAME),
        key=key_named_in(placement or ""),
    )
