"""Memory of pods that need no decision any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.pod_table import PodLimits, PodTable

if TYPE_CHECKING:
    from k8s_rdma.core.types import PodUid

_MAX_PODS = 10_000


class SettledPods:
    """The pods that were seen bound, finished or gone last.

    A verb waits for nodes and searches, and its pod may end meanwhile. No later event ends what the verb
    keeps of such a pod.
    """

    def __init__(self, max_pods: int = _MAX_PODS) -> None:
        self._pods: PodTable[None] = PodTable(PodLimits(pods=max_pods))

    def add(self, uid: PodUid) -> None:
        """The pod is bound, finished or gone."""
        self._pods.put(uid, None)
        self._pods.trim()

    def __contains__(self, uid: object) -> bool:
        """Report whether the pod is one of those."""
        return uid in self._pods.by_uid
