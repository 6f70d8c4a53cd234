"""Pods that wait by ResourceClaim, read from the API server for pages that are open.

The extender knows no claims. kube-scheduler decides on them, and says of a pod only that it cannot allocate
all claims; the reason is found here as `k8s-rdma explain` finds it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, partial
from threading import Thread
from typing import TYPE_CHECKING, Any

import structlog

from k8s_rdma.core.claim_fit import ClaimNode, ClaimsRequest, judge
from k8s_rdma.core.placement import Placement
from k8s_rdma.core.refusal import count
from k8s_rdma.errors import K8sRdmaError, MalformedError
from k8s_rdma.kube.bounded_http import MAX_PODS_BYTES
from k8s_rdma.kube.documents import Documents, segment
from k8s_rdma.web.open_pages import OpenPages
from k8s_rdma.wire.claim_documents import ClaimDocuments, claim_documents
from k8s_rdma.wire.claim_template import DEVICE_CLASS
from k8s_rdma.wire.cluster_claims import (
    API,
    SLICES_QUERY,
    ClaimOfPod,
    OurClasses,
    claim_nodes,
    class_names,
    consumption,
    our_classes,
    pod_claims,
    read_claims,
)
from k8s_rdma.wire.extended_resources import EXTENDED_RESOURCES, claim_spec, has_extended_resources
from k8s_rdma.wire.views import PendingRow

if TYPE_CHECKING:
    from k8s_rdma.core.devices.requests import CelSelector
    from k8s_rdma.wire.cluster_claims import Claims

EVERY_S = 10.0
"""The least time between two readings; as `top` has it."""

MAX_PODS = 1000
"""The limit for pods with claims; by turns of their namespaces, as with all these bounds."""

MAX_REQUESTS = 16
"""Distinct requests that are judged on all nodes, each in a second at most."""

MAX_TEMPLATES = 64
"""Templates that are read of claims that are not generated yet."""

_PENDING = {"fieldSelector": "spec.nodeName=,status.phase=Pending"}
_NOT_JUDGED = "why is not found here, of too many different pods: k8s-rdma explain"

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ClaimPods:
    """Pods that wait by claim, those that wait longest first.

    unlisted: pods with claims that were not read.
    read_at: seconds; None before the first reading.
    failure: why the last one failed; empty if it did not.
    """

    rows: tuple[PendingRow, ...] = ()
    unlisted: int = 0
    read_at: float | None = None
    failure: str = ""


@dataclass(slots=True, kw_only=True)
class ClaimPodReader:
    """Reads while pages want it.

    connect: makes a connection to the API server; None to read no pods.
    clock: seconds. Blocking calls run in a thread, one reading at a time.
    """

    connect: Callable[[], AbstractContextManager[Documents]] | None
    clock: Callable[[], float]
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    latest: ClaimPods = field(default_factory=ClaimPods)
    _pages: OpenPages = field(init=False)

    def __post_init__(self) -> None:
        """Begin without open pages."""
        self._pages = OpenPages(self.clock)

    @property
    def is_on(self) -> bool:
        """Report whether claims are read at all."""
        return self.connect is not None

    def want(self) -> ClaimPods:
        """Have claims read from now on; return the present result, without results of an earlier time."""
        if not self._pages.load():
            self.latest = ClaimPods()
        return self.latest

    async def run(self) -> None:
        """Read until cancelled; return at once without a connection."""
        if self.connect is None:
            return
        while True:
            await self._pages.wait()
            await self._read(self.connect)
            await self.pause(EVERY_S)

    async def _read(self, connect: Callable[[], AbstractContextManager[Documents]]) -> None:
        try:
            found = await _in_thread(lambda: _read_by(connect))
        except K8sRdmaError as error:
            if not self.latest.failure:
                _log.warning("claims_unread", error=error.message)
            self.latest = ClaimPods(read_at=self.clock(), failure=error.message)
        else:
            self.latest = replace(found, read_at=self.clock())


async def _in_thread(call: Callable[[], ClaimPods]) -> ClaimPods:
    """Await a blocking call. Its thread does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[ClaimPods] = loop.create_future()

    def finish(set_result: Callable[[], None]) -> None:
        if not result.done():
            set_result()

    def work() -> None:
        try:
            found = call()
        except Exception as error:
            outcome = partial(result.set_exception, error)
        else:
            outcome = partial(result.set_result, found)
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(finish, outcome)

    Thread(target=work, name="claims", daemon=True).start()
    return await result


