"""The HTTP application: paths, access, and the headers that keep browsers from doing more than showing it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from k8s_rdma import __version__
from k8s_rdma.core.refusal import count
from k8s_rdma.errors import MalformedError, visible
from k8s_rdma.http_server.asgi import PROBE_PATHS, READ_METHODS, Answer, Receive, Scope, Send
from k8s_rdma.kube.errors import API_ERRORS
from k8s_rdma.web import pages
from k8s_rdma.web.access import AccessRule, Denial, Viewer, Visibility
from k8s_rdma.web.claim_pods import ClaimPodReader
from k8s_rdma.web.extender_views import ExtenderViews
from k8s_rdma.web.holdings import Holdings, KnownTraffic
from k8s_rdma.web.node_traffic import NodeTraffic
from k8s_rdma.web.pages import IndexedSnapshot, ListQuery, Part, Pending, namespace_of
from k8s_rdma.web.right_sizing import RecordList, RecordReader
from k8s_rdma.web.source import SourceUnavailableError
from k8s_rdma.web.traffic import PfName, PrometheusTraffic
from k8s_rdma.wire.views import Sort, causes_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from k8s_rdma.web.node_traffic import Measured
    from k8s_rdma.wire.views import Explanation, HolderRow, NodeRow, PendingRow

_HERE = Path(__file__).parent
_HTML = "text/html; charset=utf-8"
_FILES = {"style.css": "text/css; charset=utf-8", "icon.svg": "image/svg+xml"}

HEADERS: Mapping[str, str] = {
    "content-security-policy": "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}
"""Headers of every answer: it runs no script, loads no content of others, and is part of no other page."""

_TITLES = {
    400: "This address is not understood",
    401: "Who are you?",
    403: "Not for you",
    404: "There is no such page",
    405: "This page only reads",
    429: "Not so fast",
    503: "No data",
}

_NAME = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
"""A DNS subdomain of RFC 1123, as names of nodes and pods are."""

MAX_PAGES_OF_VIEWER = 32
"""Pages of one viewer that are being made at a time; behind a proxy all viewers have its address."""

_NO_HOLDERS = ("the extender does not say who holds what: it is of an older version",)

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class PageRequest:
    """An admitted request. names: of the path."""

    viewer: Viewer
    query: ListQuery
    names: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The sources of the pages."""

    extender: ExtenderViews
    traffic: PrometheusTraffic
    nodes: NodeTraffic
    claims: ClaimPodReader
    records: RecordReader


