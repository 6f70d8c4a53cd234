"""A pod that is to be scheduled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.core.gang import Gang
from k8s_rdma.core.ids import PodUid
from k8s_rdma.core.request import Request

if TYPE_CHECKING:
    from k8s_rdma.kube.api import PodView
    from k8s_rdma.wire.extender import Pod


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingPod:
    """Who asks, with what priority (the higher may take from the lower), what for, and in which gang."""

    uid: PodUid
    namespace: str
    name: str
    priority: int
    request: Request
    gang: Gang | None = None

    @property
    def pod(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @classmethod
    def of(cls, pod: Pod, request: Request) -> PendingPod:
        """The pod of a scheduler's question."""
        return cls(
            uid=PodUid(pod.metadata.uid),
            namespace=pod.metadata.namespace,
            name=pod.metadata.name,
            priority=pod.priority,
            request=request,
            gang=pod.gang,
        )

    @classmethod
    def of_view(cls, pod: PodView, request: Request) -> PendingPod:
        """The pod as the API server has it."""
        return cls(
            uid=pod.uid,
            namespace=pod.namespace,
            name=pod.name,
            priority=pod.priority,
            request=request,
            gang=pod.gang,
        )
