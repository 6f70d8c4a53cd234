"""Configuration of the extender, and the contradictions that it may not have."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from k8s_rdma.config.addresses import EXTENDER_PORT, NAMESPACE, SERVER_PORT, VIEWS_PORT
from k8s_rdma.config.field_types import AbsolutePath
from k8s_rdma.config.ports import MAX_PORT, Port
from k8s_rdma.config.tls import NodeTls, TlsConfig
from k8s_rdma.core.refusal import Detail
from k8s_rdma.core.types import Strategy
from k8s_rdma.wire.cdi import ResourceText, require_resource_name

if TYPE_CHECKING:
    from collections.abc import Iterator

OWN_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
OWN_PREFIX = "/v1/"
NODE_TIMEOUT_S = 1.5
RETRY_S = 10.0

Seconds = Annotated[float, msgspec.Meta(gt=0)]
Path = Annotated[
    str,
    msgspec.Meta(
        pattern="^/[^?#{}]*[^/?#{}]$",
        description="the path of a URL, such as /scheduler/bind, without ? # { } and no / at its end",
    ),
]


def contradictions(config: ExtenderConfig) -> Iterator[str]:
    """Find settings that contradict each other, each in one line that names the fields."""
    yield from _paths(config)
    yield from _sources(config)
    yield from _times(config)
    fields: set[str] = set()
    for index, limit in enumerate(config.limits):
        if limit.namespace in fields:
            yield f"limits[{index}].namespace: {limit.namespace!r} is limited twice"
        fields.add(limit.namespace)


def _paths(config: ExtenderConfig) -> Iterator[str]:
    paths = {
        "filterPath": config.filter_path,
        "prioritizePath": config.prioritize_path,
        "preemptPath": config.preempt_path,
        "bindPath": config.bind_path,
    }
    for (verb, path), (second_verb, second_path) in combinations(paths.items(), 2):
        if path == second_path:
            yield f"{verb} and {second_verb}: both are {path}"
    for field, path in paths.items():
        if path in OWN_PATHS or path.startswith(OWN_PREFIX):
            yield f"{field}: {path} is a path of the extender's own"


def _sources(config: ExtenderConfig) -> Iterator[str]:
    if not config.api and config.binder == "extender":
        yield "api and binder: without an API server the extender cannot bind; set binder: scheduler"
    if not config.api and config.source == "crd":
        yield "api and source: RdmaNode objects are read from the API server; set source: http"
    if not config.api and config.kubeconfig is not None:
        yield "api and kubeconfig: without an API server there is nothing to reach by it"
    tls = config.node_tls
    if tls is not None and (tls.cert_file is None) != (tls.key_file is None):
        present, missing = ("certFile", "keyFile") if tls.key_file is None else ("keyFile", "certFile")
        yield f"nodeTls.{present} and nodeTls.{missing}: the second is missing"


def _times(config: ExtenderConfig) -> Iterator[str]:
    if config.source != "http":
        return
    if config.max_age_s > config.stale_s:
        yield (
            f"maxAgeS and staleS: what is known of a node counts for {config.max_age_s:g} s without a "
            f"question, and for no more than {config.stale_s:g} s at all"
        )
    if 4 * config.node_timeout_s > config.stale_s:
        yield (
            f"nodeTimeoutS and staleS: a node that is followed is known to be silent after half of staleS "
            f"and two time-outs, which must not be more than {config.stale_s:g} s"
        )


class ViewsConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """YAML with these keys in camelCase: another port for viewers, which answers GET alone, by plain HTTP.

    listen: the address to listen on; empty: all. token_file: bearer tokens, one a line.
    """

    listen: str = ""
    port: Port = VIEWS_PORT
    token_file: AbsolutePath


class NamespaceLimit(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """YAML with these keys in camelCase: the limits of the pods of a namespace together; None for no limit.

    namespace: `*` is every one without a limit of its own, each by itself. reserved_mbps: of all its
        reservations. vfs: of all its interfaces.
    """

    namespace: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^(\*|[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)$", description="a namespace's name, or *"
        ),
    ]
    reserved_mbps: Annotated[int, msgspec.Meta(ge=0)] | None = None
    vfs: Annotated[int, msgspec.Meta(ge=0)] | None = None


class PlacementConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The extender's settings that its decisions depend on, for programs that decide as it does.

    Such a program reads the configuration of a running extender, which may be newer and have more keys:
    therefore it ignores all others.

    strategy: the order of the nodes that fit, see `core.placement.Strategy`.
    limits: the most that the pods of a namespace may hold. vf_resource: the counted extended resource that
        the agents publish for VFs, if they do: a pod that asks for it must ask for as many as it has
        interfaces.
    placement_key_file: keys, as in `config.placement_keys`; without them a placement is a hint only.
    source: the source of the nodes' states: `http`, the nodes' servers, or `crd`, the `RdmaNode` objects that
        the agents publish.
    stale_s: the time without news after which a node is refused, with `crd` once its Lease has ended.
        node_lease_namespace: with `crd`, the namespace of these Leases.
    """

    strategy: Strategy = Strategy.BINPACK
    limits: tuple[NamespaceLimit, ...] = ()
    vf_resource: ResourceText | None = None
    placement_key_file: str | None = None
    source: Literal["http", "crd"] = "crd"
    stale_s: Seconds = 60.0
    node_lease_namespace: Annotated[str, msgspec.Meta(min_length=1)] = NAMESPACE


