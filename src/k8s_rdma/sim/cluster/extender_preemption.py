"""preempt of the extender protocol, as kube-scheduler sends and reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from k8s_rdma.sim.cluster.cached import cached_pod
from k8s_rdma.sim.cluster.go_json import fields_regardless_of_case, go_json
from k8s_rdma.sim.cluster.objects import JsonObject, uid_of

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Victims:
    """Pods to evict from a node, and how many of the evictions no disruption budget allows."""

    pods: tuple[JsonObject, ...]
    violations: int


@dataclass(frozen=True, slots=True)
class MetaVictims:
    """As `Victims`, by UID."""

    uids: tuple[str, ...]
    violations: int


class PreemptReply(msgspec.Struct, frozen=True, rename=lambda name: name.replace("_", "")):
    """`ExtenderPreemptionResult`, its field in lower case."""

    node_name_to_meta_victims: dict[str, dict[str, Any] | None] | None = None


class _Meta(msgspec.Struct, frozen=True):
    pods: list[dict[str, Any]] | None = None
    numpdbviolations: int = 0


class _MetaPod(msgspec.Struct, frozen=True):
    uid: str = ""


def preemption_arguments(pod: JsonObject, victims: Mapping[str, Victims], *, uids_only: bool) -> bytes:
    """The body of preempt (`ExtenderPreemptionArgs`); nodes in alphabetical order, as Go writes maps."""
    by_node = {node: victims[node] for node in sorted(victims)}
    whole = None if uids_only else {node: _whole(each) for node, each in by_node.items()}
    meta = {node: _meta(each) for node, each in by_node.items()} if uids_only else None
    return go_json({"Pod": cached_pod(pod), "NodeNameToVictims": whole, "NodeNameToMetaVictims": meta})


def meta_victims(reply: PreemptReply) -> dict[str, MetaVictims]:
    """The victims by node; msgspec.ValidationError when they are none."""
    return {
        node: _read(msgspec.convert(fields_regardless_of_case(each or {}), _Meta))
        for node, each in (reply.node_name_to_meta_victims or {}).items()
    }


def _read(meta: _Meta) -> MetaVictims:
    pods = [msgspec.convert(fields_regardless_of_case(pod), _MetaPod) for pod in meta.pods or ()]
    return MetaVictims(tuple(pod.uid for pod in pods), meta.numpdbviolations)


def _whole(victims: Victims) -> JsonObject:
    return {"Pods": [cached_pod(pod) for pod in victims.pods], "NumPDBViolations": victims.violations}


def _meta(victims: Victims) -> JsonObject:
    return {"Pods": [{"UID": uid_of(pod)} for pod in victims.pods], "NumPDBViolations": victims.violations}
