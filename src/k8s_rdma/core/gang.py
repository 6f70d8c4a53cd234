"""Gangs: pods that are to run all together, or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class GangApi(Enum):
    """Whose PodGroup says how many pods make a gang; the value is the API group.

    KUBERNETES: kube-scheduler's own, `spec.schedulingGroup` of a pod. COSCHEDULING: the plug-in of
    kubernetes-sigs/scheduler-plugins, a label of a pod.
    """

    KUBERNETES = "scheduling.k8s.io"
    COSCHEDULING = "scheduling.x-k8s.io"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """A PodGroup that pods belong to, by its name: whether there is one, and what it says, is not known."""

    api: GangApi
    namespace: str
    name: str

    def __str__(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"
