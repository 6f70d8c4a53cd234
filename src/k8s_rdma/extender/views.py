"""Views for people: explain and the cluster's overview; read-only, and also answered by standbys.

The overview has the totals of all nodes, the first of them, and the pods that wait longest. It is computed in
slices for 5,000 nodes, and kept for a moment, so that many viewers cost as much as one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qs
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from k8s_rdma.core.allocation import mbps_by_claims
from k8s_rdma.core.inventory import CLAIMS_POOL
from k8s_rdma.core.pf_use import NOTHING_USED
from k8s_rdma.core.placement import Share
from k8s_rdma.core.types import NodeName, PodUid, enforcer_of
from k8s_rdma.errors import visible
from k8s_rdma.extender.decision_log import Attempt, LastRefusals
from k8s_rdma.extender.explain import Explainer, ExplainQuery
from k8s_rdma.extender.node_cache import NodeSnapshot
from k8s_rdma.extender.node_source import NodeSource
from k8s_rdma.extender.scheduler_cache import SchedulerCache
from k8s_rdma.http_server.asgi import JSON, Answer, Scope, error_answer
from k8s_rdma.wire.http_error import Error
from k8s_rdma.wire.report import MAX_NAME
from k8s_rdma.wire.views import (
    CLUSTER_PATH,
    EXPLAIN_PATH,
    HOLDERS_PATH,
    MAX_ROWS,
    NAMESPACE_PATH,
    NODE_ORDERS,
    ClusterView,
    ExtenderState,
    NodeRow,
    PendingRow,
    PfRow,
    PfTotals,
    Sort,
    TakenShares,
    Totals,
    encode_explanation,
    encode_view,
)

if TYPE_CHECKING:
    from k8s_rdma.extender.holders import Holders
    from k8s_rdma.wire.node_facts import ClaimsUse

KEPT_S = 1.0
_SLICE = 64
_FRESH_S = 5.0
_ASK_S = 1.5

_DEFAULT_ROWS = 100


class _Pfs(NamedTuple):
    """A node's PFs, and their shares that are taken."""

    rows: tuple[PfRow, ...] = ()
    shares: TakenShares = TakenShares()

    @classmethod
    def from_rows(cls, rows: tuple[PfRow, ...]) -> _Pfs:
        """Compute the shares."""
        return cls(rows, TakenShares.from_rows(rows))


_NO_PFS = _Pfs()


class _Row(NamedTuple):
    node: NodeRow
    pfs: _Pfs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Computed:
    computed_at: float
    rows: tuple[_Row, ...]
    totals: Totals
    claims: PfTotals