def _read_by(connect: Callable[[], AbstractContextManager[Documents]]) -> ClaimPods:
    with connect() as api:
        return waiting_by_claim(api)


def waiting_by_claim(api: Documents) -> ClaimPods:
    """List the pods that are bound to no node and ask for our PFs by claim. K8sRdmaError when that fails."""
    pods = [_Waiting.read(pod) for pod in api.items("/api/v1/pods", _PENDING, max_bytes=MAX_PODS_BYTES)]
    every = _by_turns([pod for pod in pods if pod is not None])
    waiting = every[:MAX_PODS]
    if not waiting:
        return ClaimPods()
    names = {(pod.namespace, entry.claim) for pod in waiting for entry in pod.entries if entry.claim}
    claims: dict[tuple[str, str], Mapping[str, Any]] = {}
    used = consumption(_keep(api.items(f"{API}/resourceclaims"), names, claims))
    classes = tuple(api.items(f"{API}/deviceclasses"))
    nodes = claim_nodes(api.items(f"{API}/resourceslices", SLICES_QUERY), used)
    judge_rows = _Judge(api=api, claims=claims, class_documents=classes, nodes=nodes)
    rows = [row for pod in waiting for row in judge_rows.rows(pod)]
    return ClaimPods(
        rows=tuple(sorted(rows, key=lambda row: -row.waits_s)),
        unlisted=len(every) - len(waiting) + judge_rows.unread,
    )


def _by_turns(pods: Iterable[_Waiting]) -> list[_Waiting]:
    """Order pods by turns of their namespaces: each one's oldest first, then each one's next."""
    numbers: Counter[str] = Counter()
    turns = []
    for pod in sorted(pods, key=lambda pod: pod.created):
        turns.append((numbers[pod.namespace], pod))
        numbers[pod.namespace] += 1
    return [pod for _, pod in sorted(turns, key=lambda turn: turn[0])]


def _keep(
    documents: Iterable[dict[str, Any]],
    names: set[tuple[str, str]],
    found: dict[tuple[str, str], Mapping[str, Any]],
) -> Iterator[dict[str, Any]]:
    """Pass objects on, and keep those with these names: a cluster may have 100,000 claims."""
    for document in documents:
        meta = document["metadata"]
        name = str(meta.get("namespace")), str(meta.get("name"))
        if name in names:
            found[name] = document
        yield document


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    """A pod that waits. document: kept of pods with extended resources alone."""

    namespace: str
    name: str
    uid: str
    created: str
    entries: tuple[ClaimOfPod, ...] = ()
    document: Mapping[str, Any] | None = None

    @classmethod
    def read(cls, pod: Mapping[str, Any]) -> _Waiting | None:
        """Read a pod, if it has claims that can be read."""
        meta = pod["metadata"]
        try:
            entries = pod_claims(pod)
            has_resources = has_extended_resources(pod)
        except MalformedError:
            return None  # no API server stores such a pod
        if not entries and not has_resources:
            return None
        return cls(
            namespace=str(meta.get("namespace")),
            name=str(meta.get("name")),
            uid=str(meta.get("uid")),
            created=str(meta.get("creationTimestamp")),
            entries=entries,
            document=pod if has_resources else None,
        )


