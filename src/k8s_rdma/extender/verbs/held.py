"""What is held for a pod that is being bound, and what follows from the pod as the API server shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.core.ids import NodeName, PodUid
from k8s_rdma.core.ledger import Pod
from k8s_rdma.core.namespace_policy import NO_POLICIES, NamespacePolicies
from k8s_rdma.extender.cluster.state import ClusterState
from k8s_rdma.kube.promised import promised_to
from k8s_rdma.wire.annotation import ANNOTATION
from k8s_rdma.wire.placement_keys import UNSIGNED, KeySource

if TYPE_CHECKING:
    from k8s_rdma.extender.cluster.state import Reservation
    from k8s_rdma.kube.api import PodView


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """A pod that is to be bound to a node."""

    namespace: str
    name: str
    uid: PodUid
    node: NodeName

    @property
    def pod(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def identity(self) -> Pod:
        """The pod alone."""
        return Pod(namespace=self.namespace, name=self.name, uid=self.uid)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The reservations of binds. clock: seconds, monotonic. keys, policies: as in `Commits`."""

    state: ClusterState
    clock: Callable[[], float]
    keys: KeySource = UNSIGNED
    policies: Callable[[], NamespacePolicies] = lambda: NO_POLICIES

    def doubted(self, uid: PodUid) -> bool:
        """Whether an earlier bind of the pod may still take effect."""
        held = (self.state.reservation(node, uid) for node in self.state.nodes_of(uid))
        return any(reservation.in_doubt for reservation in held if reservation)

    def settle(self, bind: Bind, pod: PodView | None) -> PodView | str:
        """What follows from the pod as it is now; to be read after every write of it but those under way.

        The pod while it is unbound; else the answer of the bind, empty when it is bound as it shall be.
        """
        if pod is None or pod.uid != bind.uid:
            self._end(bind.uid)
            return f"pod {bind.pod} with UID {bind.uid} does not exist any more"
        if pod.node is not None:
            return self._found_bound(bind, pod, pod.node)
        for node, held in self.unbound(bind.uid):
            if not (held.in_doubt and held.version == pod.version):
                self.state.withdraw(node, bind.uid)
        return pod

    def _found_bound(self, bind: Bind, pod: PodView, node: NodeName) -> str:
        """The pod is bound: by an earlier write of ours, or by someone else."""
        here = node == bind.node
        if here and not pod.annotations.get(ANNOTATION):
            return ""
        promise = promised_to(pod, self.keys(), self.policies()) if here else None
        if promise is not None:
            self.state.written(node, bind.uid, promise.placement.interfaces)
            return ""
        self.drop(bind.uid)
        without = ", without a placement of this extender" if here else ""
        return f"pod {bind.pod} is already bound to node {node}{without}"

    def _end(self, uid: PodUid) -> None:
        """The pod is gone; what may have been bound counts until its node says that it holds nothing."""
        for node, held in self.unbound(uid):
            if not held.in_doubt:
                self.state.withdraw(node, uid)
        self.state.ended(uid, self.clock())

    def unbound(self, uid: PodUid) -> list[tuple[NodeName, Reservation]]:
        """Where something is held for the pod, for a bind that is not known to have taken effect."""
        held = [(node, self.state.reservation(node, uid)) for node in self.state.nodes_of(uid)]
        return [(node, each) for node, each in held if each and not each.bound and each.ended_at is None]

    def drop(self, uid: PodUid) -> None:
        """No bind of the pod can take effect any more."""
        for node, _ in self.unbound(uid):
            self.state.withdraw(node, uid)
