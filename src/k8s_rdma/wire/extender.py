"""Documents of the scheduler extender (`k8s.io/kube-scheduler/extender/v1`).

The Go types carry no JSON tags, so that keys are the Go names and absent values are explicit nulls. Node
objects are the bulk of a request (10 KB each); they stay the request's own bytes, are looked into only for
name and addresses, and go back as they came. Victims of preempt come as whole pods, or by UID alone when
registered `nodeCacheCapable`; they go back by UID.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias

import msgspec

from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.json import (
    HUGE_PAGE_BYTES,
    Buffer,
    Document,
    decode,
    decode_large,
    joined,
    size_of,
)
from k8s_rdma.wire.objects.meta import NamedIdentity, ObjectMeta
from k8s_rdma.wire.objects.node import NodeAddresses
from k8s_rdma.wire.objects.pod import KubePod
from k8s_rdma.wire.pod_spec import devices_of, gang_of

if TYPE_CHECKING:
    from k8s_rdma.core.types import Gang

# The sentences that `kubectl describe pod` shows and that existing runbooks search for, word by word.
UNREADABLE_NODE = (
    "RDMA Scheduler Extension: Unable to collect information on available RDMA resources for node."
)
NOT_ENOUGH_FREE = "RDMA Scheduler Extension: Node did not have enough free RDMA resources."
MALFORMED_ANNOTATION = (
    "RDMA Scheduler Extension: 'rdma_interfaces_required' field in pod YAML file is malformatted."
)

NOT_ALLOWED = "RDMA Scheduler Extension: the pod asks for what its namespace may not have."

MAX_SCORE = 10
"""`MaxExtenderPriority`: scores are integers 0..10; one that is not makes the scheduler drop the reply."""

_NO_ANNOTATIONS: Mapping[str, str] = MappingProxyType({})

Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=253, pattern=r"\A[a-z0-9]([-.a-z0-9]*[a-z0-9])?\Z")]
"""The name of an object: it becomes part of paths, of log lines and of messages."""

Uid: TypeAlias = Annotated[str, msgspec.Meta(max_length=253, pattern=r"\A[!-~]+\Z")]
"""A UID, by which pods are remembered."""

_encoder = msgspec.json.Encoder()

_NO_NODES = b'{"Nodes":null'
_NAME_FIRST = re.compile(rb'\{"metadata":\{"name":"([-.0-9a-z]+)"')
"""Begin of a node object as Go encodes it: to parse it whole takes 20 times as long."""


def sentence_of(refused: MalformedError) -> str:
    """Return the sentence for a pod that is refused as a whole, on every node."""
    return NOT_ALLOWED if refused.reason is Reason.NOT_ALLOWED else MALFORMED_ANNOTATION


class PodMetadata(ObjectMeta, frozen=True, kw_only=True):
    """The metadata of a pod to be scheduled."""

    name: Name
    namespace: Name
    uid: Uid


class PodToSchedule(KubePod, frozen=True, kw_only=True):
    """The pod to be scheduled."""

    metadata: PodMetadata

    @property
    def annotations(self) -> Mapping[str, str]:
        """The pod's annotations."""
        return self.metadata.annotations or _NO_ANNOTATIONS

    @property
    def priority(self) -> int:
        """The pod's priority; 0 if admission set none."""
        return self.spec.priority or 0

    @property
    def gang(self) -> Gang | None:
        """The gang that it belongs to."""
        return gang_of(self.metadata.namespace, self.spec.scheduling_group, self.metadata.labels or {})

    @property
    def devices(self) -> tuple[tuple[str, int], ...]:
        """The devices of extended resources that the pod has; ValueError for a bad quantity."""
        return devices_of(self.spec)

    @property
    def limits(self) -> tuple[Mapping[str, str], ...]:
        """The resource limits of each container, init containers first."""
        containers = (self.spec.init_containers or ()) + (self.spec.containers or ())
        return tuple((c.resources.limits if c.resources else None) or {} for c in containers)


class NodeList(msgspec.Struct, frozen=True, kw_only=True):
    """A `v1.NodeList`, its items undecoded."""

    metadata: msgspec.Raw = msgspec.Raw(b"{}")
    items: list[msgspec.Raw] | None = None