@dataclass(kw_only=True)
class _Judge:
    """Makes rows. claims: by namespace and name. unread: pods whose templates are beyond the bound."""

    api: Documents
    claims: Mapping[tuple[str, str], Mapping[str, Any]]
    class_documents: tuple[Mapping[str, Any], ...]
    nodes: tuple[ClaimNode, ...]
    unread: int = 0
    _templates: dict[tuple[str, str], Mapping[str, Any] | None] = field(default_factory=dict)
    _verdicts: dict[tuple[object, ...], str] = field(default_factory=dict)

    @cached_property
    def classes(self) -> OurClasses:
        """All DeviceClasses; one that cannot be read is not ours."""
        found: dict[str, tuple[CelSelector, ...] | None] = {}
        for document in self.class_documents:
            name = str(document["metadata"]["name"])
            try:
                found |= our_classes({name: document}).selectors
            except MalformedError:
                found[name] = None
        return OurClasses(found)

    @cached_property
    def ours(self) -> frozenset[str]:
        """The names of our DeviceClasses, including that of the chart even if it does not exist."""
        return frozenset(name for name, found in self.classes.selectors.items() if found is not None) | {
            DEVICE_CLASS
        }

    def rows(self, pod: _Waiting) -> Iterator[PendingRow]:
        """Make the row of a pod, if it asks for a device of ours."""
        if not self._read_templates(pod):
            self.unread += 1
            return
        documents, missing, _ = self._documents(pod)
        try:
            named = class_names(documents.values())
            if not named & self.ours:
                return
            found = read_claims(documents, self.classes, pod.uid)
        except MalformedError as error:
            yield self._row(pod, 0, 0, error.message)
            return
        if not found.request.requests and not found.allocated:
            return
        units = [unit for preferred, *_ in found.request.requests for unit in [preferred] * preferred.count]
        allocated_pfs = [pf for claim in found.allocated.values() for pf in claim.pfs]
        yield self._row(
            pod,
            len(units) + sum(pf.interfaces for pf in allocated_pfs),
            sum(unit.mbps for unit in units) + sum(pf.reserved_mbps for pf in allocated_pfs),
            "; ".join((*missing, *self._reasons(found))),
        )

    def _row(self, pod: _Waiting, interfaces: int, mbps: int, why: str) -> PendingRow:
        waits_s = _age_s(pod.created, self.api.now())
        return PendingRow(
            pod=f"{pod.namespace}/{pod.name}",
            interfaces=interfaces,
            reserved_mbps=mbps,
            ago_s=waits_s,
            waits_s=waits_s,
            why=why,
        )

    def _reasons(self, found: Claims) -> Iterator[str]:
        if not found.request.requests:
            yield "its claims are allocated; kubectl describe pod says what else it waits for"
            return
        request = found.request
        key = request.requests, request.constraints
        if request.allocated:
            yield self._verdict(request)
        elif key in self._verdicts or len(self._verdicts) < MAX_REQUESTS:
            if key not in self._verdicts:
                self._verdicts[key] = self._verdict(request)
            yield self._verdicts[key]
        else:
            yield _NOT_JUDGED

    def _verdict(self, request: ClaimsRequest) -> str:
        causes = Counter(
            "fits, and waits for what else it needs" if isinstance(verdict, Placement) else verdict.cause
            for _, verdict in judge(request, self.nodes)
        )
        if not causes:
            return "no node has PFs for claims"
        return "; ".join(f"{count(number, 'node')}: {cause}" for cause, number in causes.most_common(5))

    def _documents(self, pod: _Waiting) -> ClaimDocuments:
        """Return a pod's claims, or templates of those that are not generated, and the missing objects."""
        documents = claim_documents(
            pod.namespace,
            pod.entries,
            claim_of=lambda name: self.claims.get((pod.namespace, name)),
            template_of=lambda name: self._templates[pod.namespace, name],
        )
        if pod.document is not None and EXTENDED_RESOURCES not in documents.found:
            spec = claim_spec(pod.document, self.class_documents)
            if spec:
                documents.found[EXTENDED_RESOURCES] = {"spec": spec}
        return documents

    def _read_templates(self, pod: _Waiting) -> bool:
        """Read the templates of claims that are not generated; False if that are too many."""
        in_namespace = f"{API}/namespaces/{segment(pod.namespace)}/resourceclaimtemplates"
        for entry in pod.entries:
            if entry.claim or not entry.template or (pod.namespace, entry.template) in self._templates:
                continue
            if len(self._templates) >= MAX_TEMPLATES:
                return False
            found = self.api.get_object(f"{in_namespace}/{segment(entry.template)}")
            self._templates[pod.namespace, entry.template] = (
                None if found is None else found.get("spec") or {}
            )
        return True


def _age_s(created: str, now: datetime) -> float:
    try:
        return max(0.0, (now - datetime.fromisoformat(created)).total_seconds())
    except (ValueError, TypeError):
        return 0.0