@dataclass(slots=True, kw_only=True)
class Overview:
    """Looks at the cluster.

    nodes: the names of all known nodes.
    role: the text about this process.
    clock: seconds, monotonic.
    """

    cache: SchedulerCache
    states: NodeSource
    attempts: LastRefusals
    nodes: Callable[[], Collection[NodeName]]
    role: Callable[[], ExtenderState]
    clock: Callable[[], float]
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _last: _Computed | None = None
    _pfs: WeakKeyDictionary[NodeSnapshot, _Pfs] = field(default_factory=WeakKeyDictionary)

    async def view(self, *, sort: Sort, limit: int) -> ClusterView:
        """Return the document, with `limit` nodes and pods at most; up to `KEPT_S` old."""
        async with self._turn:
            if self._last is None or self.clock() - self._last.computed_at > KEPT_S:
                self._last = await self._compute()
        now, order = self.clock(), NODE_ORDERS[sort]
        first = nsmallest(limit, self._last.rows, key=lambda row: order(row.node, row.pfs.shares))
        pending = self.attempts.pending()
        return ClusterView(
            extender=self.role(),
            totals=self._last.totals,
            claims=self._last.claims,
            nodes=tuple(row.node for row in first),
            pending=tuple(self._pending(attempt, now) for attempt in islice(pending, limit)),
            pending_total=len(pending),
        )

    def _pending(self, attempt: Attempt, now: float) -> PendingRow:
        outcome = attempt.outcome
        filtered = self.cache.requests.get(PodUid(outcome.uid))
        share = Share.of_request(filtered.request) if filtered else Share()
        return PendingRow(
            pod=outcome.pod,
            interfaces=share.vfs,
            reserved_mbps=share.mbps,
            ago_s=round(now - attempt.refused_at, 3),
            waits_s=round(now - attempt.first_at, 3),
            why=attempt.why,
            causes=attempt.causes,
        )

    async def _compute(self) -> _Computed:
        names = sorted(self.nodes())
        with suppress(TimeoutError):
            async with asyncio.timeout(_ASK_S):
                await self.states.refresh(names, newer_than=self.clock() - _FRESH_S)
        rows = []
        for index, node in enumerate(names):
            if index % _SLICE == 0:
                await asyncio.sleep(0)
            rows.append(self._row(node))
        totals, claims = await _total(rows)
        return _Computed(computed_at=self.clock(), rows=tuple(rows), totals=totals, claims=claims)

    def _row(self, node: NodeName) -> _Row:
        facts = self.cache.state.facts(node)
        last = self.cache.state.last_known(node)
        heard_at = self.cache.state.heard_at(node)
        heard_s = None if heard_at is None else round(self.clock() - heard_at, 3)
        pfs = self._pfs_of(last.snapshot) if last.snapshot else _NO_PFS
        if last.claims:
            pfs = _Pfs.from_rows((*pfs.rows, *map(_claims_row, last.claims)))
        row = NodeRow(
            name=node,
            pods=len(last.pods),
            heard_s=heard_s,
            pfs=pfs.rows,
            addresses=self.states.addresses(node),
        )
        if facts is None:
            why = self.cache.state.why_unreadable(node)
            return _Row(replace(row, problems=(why,), unreadable=True), pfs)
        problems = (*_problems(pfs.rows), *facts.problems)
        return _Row(replace(row, problems=problems, mentions=facts.mentions), pfs)

    def _pfs_of(self, snapshot: NodeSnapshot) -> _Pfs:
        pfs = self._pfs.get(snapshot)
        if pfs is None:
            pfs = self.cache.fit_cache.quarantine.decide(
                snapshot, lambda: _Pfs.from_rows(tuple(_pf_rows(snapshot))), lambda _: _NO_PFS
            )
            self._pfs[snapshot] = pfs
        return pfs


def _pf_rows(snapshot: NodeSnapshot) -> Iterator[PfRow]:
    for pf in snapshot.inventory.pfs:
        used, claims_vfs = snapshot.used.get(pf.pci, NOTHING_USED), pf.pools.get(CLAIMS_POOL, 0)
        yield PfRow(
            name=pf.name,
            link_mbps=pf.link_mbps,
            reserved_mbps=used.mbps - mbps_by_claims(used),
            vfs=pf.capacity_vfs,
            free_vfs=max(0, pf.capacity_vfs - used.vfs),
            devices=sum(pf.pools.values()) - claims_vfs,
            held_devices=sum(use.held_vfs for use in used.devices if use.resource != CLAIMS_POOL),
            min_by=enforcer_of(pf.driver) if pf.rates.min else "accounted",
        )


def _claims_row(claims: ClaimsUse) -> PfRow:
    return PfRow(
        name=claims.pf,
        link_mbps=claims.mbps,
        reserved_mbps=claims.reserved_mbps,
        vfs=claims.vfs,
        free_vfs=claims.free_vfs,
        use="claims",
    )


def _problems(pfs: tuple[PfRow, ...]) -> Iterator[str]:
    """Describe the problems, one sentence for each PF that has one."""
    if not pfs:
        yield "it has no SR-IOV PF"
    problems: dict[str, str] = {}
    for pf in pfs:
        if pf.reserved_mbps is None:
            continue
        if pf.link_mbps is None:
            problems.setdefault(pf.name, f"{pf.name}: link speed unknown (link down?)")
        elif pf.reserved_mbps > pf.link_mbps:
            use = " for claims" if pf.use == "claims" else ""
            problems.setdefault(
                pf.name,
                f"{pf.name}: {pf.reserved_mbps} Mb/s are reserved{use}, of {pf.link_mbps} that there are",
            )
    yield from problems.values()


