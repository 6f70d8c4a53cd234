"""What the agent wants of the cluster it is part of: to ask, and to tell; it does its work without.

A pod's start never waits for what is told: that is queued, and lost rather than late.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from k8s_rdma.errors import K8sRdmaError, Reason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.core.ids import PodUid
    from k8s_rdma.core.ledger import Pod, Receipt
    from k8s_rdma.core.placement import Placement
    from k8s_rdma.wire.ipam_result import IpamResult


class Cluster(Protocol):
    """The pods of this node as the API server knows them. Used on the agent's loop."""

    async def annotations(self, pod: Pod) -> Mapping[str, str]:
        """A pod's annotations, for where the runtime does not deliver them.

        K8sRdmaError (`API_FAILURE`) when they cannot be had, or the pod of that name has another UID.
        """
        ...

    def claims(self) -> Mapping[PodUid, Placement]:
        """What the extender has promised to the bound, unfinished pods of this node, as far as is known.

        What is returned does not change: it may go to another thread.
        """
        ...

    async def claims_known(self) -> None:
        """Wait for the claims to be known for the first time, though not for long: pods start without."""
        ...

    def attached(self, receipt: Receipt, results: Mapping[str, IpamResult]) -> None:
        """Tell the pod what it was given. results: addresses by the interfaces' names."""
        ...

    def placed_anew(self, pod: Pod, why: str) -> None:
        """Tell that its promised placement did not fit any more, and that it got another on this node."""
        ...

    def refused(self, pod: Pod, error: K8sRdmaError) -> None:
        """Tell why the pod cannot have its interfaces here; it may be evicted if that goes on."""
        ...

    def cap_altered(self, pod: Pod, change: str, *, restored: bool) -> None:
        """Tell that a cap which software keeps did not hold, and whether it does again."""
        ...

    async def run(self) -> None:
        """Keep up with the cluster and tell it what there is to tell; until cancelled."""
        ...


class NoCluster:
    """For an agent without credentials."""

    async def annotations(self, pod: Pod) -> Mapping[str, str]:
        """There is nobody to ask."""
        msg = (
            f"pod {pod.namespace}/{pod.name}: the runtime delivered no annotations, and the agent has no "
            'credentials to ask the API server for them; set "capabilities": '
            '{"io.kubernetes.cri.pod-annotations": true} in the network configuration, or kubeconfig or '
            "inCluster in the agent's"
        )
        raise K8sRdmaError(msg, reason=Reason.INVALID_NETCONF)

    def claims(self) -> Mapping[PodUid, Placement]:
        """None is known."""
        return {}

    async def claims_known(self) -> None:
        """There is nothing to wait for."""

    def attached(self, receipt: Receipt, results: Mapping[str, IpamResult]) -> None:
        """Nobody is told."""

    def placed_anew(self, pod: Pod, why: str) -> None:
        """Nobody is told."""

    def refused(self, pod: Pod, error: K8sRdmaError) -> None:
        """Nobody is told."""

    def cap_altered(self, pod: Pod, change: str, *, restored: bool) -> None:
        """Nobody is told."""

    async def run(self) -> None:
        """There is nothing to do."""
        await asyncio.Event().wait()
