"""Snapshots of a cluster: the data on which decisions about interfaces depend, as one JSON file.

Nodes are as they publish themselves (`wire.rdma_node`), pods by the annotations with their requests and
promises. The file has each node and each pod on a line of its own.
"""

from __future__ import annotations

import json
import re
from fractions import Fraction
from functools import cached_property
from itertools import chain
from math import ceil
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from msgspec.structs import replace

from k8s_rdma.config.extender import NamespaceLimit, PlacementConfig
from k8s_rdma.core.namespace_policy import NO_POLICIES
from k8s_rdma.core.pod_group import PodGroup
from k8s_rdma.core.preemption import Occupant, ResourceDemand
from k8s_rdma.core.types import Gang, GangApi, NodeName, PodUid, Strategy
from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.bounded_http import MAX_PODS_BYTES
from k8s_rdma.kube.chart_objects import EXTENDER_CONFIG, read_extender_config, read_placement_keys
from k8s_rdma.kube.documents import Documents
from k8s_rdma.kube.errors import API_ERRORS
from k8s_rdma.kube.node_liveness import read_liveness
from k8s_rdma.kube.objects import PodObject
from k8s_rdma.kube.pod_groups import list_pod_groups
from k8s_rdma.kube.promises import read_promise, unverified_promise
from k8s_rdma.wire import json as wire_json
from k8s_rdma.wire.annotation import REQUEST_ANNOTATIONS, requests_interfaces
from k8s_rdma.wire.annotation_values import require_own_network
from k8s_rdma.wire.json_faults import unknown_keys
from k8s_rdma.wire.nesting import TOO_DEEP
from k8s_rdma.wire.node_clock import clock_skew_s
from k8s_rdma.wire.objects.affinity import NodeSelectorTerm
from k8s_rdma.wire.objects.meta import NamedMeta
from k8s_rdma.wire.objects.node import ApiTaint, ApiToleration, KubeNode
from k8s_rdma.wire.objects.pod import PodSpec, PreemptionPolicy
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, Promise, decode_own, encode
from k8s_rdma.wire.pod_group import convert_pod_group
from k8s_rdma.wire.rates_status import RATES_STATUS_ANNOTATION, decode_rates_status
from k8s_rdma.wire.rdma_node import LIST_PATH, RdmaNodeStatus, contradictions, read_status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from k8s_rdma.kube.api import PodView
    from k8s_rdma.kube.selection import KubeconfigSelection


T = TypeVar("T")

VERSION = 4
_WITH_GROUPS = 4
"""The first version that has of pods whether those of their gang go together."""


_LIST_TIMEOUT_S = 60.0
"""The limit for one page of a list."""

_Amount = Annotated[int, msgspec.Meta(ge=0)]

_plain_decoder = msgspec.json.Decoder(object)

_PATH = re.compile(r"`\$\.?(?P<decoded>[^`]*)`$|^(?P<own>[^ ]+): ")
"""The path of a field in a sentence of msgspec's, or of ours."""


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node; labels, taints and unschedulable as in Kubernetes' Node.

    status: the status that it publishes, if that can be read.
    why: the reason why it takes no pods, apart from its status; empty if it does.
    """

    name: str
    unschedulable: bool = False
    labels: dict[str, str] = {}
    taints: tuple[ApiTaint, ...] = ()
    status: RdmaNodeStatus | None = None
    why: str = ""


class PriorityClass(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A PriorityClass of Kubernetes. global_default: whether pods without a class of their own have it."""

    name: str
    value: int
    global_default: bool = False
    preemption_policy: PreemptionPolicy = PreemptionPolicy.LOWER


class PodRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A pod that asks for interfaces or was promised some.

    node: empty while it is not bound.
    annotations: its requests and its placement, without the signature.
    devices: of extended resources, which its containers request.
    gang: name of its PodGroup.
    node_selector, tolerations: as in its specification, without tolerations that end.
    node_affinity: terms of the required one, if it has any.
    programmed: the generation of its rates that its node has reported as programmed, by the extender's note.

    The other fields are for preemption.

    started: `status.startTime`.
    terminating: whether its deletion was requested.
    requests: thousandths of each resource that it takes of its node; None if it may take other resources.
    depends_on_neighbours: whether it may matter to it which pods its node has.
    disrupted_together: whether evicting it means evicting all pods of its gang; None if that is not known.
    group_priority: of its PodGroup, if that has one.
    """

    namespace: str
    name: str
    uid: str
    node: str = ""
    priority: int = 0
    gang: str = ""
    annotations: dict[str, str] = {}
    devices: dict[str, _Amount] = {}
    node_selector: dict[str, str] = {}
    node_affinity: tuple[NodeSelectorTerm, ...] | None = None
    tolerations: tuple[ApiToleration, ...] = ()
    programmed: _Amount = 0
    preemption_policy: PreemptionPolicy = PreemptionPolicy.LOWER
    started: str = ""
    terminating: bool = False
    requests: dict[str, _Amount] | None = None
    depends_on_neighbours: bool = False
    disrupted_together: bool | None = False
    group_priority: int | None = None

    def occupant(self) -> Occupant:
        """Return the pod as one that could make room for others."""
        requests = sorted((self.requests or {}).items())
        demand = tuple((resource, Fraction(amount, 1000)) for resource, amount in requests)
        return Occupant(
            uid=PodUid(self.uid),
            namespace=self.namespace,
            name=self.name,
            priority=self.priority,
            started=self.started,
            demand=None if self.requests is None else demand,
        )

    def promise(self) -> Promise | None:
        """Return the promise that it was bound with, if any. MalformedError as `decode_own`."""
        text = self.annotations.get(PLACEMENT_ANNOTATION)
        if not text or not self.node:
            return None
        return decode_own(text, uid=PodUid(self.uid), node=NodeName(self.node), keys=None)


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A cluster. strategy, limits, vf_resource: of its extender. unreadable: missing facts, in sentences.

    priority_classes: None if they are not known, as in version 1.
    """

    version: int
    strategy: Strategy = Strategy.BINPACK
    limits: tuple[NamespaceLimit, ...] = ()
    vf_resource: str | None = None
    priority_classes: tuple[PriorityClass, ...] | None = None
    unreadable: tuple[str, ...] = ()
    nodes: tuple[NodeRecord, ...] = ()
    pods: tuple[PodRecord, ...] = ()


class _Versioned(msgspec.Struct, frozen=True):
    version: Annotated[int, msgspec.Meta(ge=1)]