async def _total(rows: list[_Row]) -> tuple[Totals, PfTotals]:
    """Compute the sums, of PFs for claims apart, in slices."""
    sums: dict[str, Counter[str]] = {"annotation": Counter(), "claims": Counter()}
    unreadable = with_problems = pods = 0
    for index, (row, _) in enumerate(rows):
        if index % _SLICE == 0:
            await asyncio.sleep(0)
        with_problems += bool(row.problems)
        unreadable += row.unreadable
        pods += row.pods
        for pf in () if row.unreadable else row.pfs:
            of_use = sums[pf.use]
            of_use["pfs"] += 1
            of_use["link_mbps"] += pf.link_mbps or 0
            of_use["reserved_mbps"] += pf.reserved_mbps or 0
            of_use["vfs"] += pf.vfs
            of_use["free_vfs"] += pf.free_vfs
    totals = Totals(
        nodes=len(rows), unreadable=unreadable, with_problems=with_problems, pods=pods, **sums["annotation"]
    )
    return totals, PfTotals(**sums["claims"])


class Views:
    """Pages for people: `explain` and the cluster's overview."""

    def __init__(self, explainer: Explainer, overview: Overview, holders: Holders) -> None:
        self._explainer = explainer
        self._overview = overview
        self._holders = holders

    def routes(self) -> dict[str, Callable[[Scope], Awaitable[Answer]]]:
        """Return the handlers by path."""
        return {
            EXPLAIN_PATH: self.explain,
            CLUSTER_PATH: self.cluster,
            HOLDERS_PATH: self.holders,
            NAMESPACE_PATH: self.namespace,
        }

    async def explain(self, scope: Scope) -> Answer:
        """Answer `?pod=NAMESPACE/NAME`.

        `&node=NAME` (repeatable) adds that node's details; `&all=1` adds every node's.
        """
        query = _query(scope)
        namespace, _, name = query.get("pod", [""])[0].partition("/")
        if not namespace or not name:
            return _refuse(400, "malformed_request", "pod: wanted NAMESPACE/NAME")
        explain_query = ExplainQuery(
            nodes=tuple(map(NodeName, query.get("node", []))), every=query.get("all") == ["1"]
        )
        found = await self._explainer.explain(namespace, name, explain_query)
        if isinstance(found, str):
            return _refuse(404, "not_found", found)
        return Answer(encode_explanation(found), content_type=JSON)

    async def cluster(self, scope: Scope) -> Answer:
        """Answer `?sort=` as in `Sort`, with `&limit=` nodes and pods at most."""
        query = _query(scope)
        [sort], [limit] = query.get("sort", [Sort.RESERVED])[:1], query.get("limit", [str(_DEFAULT_ROWS)])[:1]
        if sort not in list(Sort):
            return _refuse(400, "malformed_request", f"sort: wanted one of {', '.join(Sort)}")
        if not (limit.isascii() and limit.isdigit() and len(limit) < 10 and int(limit) <= MAX_ROWS):
            return _refuse(400, "malformed_request", f"limit: wanted a number of 0 to {MAX_ROWS}")
        view = await self._overview.view(sort=Sort(sort), limit=int(limit))
        return Answer(encode_view(view), content_type=JSON)

    async def holders(self, scope: Scope) -> Answer:
        """Answer `?node=NAME`."""
        name = _query(scope).get("node", [""])[0]
        view = self._holders.of_node(NodeName(name))
        if view is None:
            return _refuse(404, "not_found", f"node: there is no node {visible(name[:MAX_NAME])!r}")
        return Answer(encode_view(view), content_type=JSON)

    async def namespace(self, scope: Scope) -> Answer:
        """Answer `?name=NAMESPACE`; a namespace without pods has no use."""
        name = _query(scope).get("name", [""])[0]
        if not 0 < len(name) <= MAX_NAME:
            return _refuse(400, "malformed_request", "name: wanted that of a namespace")
        return Answer(encode_view(await self._holders.of_namespace(name)), content_type=JSON)


def _query(scope: Scope) -> dict[str, list[str]]:
    return parse_qs(scope["query_string"].decode("latin-1"))


def _refuse(status: int, reason: str, message: str) -> Answer:
    return error_answer(status, Error(reason=reason, message=message))
