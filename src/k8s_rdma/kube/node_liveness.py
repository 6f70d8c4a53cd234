"""Liveness of nodes' agents, for commands: by the extender's word, else by Leases as it judges them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from k8s_rdma.kube.documents import Documents, segment
from k8s_rdma.wire.node_lease import NodeLease
from k8s_rdma.wire.objects.meta import NamedIdentity


class _Lease(msgspec.Struct, frozen=True):
    metadata: NamedIdentity
    spec: NodeLease = NodeLease()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLiveness:
    """Verdicts on nodes that publish themselves.

    leases: by node.
    now: by the API server's clock.
    stale_s: as in the extender's configuration.
    extender: why it refuses nodes (`wire.views.unreadable_nodes`); None if it was not asked, or did not
        answer.
    faults: Leases that cannot be read, one sentence each.
    """

    leases: Mapping[str, NodeLease]
    now: datetime
    stale_s: float
    extender: Mapping[str, str] | None = None
    faults: tuple[str, ...] = ()

    def has_lease(self, node: str) -> bool:
        """Report whether the node has a Lease that was ever renewed."""
        lease = self.leases.get(node)
        return lease is not None and lease.renew_time is not None

    def is_by_extender(self, node: str) -> bool:
        """Report whether the verdict on the node is the extender's own."""
        return self.extender is not None and node in self.extender

    def why_refused(self, node: str, generation: str, skew_s: float | None) -> str:
        """Describe why the extender refuses the node; empty if it does not.

        The extender knows when it saw the Lease renewed. Without its verdict, two clocks are compared: the
        node's, which dated the renewal, and the API server's.

        generation: of the published state of the node.
        skew_s: as of `wire.node_clock.clock_skew_s`.
        """
        if self.extender is not None and node in self.extender:
            return self.extender[node]
        lease = self.leases.get(node, NodeLease())
        return lease.silence(generation, self.stale_s, self.now, skew_s or 0.0)


def read_liveness(
    api: Documents, *, namespace: str, stale_s: float, extender: Mapping[str, str] | None
) -> NodeLiveness:
    """Read the Leases of nodes. namespace: where they are. ApiRefusedError and the like."""
    leases: dict[str, NodeLease] = {}
    faults = []
    for item in api.items(f"/apis/coordination.k8s.io/v1/namespaces/{segment(namespace)}/leases"):
        try:
            lease = msgspec.convert(item, _Lease)
        except msgspec.ValidationError as error:
            faults.append(f"Lease {_name(item)}: {error}")
        else:
            leases[lease.metadata.name] = lease.spec
    return NodeLiveness(
        leases=leases, now=api.now(), stale_s=stale_s, extender=extender, faults=tuple(faults)
    )


def _name(item: Mapping[str, Any]) -> str:
    metadata = item.get("metadata")
    return str(metadata.get("name")) if isinstance(metadata, dict) else ""
