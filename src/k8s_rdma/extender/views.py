"""Views for people: explain and the cluster at a glance; read-only, and answered by standbys as well."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from k8s_rdma.core.ids import NodeName
from k8s_rdma.extender.explain import Explainer, ExplainQuery
from k8s_rdma.extender.filter import FeasibilityChecker
from k8s_rdma.extender.node_source import NodeSource
from k8s_rdma.extender.overview import Overview
from k8s_rdma.extender.quota import Limits
from k8s_rdma.http_server.answer import JSON, Answer, error_answer
from k8s_rdma.wire import cluster_view, explain
from k8s_rdma.wire.cluster_view import MAX_ROWS, Sort, encode_view
from k8s_rdma.wire.explain import ExtenderState, encode_explanation
from k8s_rdma.wire.rest_error import Error

if TYPE_CHECKING:
    from k8s_rdma.extender.pod_explanation import PodExplainer
    from k8s_rdma.http_server.answer import Scope

_DEFAULT_ROWS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewContext:
    """Of a look.

    nodes: all names. role: what to say of this process. max_age_s: as in `Scheduling`.
    """

    states: NodeSource
    feasibility: FeasibilityChecker
    limits: Limits
    nodes: Callable[[], Collection[NodeName]]
    role: Callable[[], ExtenderState]
    max_age_s: float


class Views:
    """What answers."""

    def __init__(self, pods: PodExplainer, context: ViewContext) -> None:
        self._explaining = Explainer(
            pods=pods,
            state=pods.state,
            states=context.states,
            feasibility=context.feasibility,
            limits=context.limits,
            nodes=context.nodes,
            role=context.role,
            clock=pods.clock,
            max_age_s=context.max_age_s,
        )
        self._overview = Overview(
            state=pods.state,
            states=context.states,
            attempts=pods.attempts,
            requests=pods.requests,
            nodes=context.nodes,
            role=context.role,
            clock=pods.clock,
            quarantine=context.feasibility.fit_cache.quarantine,
        )

    def routes(self) -> dict[str, Callable[[Scope], Awaitable[Answer]]]:
        """By path."""
        return {explain.PATH: self.explain, cluster_view.PATH: self.cluster}

    async def explain(self, scope: Scope) -> Answer:
        """`?pod=NAMESPACE/NAME`; `&node=NAME`, repeated or not: these one by one; `&all=1`: every one so."""
        query = _query(scope)
        namespace, _, name = query.get("pod", [""])[0].partition("/")
        if not namespace or not name:
            return _refuse(400, "malformed_request", "pod: wanted NAMESPACE/NAME")
        wanted = ExplainQuery(
            nodes=tuple(map(NodeName, query.get("node", []))), every=query.get("all") == ["1"]
        )
        found = await self._explaining.explain(namespace, name, wanted)
        if isinstance(found, str):
            return _refuse(404, "not_found", found)
        return Answer(encode_explanation(found), content_type=JSON)

    async def cluster(self, scope: Scope) -> Answer:
        """`?sort=` as `Sort`; `&limit=`: so many nodes and pods at most."""
        query = _query(scope)
        [sort], [limit] = query.get("sort", [Sort.RESERVED])[:1], query.get("limit", [str(_DEFAULT_ROWS)])[:1]
        if sort not in list(Sort):
            return _refuse(400, "malformed_request", f"sort: wanted one of {', '.join(Sort)}")
        if not (limit.isascii() and limit.isdigit() and len(limit) < 10 and int(limit) <= MAX_ROWS):
            return _refuse(400, "malformed_request", f"limit: wanted a number of 0 to {MAX_ROWS}")
        view = await self._overview.view(sort=Sort(sort), limit=int(limit))
        return Answer(encode_view(view), content_type=JSON)


def _query(scope: Scope) -> dict[str, list[str]]:
    return parse_qs(scope["query_string"].decode("latin-1"))


def _refuse(status: int, reason: str, message: str) -> Answer:
    return error_answer(status, Error(reason=reason, message=message))
