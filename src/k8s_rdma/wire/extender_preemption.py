"""preempt of the scheduler extender (`k8s.io/kube-scheduler/extender/v1`, `ExtenderPreemptionArgs`).

Victims come as whole pods, or by UID alone when registered `nodeCacheCapable`; they go back by UID.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.extender import Pod, PodSpec
from k8s_rdma.wire.json import decode


class VictimMetadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Of a victim's metadata what this system reads."""

    uid: str
    name: str = ""
    namespace: str = ""
    labels: dict[str, str] | None = None


class VictimStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Of a victim's status what this system reads."""

    start_time: str = ""


class VictimPod(msgspec.Struct, frozen=True, kw_only=True):
    """A victim as a whole pod."""

    metadata: VictimMetadata
    spec: PodSpec = PodSpec()
    status: VictimStatus = VictimStatus()


class Victims(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """Whom the scheduler would evict from a node; how many of these evictions no disruption budget allows."""

    pods: list[VictimPod] | None = None
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)


class MetaPod(msgspec.Struct, frozen=True):
    """A victim by UID."""

    uid: str = msgspec.field(name="UID")


class MetaVictims(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """As `Victims`, by UID."""

    pods: list[MetaPod] | None = None
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)

    @property
    def uids(self) -> tuple[str, ...]:
        """The victims."""
        return tuple(pod.uid for pod in self.pods or ())


class ExtenderPreemptionArgs(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """The body of preempt."""

    pod: Pod
    node_name_to_victims: dict[str, Victims] | None = None
    node_name_to_meta_victims: dict[str, MetaVictims] | None = None

    def by_uid(self) -> Mapping[str, MetaVictims]:
        """The victims of each node by UID, whichever way they came."""
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
_encoder = msgspec.json.Encoder()


def decode_preemption(body: bytes | bytearray) -> ExtenderPreemptionArgs:
    """Parse the body of preempt; MalformedError names the field."""
    args = decode(body, _decoder, "preemption arguments")
    if args.node_name_to_victims is None and args.node_name_to_meta_victims is None:
        msg = "preemption arguments: neither NodeNameToVictims nor NodeNameToMetaVictims holds a map"
        raise MalformedError(msg)
    return args


def encode_preemption(result: ExtenderPreemptionResult) -> bytes:
    """The reply's bytes."""
    return _encoder.encode(result)
