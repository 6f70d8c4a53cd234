"""Values for the templates, made of the extender's views.

Lists come in pages of a bounded number of rows, so that a page of a large cluster has less than 100 KB.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Generic, TypeVar
from urllib.parse import parse_qs, urlencode

from k8s_rdma.core.mention import Mention, pod_mention, pods_named, shown
from k8s_rdma.core.refusal import count
from k8s_rdma.errors import MalformedError
from k8s_rdma.web.extender_views import ViewSnapshot
from k8s_rdma.web.traffic import PfName
from k8s_rdma.wire.extender import NOT_ENOUGH_FREE
from k8s_rdma.wire.views import (
    HolderRow,
    NodeRow,
    PendingRow,
    PfExplanation,
    PfRow,
    PfTotals,
    Sort,
    enforcers_text,
    sort_nodes,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from k8s_rdma.web.access import Visibility
    from k8s_rdma.web.claim_pods import ClaimPods
    from k8s_rdma.web.node_traffic import Measured

NODES_ON_A_PAGE = 25
PFS_OF_A_NODE = 8
PODS_ON_A_PAGE = 50
MAX_PLACES = 4
"""Nodes whose interfaces a pod's page lists; a pod is on one, unless nodes say something else."""

FIRST_PODS = 5
"""Pending pods on the first page."""

REFRESH_S = 15
FIRST_REFRESH_S = 5
"""Seconds until a page loads again whose traffic is not measured yet: that takes two samples."""

MAX_TEXT = 253
"""Letters of a filter; names of nodes have no more."""

