"""Planned cluster: a snapshot to ask questions of, with nodes that pods may be on and namespaces' limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from k8s_rdma.config.extender import NamespaceLimit
from k8s_rdma.core.allocation import interfaces_on_node
from k8s_rdma.core.devices.requests import DeviceTaint, Toleration
from k8s_rdma.core.placement import PlacedInterface, Placement, Share, limit_of, place
from k8s_rdma.core.pod_constraints import EVERY_NODE, NodeSelection
from k8s_rdma.core.reported_rates import ReportedRates
from k8s_rdma.core.request import InterfaceRequest, PfPolicy, Request
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.errors import MalformedError
from k8s_rdma.planning.cluster import Cluster, PlannedNode
from k8s_rdma.planning.snapshot import NodeRecord, PodRecord, PriorityClass, Snapshot
from k8s_rdma.wire.annotation import read_pod, request_name, requests_interfaces, with_gpus
from k8s_rdma.wire.node_affinity import node_selection
from k8s_rdma.wire.node_facts import read_facts
from k8s_rdma.wire.objects.pod import PreemptionPolicy

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from k8s_rdma.core.inventory import Pf
    from k8s_rdma.wire.objects.node import ApiToleration

_SIMPLEST = Request((InterfaceRequest(),))
_NOTHING = Share()
_BLOCKING = ("NoSchedule", "NoExecute")
_CORDON = DeviceTaint("node.kubernetes.io/unschedulable", "", "NoSchedule")
"""A pod that tolerates this taint may be on a cordoned node, for example a pod of a DaemonSet."""

PriorityClasses: TypeAlias = tuple[PriorityClass, ...] | None
"""The PriorityClasses of a cluster; None if they are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Pods that are alike.

    name: `namespace/name`.
    gang: its pods are all placed, or the gang is not placed at all.
    gang_size: the number of the pods in each of several such gangs; 0 if all are in one.
    preempts: whether pods of lower priority may be evicted for them.
    depends_on_neighbours: whether it may matter to them which pods a node has.
    obstacle: why no node can be found for them here; empty if one can.
    """

    name: str
    namespace: str
    request: Request
    count: int = 1
    priority: int = 0
    gang: str = ""
    gang_size: int = 0
    preempts: bool = True
    depends_on_neighbours: bool = False
    nodes: NodeSelection = EVERY_NODE
    tolerations: tuple[Toleration, ...] = ()
    obstacle: str = ""

    def by_gang(self) -> Iterator[Workload]:
        """Yield the pods of each of its gangs; itself if it has one or none."""
        if not self.gang or not self.gang_size:
            yield self
            return
        for first in range(0, max(self.count, 1), self.gang_size):
            count = min(self.gang_size, self.count - first)
            yield replace(self, gang=f"{self.gang} {first // self.gang_size}", gang_size=0, count=count)


@dataclass(slots=True, kw_only=True)
class PlannedCluster:
    """A cluster with the known facts about its nodes and pods.

    unreadable: the missing facts, a sentence each.
    vf_resource: by which kube-scheduler counts VFs, if it does.
    counted: all resources that it counts and pods have interfaces by.
    free_devices: of these, by node.
    """

    cluster: Cluster
    nodes: dict[NodeName, NodeRecord]
    pods: dict[PodUid, PodRecord]
    limits: Mapping[str, NamespaceLimit]
    vf_resource: str | None
    priority_classes: PriorityClasses
    unreadable: tuple[str, ...]
    counted: set[str] = field(default_factory=set)
    free_devices: dict[NodeName, Counter[str]] = field(default_factory=dict)
    _mbps: Counter[str] = field(default_factory=Counter)
    _vfs: Counter[str] = field(default_factory=Counter)

    @classmethod
    def from_snapshot(cls, snapshot: Snapshot) -> PlannedCluster:
        """Count the interfaces that pods hold or were promised; unreadable data is noted, not counted.

        A node that takes no pods is left out. Promises to pods there count for their namespaces.
        """
        unreadable = list(snapshot.unreadable)
        promised = _promised(snapshot.pods, unreadable)
        programmed = {PodUid(pod.uid): pod.programmed for pod in snapshot.pods if pod.programmed}
        planned = cls(
            cluster=Cluster(snapshot.strategy),
            nodes={NodeName(node.name): node for node in snapshot.nodes},
            pods={PodUid(pod.uid): pod for pod in snapshot.pods},
            limits={limit.namespace: limit for limit in snapshot.limits},
            vf_resource=snapshot.vf_resource,
            priority_classes=snapshot.priority_classes,
            unreadable=(),
        )
        for name, record in planned.nodes.items():
            try:
                planned.add_node(name, record, _node(name, record, promised.get(name, {}), programmed))
            except Exception as error:  # # any error, because it concerns this node alone
                unreadable.append(f"node {name}: {error}")
        for name in promised.keys() - set(planned.cluster):
            for uid, placement in promised[name].items():
                planned._count(name, uid, placement.interfaces, +1)
        planned.unreadable = tuple(unreadable)
        return planned

    def copy(self, cluster: Cluster | None = None) -> PlannedCluster:
        """Copy it, perhaps with another cluster of the same pods."""
        return replace(
            self,
            cluster=cluster or self.cluster.copy(),
            nodes=dict(self.nodes),
            pods=dict(self.pods),
            counted=set(self.counted),
            free_devices={name: Counter(devices) for name, devices in self.free_devices.items()},
            _mbps=Counter(self._mbps),
            _vfs=Counter(self._vfs),
        )

    def add_node(self, name: NodeName, record: NodeRecord, node: PlannedNode) -> None:
        """Add a node with the pods on it."""
        self.cluster.add_node(name, node)
        self.nodes[name] = record
        self.free_devices[name] = node.devices(self.vf_resource)
        self.counted |= self.free_devices[name].keys()
        for uid, interfaces in node.pods.items():
            self._count(name, uid, interfaces, +1)

    def remove_node(self, name: NodeName) -> PlannedNode:
        """Remove a node with the pods on it. KeyError if it does not exist."""
        node = self.cluster.remove_node(name)
        del self.free_devices[name]
        for uid, interfaces in node.pods.items():
            self._count(name, uid, interfaces, -1)
        return node

    def bind(self, workload: Workload, placement: Placement) -> PodUid:
        """Have one more pod of a workload hold a placement; return its UID."""
        uid = PodUid(f"whatif/{len(self.pods)}")
        self.pods[uid] = PodRecord(
            namespace=workload.namespace,
            name=workload.name,
            uid=uid,
            node=placement.node,
            priority=workload.priority,
            devices=dict(workload.request.devices),
        )
        self.cluster.bind(uid, placement)
        self._count(placement.node, uid, placement.interfaces, +1)
        return uid

    def release(self, uid: PodUid, name: NodeName) -> Placement:
        """Release the interfaces of a pod on a node, and return them. KeyError if it has none there."""
        placement = self.placement(uid, name)
        self._count(name, uid, placement.interfaces, -1)
        self.cluster.release(uid, name)
        return placement

    def restore(self, uid: PodUid, placement: Placement) -> None:
        """Have a pod hold its interfaces of before `release` again."""
        self.cluster.bind(uid, placement)
        self._count(placement.node, uid, placement.interfaces, +1)

    def placement(self, uid: PodUid, name: NodeName) -> Placement:
        """Return the interfaces that a pod holds on a node. KeyError if it has no interfaces there."""
        interfaces = self.cluster.node(name).pods[uid]
        return Placement(node=name, interfaces=interfaces, policy=policy_of(self.pods.get(uid)))

    def named_node(self, text: str) -> NodeName:
        """Return the node of that name; MalformedError if it does not exist, or its state is unknown."""
        name = NodeName(text)
        if name not in self.cluster:
            msg = f"node {text}: there is none of that name whose state is known"
            raise MalformedError(msg)
        return name

    def named_pf(self, text: str) -> tuple[NodeName, Pf]:
        """Return the PF at `NODE/PF`, by its name or PCI address; MalformedError if it does not exist."""
        node, _, pf_name = text.partition("/")
        name = self.named_node(node)
        pfs = self.cluster.node(name).inventory.pfs
        found = next((pf for pf in pfs if pf_name in (pf.name, pf.pci)), None)
        if found is None:
            names = ", ".join(pf.name for pf in pfs)
            msg = f"PF {text}: wanted NODE/PF, with one of the PFs of node {node}: {names}"
            raise MalformedError(msg)
        return name, found

    def device_room(self, name: NodeName, request: Request) -> int | None:
        """Return the number of such pods for which a node has devices, if kube-scheduler counts any."""
        free = self.free_devices[name]
        rooms = [free[resource] // number for resource, number in request.devices if resource in self.counted]
        return max(0, min(rooms)) if rooms else None

    def count_refusal(self, request: Request) -> str:
        """Describe how the extender refuses pods for the number of VFs that kube-scheduler would count."""
        number, interfaces = dict(request.devices).get(self.vf_resource or "", 0), len(request.interfaces)
        if number in (0, interfaces):
            return ""
        return f"asks for {interfaces} interfaces, but requests {number} of {self.vf_resource}"

    def share(self, name: NodeName, uids: Iterable[PodUid], namespace: str) -> Share:
        """Add up the interfaces that those pods of a namespace hold on a node."""
        pods = self.cluster.node(name).pods
        shares = [
            Share.of_interfaces(pods[uid])
            for uid in uids
            if uid in pods and uid in self.pods and self.pods[uid].namespace == namespace
        ]
        return Share(sum(share.mbps for share in shares), sum(share.vfs for share in shares))

    def pending(self) -> Iterator[PodRecord]:
        """Return the pods that ask for interfaces, and have no node."""
        return (pod for pod in self.pods.values() if not pod.node and requests_interfaces(pod.annotations))

    def eligible(self, workload: Workload) -> list[NodeName]:
        """Return the nodes that the pods may be on by selection, taints and cordons; room is ignored."""
        nodes, tolerations = workload.nodes, workload.tolerations
        return [name for name in self.cluster if may_be_on(self.nodes[name], nodes, tolerations)]

    def limit_refusal(self, namespace: str, request: Request, freed: Share = _NOTHING) -> str:
        """Describe how one more such pod exceeds its namespace's limit; empty if it does not.

        freed: the part of the namespace's use that does not count.
        """
        limit = limit_of(self.limits, namespace)
        if limit is None:
            return ""
        used = Share(self._mbps[namespace] - freed.mbps, self._vfs[namespace] - freed.vfs)
        return used.refusal(namespace, Share.of_request(request), limit.reserved_mbps, limit.vfs)

    def _count(self, name: NodeName, uid: PodUid, interfaces: tuple[PlacedInterface, ...], sign: int) -> None:
        pod = self.pods.get(uid)
        if pod is None:
            return
        share = Share.of_interfaces(interfaces)
        self._mbps[pod.namespace] += sign * share.mbps
        self._vfs[pod.namespace] += sign * share.vfs
        if name in self.free_devices:
            for resource in pod.devices.keys() & self.counted:
                self.free_devices[name][resource] -= sign * pod.devices[resource]


def _promised(pods: Iterable[PodRecord], unreadable: list[str]) -> dict[NodeName, dict[PodUid, Placement]]:
    """Return the promises of bound pods, by node."""
    found: dict[NodeName, dict[PodUid, Placement]] = {}
    for pod in pods:
        try:
            promise = pod.promise()
            if promise is not None:
                found.setdefault(promise.placement.node, {})[promise.uid] = promise.placement
        except MalformedError as error:
            unreadable.append(f"pod {pod.namespace}/{pod.name}: {error.message}")
    return found


def _node(
    name: NodeName,
    record: NodeRecord,
    promised: Mapping[PodUid, Placement],
    programmed: Mapping[PodUid, int],
) -> PlannedNode:
    """Return the node of a record; ValueError or MalformedError if its status is not reliable.

    programmed: generations of rates by pod, of those that the node's report does not hold.
    """
    if record.status is None or record.why:
        raise MalformedError(record.why or "it publishes nothing")
    if why := record.status.unready_reason():
        raise MalformedError(why)
    facts = read_facts(record.status, name)
    rates = ReportedRates(facts.reported, facts.generations, programmed)
    claims = interfaces_on_node(
        reported=rates.settled(promised), promised=rates.counted(promised), entries=facts.entries
    )
    node = PlannedNode(facts.inventory, facts.foreign, claims)
    place(_SIMPLEST, node.inventory, node.used())  # fails now, if ever
    return node


def may_be_on(node: NodeRecord, nodes: NodeSelection, tolerations: Collection[Toleration]) -> bool:
    """Report whether a pod may be on a node by its selection, taints and cordons."""
    if not nodes.selects(node.name, node.labels):
        return False
    taints = [DeviceTaint(taint.key, taint.value, taint.effect) for taint in node.taints]
    if node.unschedulable:
        taints.append(_CORDON)
    return all(
        any(toleration.tolerates(taint) for toleration in tolerations)
        for taint in taints
        if taint.effect in _BLOCKING
    )


def workload_of(pod: PodRecord) -> Workload:
    """Return a pod as a workload of its own. MalformedError if its annotations cannot be read."""
    return Workload(
        name=f"{pod.namespace}/{pod.name}",
        namespace=pod.namespace,
        request=request_of(pod.annotations, tuple(sorted(pod.devices.items()))),
        gang=f"{pod.namespace}/{pod.gang}" if pod.gang else "",
        priority=pod.priority,
        preempts=pod.preemption_policy is PreemptionPolicy.LOWER,
        depends_on_neighbours=pod.depends_on_neighbours,
        nodes=node_selection(pod.node_selector, pod.node_affinity),
        tolerations=tolerations_of(pod.tolerations),
    )


def relocated(pod: PodRecord | None, uid: PodUid, placement: Placement) -> Workload:
    """Return a pod that is to go to another node, by its placement if its annotations are unreadable."""
    if pod is not None and requests_interfaces(pod.annotations):
        try:
            return workload_of(pod)
        except MalformedError:
            pass
    name, namespace = (f"{pod.namespace}/{pod.name}", pod.namespace) if pod else (uid, "")
    pools = sorted({interface.pool for interface in placement.interfaces if interface.pool})
    return Workload(
        name=name,
        namespace=namespace,
        request=placement.request(),
        priority=pod.priority if pod else 0,
        obstacle=f"has devices of {', '.join(pools)} by no annotation" if pools else "",
    )


def policy_of(pod: PodRecord | None) -> PfPolicy:
    """Return the policy that a pod asks for; ANY if that cannot be read."""
    try:
        return workload_of(pod).request.policy if pod else PfPolicy.ANY
    except MalformedError:
        return PfPolicy.ANY


def request_of(annotations: Mapping[str, str], devices: tuple[tuple[str, int], ...]) -> Request:
    """Read a pod's request; devices: of extended resources. MalformedError names the annotation at fault."""
    request = read_pod(annotations, strict=True).request
    return with_gpus(replace(request, devices=devices), request_name(annotations))


def tolerations_of(records: Iterable[ApiToleration]) -> tuple[Toleration, ...]:
    """Convert tolerations to those that nodes' taints are compared with."""
    return tuple(
        Toleration(key=record.key, operator=record.operator, value=record.value, effect=record.effect)
        for record in records
    )