_version_decoder = msgspec.json.Decoder(_Versioned)
_decoder = msgspec.json.Decoder(Snapshot)


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Encode a snapshot, with nodes and pods on lines of their own."""
    head = msgspec.json.encode(replace(snapshot, nodes=(), pods=()))[:-1]
    nodes, pods = (b",\n".join(map(msgspec.json.encode, items)) for items in (snapshot.nodes, snapshot.pods))
    return b'%s,\n"nodes":[\n%s\n],\n"pods":[\n%s\n]}\n' % (head, nodes, pods)


def decode_snapshot(data: bytes, origin: str) -> Snapshot:
    """Parse a snapshot. origin: the file's name.

    MalformedError names the line and the field, or the line of a fault of JSON, or the version if it is
    newer.
    """
    _require_json(data, origin)
    version = _decode(data, _version_decoder, origin).version
    if version > VERSION:
        msg = f"{origin}: version: {version} is newer than {VERSION}, the latest that this k8s-rdma reads"
        raise MalformedError(msg)
    snapshot = _decode(data, _decoder, origin)
    unknown = unknown_keys(Snapshot, wire_json.decode_large(data, _plain_decoder, origin))
    for why in chain(unknown, _contradictions(snapshot)):
        raise _fault(data, origin, why)
    return _with_gangs_unknown(snapshot) if version < _WITH_GROUPS else snapshot


def _with_gangs_unknown(snapshot: Snapshot) -> Snapshot:
    """Mark that it is not known of the gangs of an older version whether their pods go together."""
    pods = tuple(replace(pod, disrupted_together=None) if pod.gang else pod for pod in snapshot.pods)
    return replace(snapshot, pods=pods)


def _decode(data: bytes, decoder: msgspec.json.Decoder[T], origin: str) -> T:
    try:
        return wire_json.decode_large(data, decoder, origin)
    except MalformedError as error:
        if isinstance(error.__cause__, msgspec.ValidationError):
            raise _fault(data, origin, str(error.__cause__)) from error
        raise


def _fault(data: bytes, origin: str, why: str) -> MalformedError:
    found = _PATH.search(why)
    try:
        line = wire_json.line_of(data.decode(), (found["decoded"] or found["own"] or "") if found else "")
    except (RecursionError, UnicodeError):
        return MalformedError(f"{origin}: {why}")
    return MalformedError(f"{origin}: line {line}: {why}")


def _require_json(data: bytes, origin: str) -> None:
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except RecursionError as error:
        msg = f"{origin}: no snapshot: {TOO_DEEP}"
        raise MalformedError(msg) from error
    except (msgspec.DecodeError, UnicodeError) as error:
        msg = f"{origin}: no snapshot: {_place_of_fault(data) or error}"
        raise MalformedError(msg) from error


def _place_of_fault(data: bytes) -> str:
    try:
        json.loads(data)
    except json.JSONDecodeError as error:
        return f"line {error.lineno}, column {error.colno}: {error.msg}"
    except (ValueError, RecursionError):
        pass
    return ""


def _contradictions(snapshot: Snapshot) -> Iterator[str]:
    """Find contradictions that no schema excludes."""
    yield from _duplicates("nodes[{}].name", (node.name for node in snapshot.nodes))
    yield from _duplicates("pods[{}].uid", (pod.uid for pod in snapshot.pods))
    yield from _duplicates("limits[{}].namespace", (limit.namespace for limit in snapshot.limits))
    for index, node in enumerate(snapshot.nodes):
        if node.status is not None:
            yield from (f"nodes[{index}].status: {why}" for why in contradictions(node.status))


def _duplicates(field: str, values: Iterable[str]) -> Iterator[str]:
    unique: set[str] = set()
    for index, value in enumerate(values):
        if value in unique:
            yield f"{field.format(index)}: {value!r} is there twice"
        unique.add(value)


# of a cluster


class _Node(KubeNode, frozen=True, kw_only=True):
    metadata: NamedMeta


class _Pod(PodObject, frozen=True, kw_only=True):
    spec: PodSpec = PodSpec()


def snapshot_of_cluster(
    kubeconfig: KubeconfigSelection, namespace: str, extender: Mapping[str, str] | None = None
) -> Snapshot:
    """Take a snapshot as `take_snapshot` of the cluster that kubectl would ask."""
    with Documents(kubeconfig, timeout_s=_LIST_TIMEOUT_S) as api:
        return take_snapshot(api, namespace, extender)


def take_snapshot(api: Documents, namespace: str, extender: Mapping[str, str] | None = None) -> Snapshot:
    """Take a snapshot by the API server. namespace: the chart's, for the extender's configuration.

    If a single object cannot be read, that is noted.
    ApiRefusedError and the like if nodes or pods cannot be listed.

    extender: why it refuses nodes, as of `NodeLiveness`.
    """
    unreadable: list[str] = []
    found = _extender_config(api, namespace, unreadable)
    config = found or PlacementConfig(node_lease_namespace=namespace)
    read = _promise_reader(api, namespace, found, unreadable)
    why_refused = _refusals(api, config, extender, unreadable)  # before the reports that Leases name
    statuses = dict(_statuses(api.items(LIST_PATH, any_form=True)))
    if not statuses:
        unreadable.append("there are no RdmaNodes, which agents write with publish: {rdmaNode: true}")
    nodes = []
    for item in api.items("/api/v1/nodes", any_form=True):
        node = _converted(item, _Node, "node", unreadable)
        if node is not None and node.metadata.name in statuses:
            status = statuses[node.metadata.name]
            nodes.append(
                _node(node, status, status if isinstance(status, str) else why_refused(item, status))
            )
    pods = []
    groups = _Groups(api, unreadable)
    for item in api.items("/api/v1/pods", max_bytes=MAX_PODS_BYTES, any_form=True):
        pod = _converted(item, _Pod, "pod", unreadable)
        if pod is not None and (record := _pod(pod, read, unreadable)):
            pods.append(groups.judge(record, pod.view().gang))
    return Snapshot(
        version=VERSION,
        strategy=config.strategy,
        limits=config.limits,
        vf_resource=config.vf_resource,
        priority_classes=_priority_classes(api, unreadable),
        unreadable=tuple(unreadable),
        nodes=tuple(sorted(nodes, key=lambda node: node.name)),
        pods=tuple(sorted(pods, key=lambda pod: (pod.namespace, pod.name))),
    )


def _extender_config(api: Documents, namespace: str, unreadable: list[str]) -> PlacementConfig | None:
    try:
        found = read_extender_config(api, (namespace,), PlacementConfig)
        why = f"ConfigMap {namespace}/{EXTENDER_CONFIG}: there is none"
    except (*API_ERRORS, MalformedError) as error:
        found, why = None, error.message
    if found is None:
        unreadable.append(f"{why}; strategy and limits are taken for the defaults, and no VFs are counted")
    return found


def _promise_reader(
    api: Documents, namespace: str, config: PlacementConfig | None, unreadable: list[str]
) -> Callable[[PodView], Promise | None]:
    """Return a reader of pods' promises like the extender's; without its keys they count unverified."""
    why = "whether they are signed is not known"
    if config is not None:
        if config.placement_key_file is None:
            return lambda pod: read_promise(pod, None, NO_POLICIES)
        try:
            keys = read_placement_keys(api, namespace)
        except (*API_ERRORS, MalformedError) as error:
            why = error.message
        else:
            return lambda pod: read_promise(pod, keys, NO_POLICIES)
    unreadable.append(f"signatures of placements are not checked, and forged ones count: {why}")
    return unverified_promise


def _refusals(
    api: Documents, config: PlacementConfig, extender: Mapping[str, str] | None, unreadable: list[str]
) -> Callable[[dict[str, Any], RdmaNodeStatus], str]:
    """Return a function that explains why the extender refuses a node; empty if it does not."""
    if config.source != "crd":
        return lambda node, _status: (extender or {}).get(_name(node), "")
    try:
        liveness = read_liveness(
            api, namespace=config.node_lease_namespace, stale_s=config.stale_s, extender=extender
        )
    except API_ERRORS as error:
        unreadable.append(f"{error.message}; nodes count as if their agents were alive")
        return lambda node, _status: (extender or {}).get(_name(node), "")
    unreadable += liveness.faults

    def why_refused(node: dict[str, Any], status: RdmaNodeStatus) -> str:
        return liveness.why_refused(_name(node), status.generation, clock_skew_s(node))

    return why_refused


def _name(node: Mapping[str, Any]) -> str:
    return str(node["metadata"]["name"])


def _priority_classes(api: Documents, unreadable: list[str]) -> tuple[PriorityClass, ...] | None:
    classes = []
    try:
        for item in api.items("/apis/scheduling.k8s.io/v1/priorityclasses", any_form=True):
            named = {**item, "name": (item.get("metadata") or {}).get("name")}
            if found := _converted(named, PriorityClass, "PriorityClass", unreadable):
                classes.append(found)
    except API_ERRORS as error:
        unreadable.append(f"{error.message}; manifests that name a PriorityClass are refused")
        return None
    return tuple(classes)


class _Groups:
    """PodGroups of the cluster, listed at the first pod that is in one."""

    def __init__(self, api: Documents, unreadable: list[str]) -> None:
        self._api = api
        self._unreadable = unreadable

    def judge(self, pod: PodRecord, gang: Gang | None) -> PodRecord:
        """Add to a pod its PodGroup's rules for evictions; a group that is gone has no rules any more."""
        if gang is None or gang.api is not GangApi.KUBERNETES:
            return pod
        if self._groups is None:
            return replace(pod, disrupted_together=None)
        group = self._groups.get((gang.namespace, gang.name), PodGroup())
        if group is None:
            return replace(pod, disrupted_together=None)
        return replace(pod, disrupted_together=group.disrupted_together, group_priority=group.priority)

    @cached_property
    def _groups(self) -> dict[tuple[str, str], PodGroup | None] | None:
        """The groups by namespace and name, if they can be listed; None for an unreadable one."""
        try:
            return {
                (item["metadata"]["namespace"], item["metadata"]["name"]): self._group(item)
                for item in list_pod_groups(self._api)
            }
        except API_ERRORS as error:
            why = "pods of gangs are not evicted in plans, because their PodGroups are not known"
            self._unreadable.append(f"{error.message}; {why}")
            return None

    def _group(self, item: dict[str, Any]) -> PodGroup | None:
        try:
            return convert_pod_group(item)[0]
        except msgspec.ValidationError as error:
            meta = item["metadata"]
            self._unreadable.append(f"podgroup {meta['namespace']}/{meta['name']}: {error}")
            return None


