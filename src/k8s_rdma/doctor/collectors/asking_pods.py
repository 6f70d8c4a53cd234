"""Collects the facts of pods that ask for interfaces, with the events of those that are stuck."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from heapq import heappop, heappush
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from k8s_rdma.doctor.cluster.pods import FAILED_SCHEDULING, PodFact
from k8s_rdma.doctor.cluster.scheduler import DEFAULT_NAME
from k8s_rdma.doctor.collectors.objects import UNFINISHED, full_name
from k8s_rdma.doctor.collectors.rates import rates_fact
from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.api import MIRROR
from k8s_rdma.wire.annotation import read_request, request_text
from k8s_rdma.wire.annotation_keys import unknown_keys
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, key_named_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from k8s_rdma.core.namespace_policy import NamespacePolicies
    from k8s_rdma.core.request import Request
    from k8s_rdma.kube.documents import Documents

_LATER = 500
"""The most pods whose events are read."""
_EVENTS_OF_POD = 20
"""The latest are kept."""
_SETTLED_S = 60.0
"""A node reports a pod well within this time after the pod's start (`wire.rdma_node`)."""


def asking_pods(
    api: Documents,
    holding: Mapping[str, Mapping[str, int]],
    policies: NamespacePolicies | None = None,
    skews: Mapping[str, float | None] = MappingProxyType({}),
) -> tuple[PodFact, ...]:
    """Return unfinished pods that ask for interfaces or have a placement.

    The first pods that are stuck have their events.

    holding: the generations of rates that nodes report, by UID of pods with interfaces.
    policies: the operator's, if they are known.
    skews: of nodes' clocks, in seconds, by which kubelets date.
    """
    selected, facts = [], []
    for pod in api.items("/api/v1/pods", UNFINISHED):
        request = _request(pod)
        unknown = unknown_keys(_annotations(pod))
        has_request = request is None or bool(request) or PLACEMENT_ANNOTATION in _annotations(pod)
        if has_request or unknown:
            selected.append(pod)
            refused = "" if policies is None or request is None else _not_allowed(pod, request, policies)
            facts.append(
                replace(
                    _fact(pod),
                    has_request=has_request,
                    unknown_keys=unknown,
                    holds_interfaces=_holds_interfaces(api, pod, holding, skews),
                    not_allowed=refused,
                    rates=rates_fact(api, pod, request, holding),
                )
            )
    stuck = [pod for pod, fact in zip(selected, facts, strict=True) if _is_stuck(fact)]
    events = _events(api, stuck[:_LATER])
    of_pods = (events.get(str(pod["metadata"]["uid"]), ()) for pod in selected)
    return tuple(_with_events(fact, latest, api.now()) for fact, latest in zip(facts, of_pods, strict=True))


def _with_events(fact: PodFact, latest: tuple[tuple[str, str, str], ...], now: datetime) -> PodFact:
    pairs = tuple(event[1:] for event in latest)
    times = [time for time, reason, _ in latest if reason == FAILED_SCHEDULING]
    try:
        said_s_ago = (now - datetime.fromisoformat(times[-1])).total_seconds() if times else None
    except (ValueError, TypeError):  # not a time, or a time without a zone
        said_s_ago = None
    return replace(
        fact, events=pairs, said_s_ago=said_s_ago, rates=fact.rates and fact.rates.with_events(pairs)
    )


def _is_stuck(fact: PodFact) -> bool:
    if not fact.has_request:
        return False
    unprogrammed = fact.rates is not None and not fact.rates.is_programmed
    return unprogrammed or not (fact.running and fact.placed)


def _annotations(pod: dict[str, Any]) -> dict[str, str]:
    return pod["metadata"].get("annotations") or {}


def _request(pod: dict[str, Any]) -> Request | None:
    """Return the pod's request; if its annotation is malformed, the pod has no request and cannot start."""
    try:
        return read_request(request_text(_annotations(pod)), strict=False).request
    except MalformedError:
        return None


def _not_allowed(pod: dict[str, Any], request: Request, policies: NamespacePolicies) -> str:
    """Return the namespace policy's refusal; empty if it allows the pod."""
    try:
        policies.permit(str(pod["metadata"].get("namespace")), request)
    except MalformedError as error:
        return error.message
    return ""


def _events(api: Documents, pods: Sequence[dict[str, Any]]) -> dict[str, tuple[tuple[str, str, str], ...]]:
    """Return time, reason and message of the latest events, the latest last, by the pods' UIDs.

    Each namespace is listed once, page by page, because the API server keeps no index of events: for each
    list it reads all events of the namespace, even if a selector picks only some.
    """
    found: dict[str, list[tuple[str, int, str, str]]] = {str(pod["metadata"]["uid"]): [] for pod in pods}
    number = count()
    for namespace in sorted({str(pod["metadata"]["namespace"]) for pod in pods}):
        path = f"/api/v1/namespaces/{namespace}/events"
        for event in api.items(path, {"fieldSelector": "involvedObject.kind=Pod"}):
            latest = found.get(str((event.get("involvedObject") or {}).get("uid")))
            if latest is None:
                continue
            again = (event.get("series") or {}).get("lastObservedTime")
            timestamp = str(event.get("lastTimestamp") or again or event.get("eventTime") or "")
            heappush(
                latest, (timestamp, next(number), str(event.get("reason", "")), str(event.get("message", "")))
            )
            if len(latest) > _EVENTS_OF_POD:
                heappop(latest)
    return {
        uid: tuple((time, reason, message) for time, _, reason, message in sorted(latest))
        for uid, latest in found.items()
    }


def _holds_interfaces(
    api: Documents,
    pod: dict[str, Any],
    holding: Mapping[str, Mapping[str, int]],
    skews: Mapping[str, float | None],
) -> bool | None:
    """Report whether the node lists the pod, if its report is known and the pod is not young."""
    node = str(pod["spec"].get("nodeName") or "")
    uids = holding.get(node)
    started = pod.get("status", {}).get("startTime")
    if uids is None or not started:
        return None
    age_s = (api.now() - datetime.fromisoformat(started)).total_seconds() + (skews.get(node) or 0.0)
    meta = pod["metadata"]
    pod_uids = {meta["uid"], _annotations(pod).get(MIRROR)}
    return not pod_uids.isdisjoint(uids) if age_s > _SETTLED_S else None


def _fact(pod: dict[str, Any]) -> PodFact:
    placement = _annotations(pod).get(PLACEMENT_ANNOTATION)
    return PodFact(
        name=full_name(pod),
        node=str(pod["spec"].get("nodeName") or ""),
        placed=placement is not None,
        running=pod.get("status", {}).get("phase") == "Running",
        host_network=pod["spec"].get("hostNetwork") is True,
        group=str((pod["spec"].get("schedulingGroup") or {}).get("podGroupName") or ""),
        scheduler=str(pod["spec"].get("schedulerName") or DEFAULT_NAME),
        key=key_named_in(placement or ""),
    )
