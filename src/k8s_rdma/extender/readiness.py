"""Whether this process may promise anything yet, and what it still waits for."""

from __future__ import annotations

from dataclasses import dataclass

from k8s_rdma.extender.cluster.following import NodeTracker, PodTracker
from k8s_rdma.extender.leader.leading import Leading
from k8s_rdma.extender.sources.node_states import ShownNodeStates
from k8s_rdma.wire.explain import ExtenderState


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """api: whether there is an API server to follow; without one nothing is waited for."""

    api: bool
    leading: Leading
    pods: PodTracker
    nodes: NodeTracker
    states: ShownNodeStates

    def ready(self) -> bool:
        """Whether every promise that others made is known, and nobody else makes any now."""
        return not self.api or (self.leading.holds() and self.nodes.listed and not self.states.awaited())

    def missing(self) -> list[str]:
        """In words for people; empty when ready."""
        if not self.api:
            return []
        awaited = [f"the states of {number} nodes"] if (number := self.states.awaited()) else []
        return self.leading.missing() + (awaited if self.nodes.listed else ["nodes"])

    def role(self) -> ExtenderState:
        """What to say of this process."""
        lacking = tuple(self.missing())
        warm = self.pods.listed and self.nodes.listed
        return ExtenderState(
            role=("standby" if warm else "starting") if lacking else "active", missing=lacking
        )