_MAX_PAGE = 9_999

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListQuery:
    """Parameters of a list. text: part of a name. refresh: whether the browser loads it again by itself."""

    sort: Sort = Sort.PROBLEMS
    text: str = ""
    page: int = 1
    refresh: bool = True

    @classmethod
    def parse(cls, query: bytes) -> ListQuery:
        """Parse a query string; parameters of others are ignored. MalformedError names the parameter."""
        try:
            values = parse_qs(query.decode("ascii"), max_num_fields=16, errors="strict")
        except ValueError as error:
            msg = f"query: {error}"
            raise MalformedError(msg) from error
        sort, page = values.get("sort", [Sort.PROBLEMS])[0], values.get("page", ["1"])[0]
        text, refresh = values.get("q", [""])[0], values.get("refresh", ["1"])[0]
        if sort not in list(Sort):
            msg = f"sort: wanted one of {', '.join(Sort)}"
            raise MalformedError(msg)
        if not (page.isascii() and page.isdigit() and 1 <= len(page) <= 4 and int(page) >= 1):
            msg = f"page: wanted a number from 1 to {_MAX_PAGE}"
            raise MalformedError(msg)
        if len(text) > MAX_TEXT:
            msg = f"q: wanted at most {MAX_TEXT} letters"
            raise MalformedError(msg)
        if refresh not in ("0", "1"):
            msg = "refresh: wanted 0 or 1"
            raise MalformedError(msg)
        return cls(sort=Sort(sort), text=text.strip().lower(), page=int(page), refresh=refresh == "1")

    def link(self, **changes: str | int) -> str:
        """Return the query string of this list with changes."""
        values = {"sort": self.sort.value, "q": self.text, "page": self.page, "refresh": int(self.refresh)}
        defaults = {"sort": Sort.PROBLEMS.value, "q": "", "page": 1, "refresh": 1}
        values |= changes
        return "?" + urlencode({name: value for name, value in values.items() if value != defaults[name]})


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Generic[Row]):
    """A page of a list. number: of the page, from 1. first: the number of its first row, from 1."""

    rows: tuple[Row, ...]
    total: int
    number: int
    pages: int
    first: int

    @classmethod
    def cut(cls, rows: Collection[Row], *, number: int, size: int) -> Part[Row]:
        """Cut a page out of a list; the last one for a number beyond it."""
        pages = max(1, -(-len(rows) // size))
        number = min(number, pages)
        first = (number - 1) * size
        return cls(
            rows=tuple(rows)[first : first + size],
            total=len(rows),
            number=number,
            pages=pages,
            first=first + 1,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterHealth:
    """The cluster in one line.

    totals: of PFs by annotation.
    claims: of PFs for claims.
    oldest_s: of the nodes' reports, if there are any.
    silent: nodes that have never reported.
    """

    nodes: int
    ready: int
    with_problems: int
    pfs: int
    pfs_up: int
    totals: PfTotals
    claims: PfTotals
    pending: int
    oldest_s: float | None
    silent: int


@dataclass(frozen=True)
class IndexedSnapshot:
    """A snapshot, indexed when it is first shown."""

    snapshot: ViewSnapshot
    _sorted: dict[Sort, tuple[NodeRow, ...]] = field(default_factory=dict)

    @cached_property
    def nodes(self) -> dict[str, NodeRow]:
        """The nodes by name."""
        return {row.name: row for row in self.snapshot.view.nodes}

    @cached_property
    def health(self) -> ClusterHealth:
        """The sums of the first line."""
        view = self.snapshot.view
        pfs = [pf for row in view.nodes if not row.unreadable for pf in row.pfs]
        heard = [row.heard_s for row in view.nodes if row.heard_s is not None]
        return ClusterHealth(
            nodes=view.totals.nodes,
            ready=view.totals.nodes - view.totals.unreadable,
            with_problems=view.totals.with_problems,
            pfs=len(pfs),
            pfs_up=sum(pf.link_mbps is not None for pf in pfs),
            totals=view.totals,
            claims=view.claims,
            pending=view.pending_total,
            oldest_s=max(heard, default=None),
            silent=len(view.nodes) - len(heard),
        )

    def list_nodes(self, query: ListQuery) -> Part[NodeRow]:
        """Return a page of the nodes that a query selects, in its order."""
        if query.sort not in self._sorted:
            self._sorted[query.sort] = tuple(sort_nodes(self.snapshot.view.nodes, query.sort))
        rows = self._sorted[query.sort]
        if query.text:
            rows = tuple(row for row in rows if query.text in row.name)
        return Part.cut(rows, number=query.page, size=NODES_ON_A_PAGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """Pending pods that a viewer may see, and the number of all others. undecided: as in `Visibility`."""

    rows: tuple[PendingRow, ...]
    hidden: int
    undecided: int

    @classmethod
    def select(cls, rows: Iterable[PendingRow], visibility: Visibility, total: int) -> Pending:
        """Select the pods of visible namespaces. total: how many wait in the cluster."""
        own = tuple(row for row in rows if namespace_of(row.pod) in visibility.namespaces)
        return cls(rows=own, hidden=total - len(own), undecided=visibility.undecided)


def mentions_of(node: NodeRow) -> tuple[Mention, ...]:
    """Return the pods that the problems of a node name."""
    named = (mention for problem in node.problems for mention in pods_named(problem))
    return (*(pod_mention(pod.namespace, pod.name) for pod in node.mentions), *named)


def visible_problems(node: NodeRow, visibility: Visibility) -> tuple[str, ...]:
    """Return the problems of a node without names of pods that a viewer may not see."""
    mentions = mentions_of(node)
    return tuple(
        shown(problem, mentions, lambda namespace: namespace in visibility.namespaces)
        for problem in node.problems
    )


def claims_note(claims: ClaimPods | None, *, has_pfs: bool) -> str:
    """Describe the gaps of a list of pods about those that wait by ResourceClaim.

    claims: None if they are not read.
    has_pfs: whether there are PFs for claims.
    """
    if claims is None:
        command = "kubectl rdma explain pod NAMESPACE/NAME"
        return (
            f"Pods that wait by ResourceClaim are not listed; {command} says why one does." if has_pfs else ""
        )
    if claims.failure:
        return f"Pods that wait by ResourceClaim are not known: {claims.failure}"
    if claims.unlisted:
        return f"Of {count(claims.unlisted, 'more pod')} with claims it is not known here whether they wait."
    return "Pods that wait by ResourceClaim are being read." if claims.read_at is None else ""


def measuring(measured: Mapping[str, Measured]) -> bool:
    """Report whether a node is about to have its first rates."""
    return any(not (found.has_rates or found.failure) for found in measured.values())


def is_uncertain(pf: PfRow) -> bool:
    """Report whether it is not known which part of a link is reserved."""
    return pf.reserved_mbps is None or not pf.link_mbps


def is_over(pf: PfRow) -> bool:
    """Report whether more is reserved than the link has."""
    return pf.link_mbps is not None and (pf.reserved_mbps or 0) > pf.link_mbps


def sent_on(pf: PfRow, node: NodeRow, sent_mbps: Mapping[PfName, float]) -> float | None:
    """Find the rate at which pods send on a PF, in Mb/s; of a split PF all of it counts for annotations."""
    return None if _is_claims_part(pf, node) else sent_mbps.get(PfName(node.name, pf.name))


def unmeasured_on(pf: PfRow, node: NodeRow, measured: Mapping[str, Measured]) -> bool:
    """Report whether a node was read, and does not report the traffic of pods on a PF."""
    found = measured.get(node.name)
    if found is None or _is_claims_part(pf, node):
        return False
    return bool(found.failure) or found.sent_mbps.get(pf.name, 0.0) is None


def _is_claims_part(pf: PfRow, node: NodeRow) -> bool:
    return pf.use == "claims" and any(row.name == pf.name and row.use != pf.use for row in node.pfs)


def short_reason(why: str) -> str:
    """Return a node's reason without the sentence that kube-scheduler gets before it, in parentheses."""
    inner = why.removeprefix(NOT_ENOUGH_FREE).strip()
    return inner.removeprefix("(").removesuffix(")") if inner != why and inner else why


def namespace_of(pod: str) -> str:
    """Return the namespace of `namespace/name`."""
    return pod.partition("/")[0]


def format_rate(mbps: float | None) -> str:
    """Format a rate: `500 Mb/s`, `12.5 Gb/s`; `unknown` if it is not known."""
    if mbps is None:
        return "unknown"
    mbps = round(mbps)
    return f"{mbps} Mb/s" if abs(mbps) < 1000 else f"{mbps / 1000:.3f}".rstrip("0").rstrip(".") + " Gb/s"


def format_enforcers(row: HolderRow) -> str:
    """Name the enforcers of the rates of an interface."""
    text = enforcers_text(row)
    return "unknown" if text is None else text or "no rates"


def format_seconds(seconds: float | None) -> str:
    """Format a time span: `3 s`, `12 min`, `5 h`, `9 d`; `never` without one."""
    if seconds is None:
        return "never"
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def format_percent(part: float | None, whole: int | None) -> str:
    """Format a share in whole percent, rounded down; empty if it is not known."""
    return f"{int(100 * part // whole)} %" if whole and part is not None else ""


def bar_start(pf: PfExplanation) -> str:
    """Return the place on the bar of a link at which the missing part for an interface begins."""
    reserved_mbps = (pf.link_mbps or 0) - pf.unreserved_mbps
    return bar_width(max(0, reserved_mbps - pf.short_mbps), pf.link_mbps)


def bar_width(part: float | None, whole: int | None) -> str:
    """Return the length of a bar, of 100."""
    return f"{min(100.0, 100 * part / whole):.1f}" if whole and part else "0"
