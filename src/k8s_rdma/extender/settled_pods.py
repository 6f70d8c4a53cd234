"""Memory of pods that need no decision any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.pod_table import PodLimits, PodTable

if TYPE_CHECKING:
    from k8s_rdma.core.types import PodUid

_MAX_PODS = 10_000


class SettledPods:
    """The pods that were last seen bound, finished or gone.

    A verb waits for nodes and searches, and its pod may end during this time. If the verb then kept state for
    the pod, no later event would end that state.
    """

    def __init__(self, max_pods: int = _MAX_PODS) -> None:
        self._pods: PodTable[None] = PodTable(PodLimits(pods=max_pods))

    def add(self, uid: PodUid) -> None:
        """Remember a pod that is bound, finished or gone."""
        self._pods.put(uid, None)
        self._pods.trim()

    def __contains__(self, uid: object) -> bool:
        """Report whether the pod is remembered."""
        return uid in self._pods.by_uid
