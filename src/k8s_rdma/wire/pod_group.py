"""PodGroup objects of `scheduling.k8s.io`, in each version, and of the plug-in Coscheduling.

The versions differ in `disruptionMode`, which is a word in v1alpha2 and an object with one key since, and in
`parentCompositePodGroupName`, which v1alpha2 lacks.

Sources: `k8s.io/api/scheduling/v1alpha2` (Kubernetes 1.36) and `v1beta1` (1.37), types.go;
`scheduling.x-k8s.io/v1alpha1`, kubernetes-sigs/scheduler-plugins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from k8s_rdma.core.pod_group import PodGroup

if TYPE_CHECKING:
    from collections.abc import Collection

VERSIONS = ("v1beta1", "v1alpha3", "v1alpha2")
"""The known versions of `scheduling.k8s.io`; if several are served, the first one is used."""

COSCHEDULING_VERSION = "v1alpha1"

PLURAL = "podgroups"

_ALL_TOGETHER = "PodGroup"
"""The `disruptionMode` of v1alpha2 that is `{"all": {}}` since v1alpha3."""

_NEVER = "Never"

_SCHEDULED = frozenset({"PodGroupInitiallyScheduled", "PodGroupScheduled"})
"""The condition's types: since v1alpha3, and of v1alpha2."""


class _Gang(msgspec.Struct, frozen=True, rename="camel"):
    min_count: int = 0


class _SchedulingPolicy(msgspec.Struct, frozen=True):
    gang: _Gang | None = None


class _DisruptionMode(msgspec.Struct, frozen=True):
    all: dict[str, object] | None = None


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    scheduling_policy: _SchedulingPolicy = _SchedulingPolicy()
    disruption_mode: _DisruptionMode | str | None = None
    priority: int | None = None
    preemption_policy: str | None = None
    parent_composite_pod_group_name: str | None = None

    @property
    def disrupted_together(self) -> bool:
        """Report whether evicting one of the pods means evicting all."""
        if isinstance(self.disruption_mode, _DisruptionMode):
            return self.disruption_mode.all is not None
        return self.disruption_mode == _ALL_TOGETHER


class _Condition(msgspec.Struct, frozen=True):
    type: str
    status: str
    reason: str = ""
    message: str = ""


class _Status(msgspec.Struct, frozen=True):
    conditions: tuple[_Condition, ...] | None = None


class _PodGroupObject(msgspec.Struct, frozen=True):
    spec: _Spec = _Spec()
    status: _Status = _Status()


class _CoschedulingSpec(msgspec.Struct, frozen=True, rename="camel"):
    min_member: int = 0


class _CoschedulingObject(msgspec.Struct, frozen=True):
    spec: _CoschedulingSpec = _CoschedulingSpec()


_pod_group = msgspec.json.Decoder(_PodGroupObject)
_coscheduling = msgspec.json.Decoder(_CoschedulingObject)


def decode_pod_group(document: bytes) -> PodGroup:
    """Decode a PodGroup of any version of `VERSIONS`; msgspec.MsgspecError if it is no PodGroup."""
    return _to_core(_pod_group.decode(document).spec)


class GroupSchedule(NamedTuple):
    """The condition that says whether kube-scheduler has scheduled a PodGroup."""

    status: bool
    reason: str
    message: str


def convert_pod_group(document: dict[str, Any]) -> tuple[PodGroup, GroupSchedule | None]:
    """Convert a PodGroup and its condition, if it has one; msgspec.ValidationError if it is no PodGroup."""
    found = msgspec.convert(document, _PodGroupObject)
    for condition in found.status.conditions or ():
        if condition.type in _SCHEDULED:
            schedule = GroupSchedule(condition.status == "True", condition.reason, condition.message)
            return _to_core(found.spec), schedule
    return _to_core(found.spec), None


def first_readable(served: Collection[str]) -> str:
    """Return the version to use of those that are served; empty if no known version is served."""
    return next((version for version in VERSIONS if version in served), "")


def _to_core(spec: _Spec) -> PodGroup:
    gang = spec.scheduling_policy.gang
    return PodGroup(
        min_count=gang.min_count if gang else 0,
        disrupted_together=spec.disrupted_together,
        priority=spec.priority,
        preempts=spec.preemption_policy != _NEVER,
        parent=spec.parent_composite_pod_group_name or "",
    )


def decode_coscheduling_group(document: bytes) -> PodGroup:
    """Decode a PodGroup of Coscheduling, which says how many of its pods are bound together, and no more."""
    return PodGroup(min_count=_coscheduling.decode(document).spec.min_member)