class WebApp:
    """ASGI application of the pages."""

    def __init__(
        self, sources: Sources, access: AccessRule, *, pages_of_viewer: int = MAX_PAGES_OF_VIEWER
    ) -> None:
        """pages_of_viewer: that may be made at a time."""
        self._extender = sources.extender
        self._traffic = sources.traffic
        self._nodes = sources.nodes
        self._claims = sources.claims
        self._records = sources.records
        self._access = access
        self._pages_of_viewer = pages_of_viewer
        self._in_progress: Counter[str] = Counter()
        self._templates = _environment()
        self._open = _open_paths()
        self._indexed: IndexedSnapshot | None = None
        self._routes: tuple[tuple[re.Pattern[str], Callable[[PageRequest], Awaitable[Answer]]], ...] = (
            (re.compile("/"), self._overview),
            (re.compile("/pending"), self._pending),
            (re.compile("/right-sizing"), self._right_sizing),
            (re.compile(f"/nodes/(?P<node>{_NAME})"), self._node),
            (re.compile(f"/namespaces/(?P<namespace>{_NAME})"), self._namespace),
            (re.compile(f"/pods/(?P<namespace>{_NAME})/(?P<pod>{_NAME})"), self._pod),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        await (await self._answer(scope))(scope, receive, send)

    async def _answer(self, scope: Scope) -> Answer:
        path, method = scope["path"], scope["method"]
        if method not in READ_METHODS:
            return self._error(405, f"{method}: it answers GET and HEAD", {"allow": ", ".join(READ_METHODS)})
        if path in self._open:
            return self._open[path]
        try:
            return await self._show(scope)
        except MalformedError as error:
            return self._error(400, error.message)
        except SourceUnavailableError as error:
            return self._error(503, error.message)
        except API_ERRORS as error:
            _log.warning("review_failed", error=error.message)
            return self._error(503, "the API server does not say what you may see; try again")

    async def _show(self, scope: Scope) -> Answer:
        viewer = await self._access.admit(scope)
        if isinstance(viewer, Denial):
            return self._error(viewer.status, viewer.message, viewer.headers)
        for pattern, page in self._routes:
            if match := pattern.fullmatch(scope["path"]):
                query = ListQuery.parse(scope["query_string"])
                return await self._make(page, PageRequest(viewer, query, match.groupdict()))
        return self._error(404, "look for it from the first page")

    async def _make(self, page: Callable[[PageRequest], Awaitable[Answer]], request: PageRequest) -> Answer:
        """Make a page, unless too many of the viewer are being made."""
        party = request.viewer.party
        if self._in_progress[party] >= self._pages_of_viewer:
            message = f"{self._pages_of_viewer} pages of yours are being made already; try again"
            return self._error(429, message, {"retry-after": "1"})
        self._in_progress[party] += 1
        try:
            return await page(request)
        finally:
            self._in_progress[party] -= 1
            self._in_progress += Counter()  # drops viewers without any

    async def _overview(self, request: PageRequest) -> Answer:
        cluster = self._cluster()
        pending = await self._visible_pending(cluster, request.viewer, text="")
        nodes = cluster.list_nodes(request.query)
        measured = self._measure(request, cluster, (row.name for row in nodes.rows))
        return self._page(
            "overview.html",
            request.query,
            cluster=cluster,
            **self._notes(cluster),
            problems=await self._visible_problems(nodes.rows, request.viewer),
            pending=pending,
            first_pods=pending.rows[: pages.FIRST_PODS],
            nodes=nodes,
            sent_mbps=self._sent_mbps(measured),
            measured=measured,
            orders=list(Sort),
        )

    async def _pending(self, request: PageRequest) -> Answer:
        cluster = self._cluster()
        pending = await self._visible_pending(cluster, request.viewer, request.query.text)
        rows = [row for row in pending.rows if request.query.text in row.pod]
        part = Part.cut(rows, number=request.query.page, size=pages.PODS_ON_A_PAGE)
        return self._page("pending.html", request.query, pending=pending, pods=part, **self._notes(cluster))

    async def _right_sizing(self, request: PageRequest) -> Answer:
        latest, text = self._records.want(), request.query.text
        rows = sorted(latest.workloads, key=lambda row: text not in row.name)
        visibility = await request.viewer.visibility(dict.fromkeys(row.namespace for row in rows))
        return self._page(
            "right_sizing.html",
            request.query,
            is_on=self._records.is_on,
            latest=latest,
            is_being_read=self._records.is_on and not latest.is_read,
            records=RecordList.select(latest.workloads, visibility, request.query),
        )

    async def _node(self, request: PageRequest) -> Answer:
        cluster = self._cluster()
        node = cluster.nodes.get(request.names["node"])
        if node is None:
            return self._error(404, f"the extender knows no node {request.names['node']}")
        view = await self._extender.holders(request.viewer.party, node.name)
        rows, notes = (view.holders, view.notes) if view else ((), _NO_HOLDERS)
        visibility = await request.viewer.visibility(dict.fromkeys(row.namespace for row in rows))
        holdings = Holdings.select(rows, visibility, request.query.page)
        measured = self._measure(request, cluster, [node.name])
        flows = await self._traffic.flows(request.viewer.party, node=node.name)
        return self._page(
            "node.html",
            request.query,
            cluster=cluster,
            node=node,
            problems=(await self._visible_problems([node], request.viewer))[node.name],
            sent_mbps=self._sent_mbps(measured),
            measured=measured,
            holdings=holdings,
            pods=tuple(holdings.by_pod(KnownTraffic(measured=measured, flows=flows))),
            notes=notes,
        )

    async def _namespace(self, request: PageRequest) -> Answer:
        name = request.names["namespace"]
        visibility = await request.viewer.visibility([name])
        if not visibility.namespaces:
            return self._error(403, f"you may not list pods of namespace {name}")
        cluster, view = self._cluster(), await self._extender.namespace(request.viewer.party, name)
        if view is None:
            return self._error(503, _NO_HOLDERS[0])
        pending = [row for row in self._waiting(cluster) if namespace_of(row.pod) == name]
        holdings = Holdings.select(view.holders, visibility, request.query.page)
        measured = self._measure(request, cluster, holdings.nodes)
        flows = await self._traffic.flows(request.viewer.party, namespace=name)
        return self._page(
            "namespace.html",
            request.query,
            namespace=view,
            pending=pending,
            **self._notes(cluster),
            measured=measured,
            holdings=holdings,
            pods=tuple(holdings.by_pod(KnownTraffic(measured=measured, flows=flows))),
        )

    async def _pod(self, request: PageRequest) -> Answer:
        namespace, name = request.names["namespace"], request.names["pod"]
        if not (await request.viewer.visibility([namespace])).namespaces:
            return self._error(403, f"you may not list pods of namespace {namespace}")
        explanation = await self._extender.explain(request.viewer.party, namespace, name)
        if explanation is None:
            return self._error(404, f"the extender knows no pod {namespace}/{name}")
        rows = [
            row
            for place in explanation.places[: pages.MAX_PLACES]
            for row in await self._held_interfaces(request, place.node, explanation.uid)
        ]
        holdings = Holdings.select(rows, Visibility(frozenset([namespace])), request.query.page)
        measured = self._measure(request, self._indexed, holdings.nodes)
        flows = await self._traffic.flows(request.viewer.party, namespace=namespace, pod=name)
        return self._page(
            "pod.html",
            request.query,
            pod=explanation,
            by_claim=self._waiting_by_claim(explanation),
            measured=measured,
            holdings=holdings,
            pods=tuple(holdings.by_pod(KnownTraffic(measured=measured, flows=flows))),
        )

    def _waiting_by_claim(self, explanation: Explanation) -> PendingRow | None:
        """Find a pod among those that wait by claim; only if it requests no interfaces by annotation."""
        if explanation.state != "no-rdma":
            return None
        pod = f"{explanation.namespace}/{explanation.name}"
        return next((row for row in self._claims.want().rows if row.pod == pod), None)

    async def _held_interfaces(self, request: PageRequest, node: str, uid: str) -> list[HolderRow]:
        """List the interfaces that a pod holds on a node."""
        view = await self._extender.holders(request.viewer.party, node)
        return [row for row in view.holders if row.uid == uid] if view else []

    def _measure(
        self, request: PageRequest, cluster: IndexedSnapshot | None, names: Iterable[str]
    ) -> Mapping[str, Measured]:
        """Have nodes that a page shows be measured; return the present measurements."""
        nodes = cluster.nodes if cluster else {}
        addresses = {name: nodes[name].addresses for name in names if name in nodes}
        return self._nodes.watch(addresses, party=request.viewer.party)

    def _sent_mbps(self, measured: Mapping[str, Measured]) -> Mapping[PfName, float]:
        """Return the rates at which pods send by PF: now, or else by Prometheus."""
        now = {
            PfName(node, pf): mbps
            for node, found in measured.items()
            for pf, mbps in found.sent_mbps.items()
            if mbps is not None
        }
        return {**self._traffic.sent_mbps, **now}

    async def _visible_problems(
        self, nodes: Sequence[NodeRow], viewer: Viewer
    ) -> Mapping[str, tuple[str, ...]]:
        """Return the problems of nodes, by name, without names of pods that a viewer may not see."""
        mentions = (mention for node in nodes for mention in pages.mentions_of(node))
        visibility = await viewer.visibility(dict.fromkeys(mention.namespace for mention in mentions))
        return {node.name: pages.visible_problems(node, visibility) for node in nodes}

    async def _visible_pending(self, cluster: IndexedSnapshot, viewer: Viewer, text: str) -> Pending:
        """Select the pods that a viewer may see; asks first about those whose names contain the text."""
        waiting = self._waiting(cluster)
        rows = sorted(waiting, key=lambda row: text not in row.pod)
        visibility = await viewer.visibility(dict.fromkeys(namespace_of(row.pod) for row in rows))
        unlisted = cluster.snapshot.view.pending_total - len(cluster.snapshot.view.pending)
        return Pending.select(waiting, visibility, len(waiting) + unlisted)

    def _waiting(self, cluster: IndexedSnapshot) -> Sequence[PendingRow]:
        """List the pods that wait, by annotation or by claim, those that wait longest first."""
        by_claim = self._claims.want().rows
        if not by_claim:
            return cluster.snapshot.view.pending
        return sorted((*cluster.snapshot.view.pending, *by_claim), key=lambda row: -row.waits_s)

    def _notes(self, cluster: IndexedSnapshot) -> dict[str, Any]:
        """Return the notes of a list of waiting pods about those by claim, as values for a template."""
        claims = self._claims.want() if self._claims.is_on else None
        is_known = claims is not None and claims.read_at is not None and not claims.failure
        return {
            "claims_note": pages.claims_note(claims, has_pfs=bool(cluster.health.claims.pfs)),
            "by_annotation": not is_known and bool(cluster.health.claims.pfs),
            "pending_total": cluster.health.pending + len(claims.rows if claims else ()),
            "is_being_read": claims is not None and claims.read_at is None,
        }

    def _cluster(self) -> IndexedSnapshot:
        """Return the latest snapshot. NoAnswerError before the first one."""
        snapshot = self._extender.snapshot
        if snapshot is None:
            raise SourceUnavailableError(self._extender.failure)
        if self._indexed is None or self._indexed.snapshot is not snapshot:
            self._indexed = IndexedSnapshot(snapshot)
        return self._indexed

    def _page(self, template: str, query: ListQuery, **values: Any) -> Answer:
        return self._render(template, 200, {}, query=query, **values)

    def _error(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> Answer:
        title = _TITLES[status]
        return self._render(
            "error.html", status, headers or {}, query=ListQuery(refresh=False), title=title, message=message
        )

    def _render(self, template: str, status: int, headers: Mapping[str, str], **values: Any) -> Answer:
        snapshot, measured = self._extender.snapshot, values.get("measured", {})
        is_incomplete = pages.measuring(measured) or values.get("is_being_read", False)
        html = self._templates.get_template(template).render(
            **values,
            age_s=None if snapshot is None else self._extender.clock() - snapshot.received_at,
            failure=self._extender.failure,
            traffic_failure=self._traffic.failure,
            measuring=pages.measuring(measured),
            refresh_s=pages.FIRST_REFRESH_S if is_incomplete else pages.REFRESH_S,
            version=__version__,
        )
        return Answer(html, status=status, content_type=_HTML, headers={**HEADERS, **headers})


def _open_paths() -> dict[str, Answer]:
    """Answers that are the same for everyone: files, and those for kubelet's probes."""
    cached = {**HEADERS, "cache-control": "max-age=300"}
    files = {
        f"/{name}": Answer((_HERE / "static" / name).read_bytes(), content_type=content_type, headers=cached)
        for name, content_type in _FILES.items()
    }
    return {**files, **{path: Answer("ok\n", headers=HEADERS) for path in PROBE_PATHS}}


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )
    environment.filters.update(
        {
            "causes": causes_text,
            "rate": pages.format_rate,
            "short": pages.short_reason,
            "seconds": pages.format_seconds,
        }
    )
    environment.tests.update({"over": pages.is_over, "uncertain": pages.is_uncertain})
    environment.globals.update(
        {
            "bar_start": pages.bar_start,
            "bar_width": pages.bar_width,
            "percent": pages.format_percent,
            "enforcers": pages.format_enforcers,
            "sent_on": pages.sent_on,
            "unmeasured_on": pages.unmeasured_on,
            "plural": count,
            "pfs_of_a_node": pages.PFS_OF_A_NODE,
        }
    )
    return environment


def _printable(value: Any) -> Any:
    """Escape control characters, and those that turn the direction of writing, in texts of others."""
    return visible(value) if isinstance(value, str) and not hasattr(value, "__html__") else value