def _statuses(items: Iterable[dict[str, Any]]) -> Iterator[tuple[str, RdmaNodeStatus | str]]:
    """Yield the status of each node, or why it cannot be read."""
    for item in items:
        name = (item.get("metadata") or {}).get("name")
        if not isinstance(name, str):
            continue
        try:
            status = read_status(item)
        except MalformedError as error:
            yield name, error.message
        else:
            pfs = tuple(replace(pf, problems=()) for pf in status.pfs)
            yield name, replace(status, pfs=pfs, macs=(), problems=())


def _node(node: _Node, status: RdmaNodeStatus | str, why: str) -> NodeRecord:
    return NodeRecord(
        name=node.metadata.name,
        labels=node.metadata.labels or {},
        taints=node.spec.taints or (),
        unschedulable=bool(node.spec.unschedulable),
        status=None if isinstance(status, str) else status,
        why=why,
    )


def _converted(item: Any, kind: type[Any], noun: str, unreadable: list[str]) -> Any:
    try:
        return msgspec.convert(item, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        meta = item.get("metadata") if isinstance(item, dict) else None
        names = [meta.get("namespace"), meta.get("name")] if isinstance(meta, dict) else []
        unreadable.append(f"{noun} {'/'.join(map(str, filter(None, names)))}: {error}")
        return None


def _pod(found: _Pod, read: Callable[[PodView], Promise | None], unreadable: list[str]) -> PodRecord | None:
    """Return the record of an unfinished pod, if it has to do with interfaces."""
    pod, spec = found.view(), found.spec
    own = {key: text for key, text in pod.annotations.items() if key != PLACEMENT_ANNOTATION}
    if pod.finished or not (requests_interfaces(own) or PLACEMENT_ANNOTATION in pod.annotations):
        return None
    try:
        require_own_network(pod.host_network)
    except MalformedError as error:
        unreadable.append(f"pod {pod.namespace}/{pod.name}: {error.message}")
        return None
    annotations = {key: text for key, text in own.items() if key in REQUEST_ANNOTATIONS}
    affinity = spec.node_affinity()
    try:
        spec.selection()
    except MalformedError as error:
        unreadable.append(f"pod {pod.namespace}/{pod.name}: {error.message}")
        annotations, affinity = {}, None
    try:
        if promise := read(pod):
            annotations[PLACEMENT_ANNOTATION] = encode(promise.placement, pod.uid, None)
    except MalformedError as error:
        unreadable.append(f"pod {pod.namespace}/{pod.name}: {error.message}; it has what its node reports")
    return PodRecord(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        node=pod.node or "",
        priority=pod.priority,
        gang=pod.gang.name if pod.gang else "",
        annotations=annotations,
        devices=dict(pod.devices),
        node_selector=spec.node_selector or {},
        node_affinity=affinity,
        tolerations=spec.lasting_tolerations(),
        programmed=_programmed(pod) if PLACEMENT_ANNOTATION in annotations else 0,
        preemption_policy=spec.preemption_policy or PreemptionPolicy.LOWER,
        started=pod.started,
        terminating=pod.terminating,
        requests=None if pod.demand is None else _thousandths(pod.demand),
        depends_on_neighbours=spec.depends_on_neighbours,
    )


def _programmed(pod: PodView) -> int:
    """Return the generation of the pod's rates that the extender notes as programmed; 0 without one."""
    try:
        status = decode_rates_status(pod.annotations.get(RATES_STATUS_ANNOTATION, ""))
    except MalformedError:
        return 0
    return status.generation if status.state == "programmed" else 0


def _thousandths(demand: ResourceDemand) -> dict[str, int]:
    """Return the demand as kube-scheduler counts it: it rounds up as well."""
    return {resource: ceil(1000 * amount) for resource, amount in demand}