class ExtenderConfig(PlacementConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """YAML with these keys and those of `PlacementConfig` in camelCase; times in seconds.

    listen: the address to listen on; the default serves a kube-scheduler on the same host only, since
        every client that reaches the port may bind pods. Empty: all addresses.
    port: TCP; 0 for a free one. The environment variable PORT overrides it.
    tls: its files; None for plain HTTP. token_file: bearer tokens, one a line; None demands none.
    views: a port of its own for viewers, such as `kubectl rdma`; None for none.
    filter_path, prioritize_path, preempt_path, bind_path: `urlPrefix` and verb of the scheduler's
        configuration.
    binder: `extender`, or `scheduler` if it has no bind verb registered; then the nodes' ledgers arbitrate.
    api: whether there is an API server to ask; may be false only if the scheduler binds.
    allow_unplaced: the agents' setting: whether they give interfaces to pods without a placement, which then
        count once they are bound. None: if the scheduler binds, or without a key.
    refusal_detail: whether the refusal of a node has the numbers of that very node, as long as an event has
        room for them, or only the cause, see `core.refusal.Detail` and `extender.refusal_texts`.
    assume_s: how long a pod that was filtered counts on its expected node, until its bind comes or, if the
        scheduler binds, until its node reports it. None: 2 s and 30 s, in this order.
    nomination_s: how long the room that preemption made is held for its pod.
    max_body_bytes: of a request; a full node object is about 10 KB.
    kubeconfig: default the pod's service account, `KUBECONFIG`, `~/.kube/config`, in this order.
    policy_file: the operator's policies, see `config.namespace_policies`; without, no namespace may have
        interfaces that need one. Read again when it changes.
    live_rates: whether rates of running pods may change, see `extender.rate_changes`.
    strict: whether unknown keys in a pod's annotation refuse it; else they are logged.
    disruption_budgets: whether preemption respects PodDisruptionBudgets, and evicts no pod before they have
        been read; `ignore` if the extender must not read them: the scheduler's own count of violations is
        kept.
    node_port, node_timeout_s: of the nodes' servers; the time-out is for one question at one address.
    node_tls, node_token_file: if these servers speak TLS or demand a bearer token.
    node_watches: how many nodes are followed by long poll, each over a connection that stays (1,024 fewer
        than the files that the process may have open, if that is less); 0 for none. The others are asked,
        whenever a state is needed.
    max_age_s: the state of a node that is not followed is not asked for again by filter and prioritize while
        it is younger.
    retry_s: how long a node that timed out counts as unreadable without being asked again.
    poll_s: how often nodes that refused a waiting pod are asked.
    requeue_by, requeue_s: the part of a node object that is changed so that the scheduler tries refused pods
        again, and the least time between two touches of a node. Kubernetes 1.28 and 1.29 need `label`: their
        schedulers heed no annotation.
    api_timeout_s: for one call of the API server. api_request_timeout_s: how long the API server may still
        work on a call that was not answered (its own `--request-timeout`); waited for if pods may not be
        patched.
    lease_name, lease_namespace: of the Lease whose holder alone binds pods that ask for interfaces (needs the
        verbs get, create and patch on `leases` of `coordination.k8s.io` there); an empty name: no Lease, then
        there must never be two extenders.
    lease_s: whole seconds without a renewal after which another may take the Lease; if it may not patch
        pods, it then also waits for api_request_timeout_s before it binds.
    shutdown_s: for requests under way and binds in doubt after SIGTERM; less than the pod's
        `terminationGracePeriodSeconds`. Later doubts are left to the next holder to fence.
    """

    listen: str = "127.0.0.1"
    port: Port = EXTENDER_PORT
    filter_path: Path = "/scheduler/rdma_scheduling"
    prioritize_path: Path = "/scheduler/prioritize"
    preempt_path: Path = "/scheduler/preempt"
    bind_path: Path = "/scheduler/bind"
    tls: TlsConfig | None = None
    token_file: AbsolutePath | None = None
    views: ViewsConfig | None = None
    max_body_bytes: Annotated[int, msgspec.Meta(ge=1)] = 256 * 1024 * 1024
    binder: Literal["extender", "scheduler"] = "extender"
    api: bool = True
    allow_unplaced: bool | None = None
    refusal_detail: Detail = Detail.NUMBERS
    assume_s: Seconds | None = None
    nomination_s: Seconds = 120.0
    disruption_budgets: Literal["heed", "ignore"] = "heed"
    kubeconfig: str | None = None
    policy_file: AbsolutePath | None = None
    live_rates: bool = True
    strict: bool = True
    node_tls: NodeTls | None = None
    node_token_file: AbsolutePath | None = None
    node_port: Annotated[int, msgspec.Meta(ge=1, le=MAX_PORT)] = SERVER_PORT
    node_timeout_s: Seconds = NODE_TIMEOUT_S
    node_watches: Annotated[int, msgspec.Meta(ge=0)] = 8192
    max_age_s: Seconds = 1.0
    retry_s: Seconds = RETRY_S
    poll_s: Seconds = 1.0
    requeue_by: Literal["annotation", "label"] = "annotation"
    requeue_s: Seconds = 1.0
    api_timeout_s: Seconds = 5.0
    api_request_timeout_s: Seconds = 60.0
    lease_name: str = "k8s-rdma-extender"
    lease_namespace: Annotated[str, msgspec.Meta(min_length=1)] = "kube-system"
    lease_s: Annotated[int, msgspec.Meta(ge=5, le=3600)] = 15
    shutdown_s: Seconds = 25.0

    @property
    def elects_leader(self) -> bool:
        """Report whether the holder of a Lease alone binds."""
        return self.api and bool(self.lease_name) and self.binder == "extender"

    @property
    def heeds_budgets(self) -> bool:
        """Report whether disruption budgets are read; they cannot be without an API server."""
        return self.api and self.disruption_budgets == "heed"

    def allows_unplaced(self, *, signed: bool) -> bool:
        """Report whether agents give interfaces to pods without a placement; agents use the same rule."""
        if self.allow_unplaced is not None:
            return self.allow_unplaced
        return self.binder == "scheduler" or not signed

    def __post_init__(self) -> None:
        """Refuse contradictions."""
        if self.vf_resource is not None:
            require_resource_name("vfResource", self.vf_resource)
        if found := "; ".join(contradictions(self)):
            raise ValueError(found)
