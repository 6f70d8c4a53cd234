"""The interface between agent and cluster: the agent also works without one.

A pod's start never waits for a write: writes are queued, and lost rather than late.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from k8s_rdma.errors import K8sRdmaError, Reason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.core.ledger import Pod, Receipt
    from k8s_rdma.core.placement import Placement
    from k8s_rdma.core.types import PodUid
    from k8s_rdma.wire.ipam_result import IpamResult


class Cluster(Protocol):
    """Knows this node's pods, and writes their events and status. Used on the agent's loop."""

    async def annotations(self, pod: Pod) -> Mapping[str, str]:
        """Read a pod's annotations, where the runtime does not pass them.

        K8sRdmaError (`API_FAILURE`) when they cannot be read, or the pod of that name has another UID.
        """
        ...

    def claims(self) -> Mapping[PodUid, Placement]:
        """Return the known placements of this node's bound, unfinished pods.

        The mapping never changes, so that other threads may read it.
        """
        ...

    async def claims_known(self) -> None:
        """Wait a short while for the first list of claims; pods also start without."""
        ...

    def attached(self, receipt: Receipt, results: Mapping[str, IpamResult]) -> None:
        """Publish a pod's new interfaces. results: addresses by the interfaces' names."""
        ...

    def placed_anew(self, pod: Pod, why: str) -> None:
        """Report that a pod's placement did not fit any more, and that it got another on this node."""
        ...

    def refused(self, pod: Pod, error: K8sRdmaError) -> None:
        """Report why the pod cannot have its interfaces here; it may be evicted if that lasts."""
        ...

    def cap_altered(self, pod: Pod, change: str, *, restored: bool) -> None:
        """Report that a cap of software did not hold, and whether it does again."""
        ...

    async def run(self) -> None:
        """Follow the cluster and send queued writes, until cancelled."""
        ...


class NoCluster:
    """The cluster of an agent without credentials."""

    async def annotations(self, pod: Pod) -> Mapping[str, str]:
        """Refuse: there is no API server."""
        msg = (
            f"pod {pod.namespace}/{pod.name}: the runtime delivered no annotations, and the agent has no "
            'credentials to ask the API server for them; set "capabilities": '
            '{"io.kubernetes.cri.pod-annotations": true} in the network configuration, or kubeconfig or '
            "inCluster in the agent's"
        )
        raise K8sRdmaError(msg, reason=Reason.INVALID_NETCONF)

    def claims(self) -> Mapping[PodUid, Placement]:
        """Return no claims."""
        return {}

    async def claims_known(self) -> None:
        """Return at once."""

    def attached(self, receipt: Receipt, results: Mapping[str, IpamResult]) -> None:
        """Ignore it."""

    def placed_anew(self, pod: Pod, why: str) -> None:
        """Ignore it."""

    def refused(self, pod: Pod, error: K8sRdmaError) -> None:
        """Ignore it."""

    def cap_altered(self, pod: Pod, change: str, *, restored: bool) -> None:
        """Ignore it."""

    async def run(self) -> None:
        """Return at once: there is no work."""
        await asyncio.Event().wait()