class ExtenderArgs(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """The body of filter and prioritize: `Nodes`, or `NodeNames` when registered `nodeCacheCapable`."""

    pod: PodToSchedule
    nodes: NodeList | None = None
    node_names: list[str] | None = None

    @property
    def count(self) -> int:
        """The number of candidate nodes."""
        return len((self.node_names if self.nodes is None else self.nodes.items) or ())

    def candidates(self) -> list[Candidate]:
        """Return the nodes to choose from, in the request's order; MalformedError if one has no name."""
        items = (self.nodes.items if self.nodes is not None else None) or ()
        return [Candidate(_name(raw, index), raw) for index, raw in enumerate(items)]


class Candidate(NamedTuple):
    """A node to choose from; there may be thousands. raw: the node object as it came."""

    name: str
    raw: msgspec.Raw

    def addresses(self) -> tuple[str, ...]:
        """Decode `InternalIP` and `InternalDNS`, in the object's order. MalformedError names it."""
        node = decode_large(self.raw, _address_decoder, f"Nodes.items: {self.name}")
        return node.status.internal()


class ExtenderFilterResult(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """The reply to filter.

    failed_nodes: refusals that evicting pods might cure.
    failed_and_unresolvable_nodes: those it cannot.
    error: fails the pod's whole scheduling attempt and is shown as it is.
    """

    nodes: NodeList | None = None
    node_names: list[str] | None = None
    failed_nodes: Mapping[str, str] = {}
    failed_and_unresolvable_nodes: Mapping[str, str] = {}
    error: str = ""


class HostPriority(msgspec.Struct, frozen=True, rename="pascal", gc=False):
    """A node's score, 0..`MAX_SCORE`."""

    host: str
    score: int


class ExtenderBindingArgs(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """The body of a bind request; an invalid name never reaches the API server's paths."""

    pod_name: Name
    pod_namespace: Name
    pod_uid: Uid = msgspec.field(name="PodUID")
    node: Name


class ExtenderBindingResult(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """The reply to bind; an empty error is success."""

    error: str = ""


Reply = ExtenderFilterResult | list[HostPriority] | ExtenderBindingResult


class _NamedNode(msgspec.Struct, frozen=True):
    metadata: NamedIdentity


class _ReachableNode(msgspec.Struct, frozen=True):
    status: NodeAddresses = NodeAddresses()


_args_decoder = msgspec.json.Decoder(ExtenderArgs)
_binding_decoder = msgspec.json.Decoder(ExtenderBindingArgs)
_name_decoder = msgspec.json.Decoder(_NamedNode)
_address_decoder = msgspec.json.Decoder(_ReachableNode)


def decode_args(body: Buffer) -> ExtenderArgs:
    """Parse the body of filter or prioritize; MalformedError names the field."""
    args = decode_large(body, _args_decoder, "extender arguments")
    if args.nodes is None and args.node_names is None:
        msg = "extender arguments: neither Nodes nor NodeNames holds a list"
        raise MalformedError(msg)
    return args


def in_both_maps(result: ExtenderFilterResult) -> ExtenderFilterResult:
    """Return the result with each refusal in `FailedNodes`, too.

    kube-scheduler from 1.21 on reads a node of both maps as one that evictions cannot help. Before, it does
    not know `FailedAndUnresolvableNodes`, and shows no reason for nodes that are there alone.

    Source: `findNodesThatPassExtenders`, pkg/scheduler/schedule_one.go.
    """
    failed = {**result.failed_and_unresolvable_nodes, **result.failed_nodes}
    return msgspec.structs.replace(result, failed_nodes=failed)


def decode_binding(body: Buffer) -> ExtenderBindingArgs:
    """Parse the body of bind; MalformedError names the field."""
    return decode(body, _binding_decoder, "binding arguments")


def encode_reply(reply: Reply) -> Document:
    """Encode the reply; node objects as they came, so that a large reply keeps the request's memory."""
    if not isinstance(reply, ExtenderFilterResult) or reply.nodes is None:
        return _encoder.encode(reply)
    other_keys = _encoder.encode(msgspec.structs.replace(reply, nodes=None)).removeprefix(_NO_NODES)
    parts: list[Buffer] = [b'{"Nodes":{"metadata":', reply.nodes.metadata, b',"items":[']
    for item in reply.nodes.items or ():
        parts += item, b","
    if reply.nodes.items:
        parts.pop()
    document = (*parts, b"]}", other_keys)
    return document if size_of(document) >= HUGE_PAGE_BYTES else joined(document)


def _name(raw: msgspec.Raw, index: int) -> str:
    if found := _NAME_FIRST.match(raw):
        return found[1].decode("ascii")
    return decode_large(raw, _name_decoder, f"Nodes.items[{index}]").metadata.name


class VictimMetadata(ObjectMeta, frozen=True, kw_only=True):
    """The metadata of a victim."""

    uid: str


class VictimPod(KubePod, frozen=True, kw_only=True):
    """A victim as a whole pod."""

    metadata: VictimMetadata


class NodeVictims(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """The scheduler's victims on a node, and the number of evictions that no disruption budget allows."""

    pods: list[VictimPod] | None = None
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)


class MetaPod(msgspec.Struct, frozen=True):
    """A victim by UID."""

    uid: str = msgspec.field(name="UID")


class MetaVictims(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """The victims on a node, by UID."""

    pods: list[MetaPod] | None = None
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)

    @property
    def uids(self) -> tuple[str, ...]:
        """The UIDs of the victims."""
        return tuple(pod.uid for pod in self.pods or ())


class ExtenderPreemptionArgs(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """The body of a preempt request."""

    pod: PodToSchedule
    node_name_to_victims: dict[str, NodeVictims] | None = None
    node_name_to_meta_victims: dict[str, MetaVictims] | None = None

    @property
    def count(self) -> int:
        """The number of candidate nodes."""
        return len(self.node_name_to_meta_victims or self.node_name_to_victims or ())

    def by_uid(self) -> Mapping[str, MetaVictims]:
        """Return the victims of each node by UID, from either form of the request."""
        if self.node_name_to_meta_victims is not None:
            return self.node_name_to_meta_victims
        return {
            node: MetaVictims(
                pods=[MetaPod(pod.metadata.uid) for pod in victims.pods or ()],
                num_pdb_violations=victims.num_pdb_violations,
            )
            for node, victims in (self.node_name_to_victims or {}).items()
        }


class ExtenderPreemptionResult(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """The reply: the nodes on which evictions help, and whose. One without victims fails the whole call."""

    node_name_to_meta_victims: Mapping[str, MetaVictims]


_decoder = msgspec.json.Decoder(ExtenderPreemptionArgs)


def decode_preemption(body: Buffer) -> ExtenderPreemptionArgs:
    """Parse the body of preempt; MalformedError names the field."""
    args = decode_large(body, _decoder, "preemption arguments")
    if args.node_name_to_victims is None and args.node_name_to_meta_victims is None:
        msg = "preemption arguments: neither NodeNameToVictims nor NodeNameToMetaVictims holds a map"
        raise MalformedError(msg)
    return args


def encode_preemption(result: ExtenderPreemptionResult) -> bytes:
    """Encode the reply."""
    return _encoder.encode(result)
