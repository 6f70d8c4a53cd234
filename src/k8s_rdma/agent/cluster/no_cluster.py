"""The cluster of an agent without credentials: no API server, but placements that are delivered.

The extender sends the later placement of a running pod through the node's server to `state.sock`. Neither is
trusted: a placement counts if one of the cluster's keys signed it for a pod that has interfaces
here, and if it is no earlier one than the pod has had. An agent with credentials judges its pods' annotations
alike (`api_cluster.NodePods`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from k8s_rdma.errors import K8sRdmaError, MalformedError, Reason
from k8s_rdma.wire.placement_annotation import decode_promise
from k8s_rdma.wire.placement_keys import UNSIGNED, KeySource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Set

    from k8s_rdma.agent.cluster.api_cluster import CapsRequests, Consumers
    from k8s_rdma.core.ledger import Pod, Receipt
    from k8s_rdma.core.placement import Placement
    from k8s_rdma.core.types import NodeName, PodUid


class NoCluster:
    """Implements `PodCluster` without an API server."""

    takes_placements = True

    def __init__(
        self,
        node: NodeName | None = None,
        keys: KeySource = UNSIGNED,
        generations: Callable[[], Mapping[PodUid, int]] = dict,
    ) -> None:
        """Know no placements. keys: verify delivered ones.

        generations: returns the generation of the rates that each pod with interfaces has here.
        """
        self._node, self._keys, self._generations = node, keys, generations
        self._placements: Mapping[PodUid, Placement] = {}
        self._change = asyncio.Event()

    def deliver(self, text: bytes) -> None:
        """Implement `PodCluster.deliver`."""
        keys = self._keys()
        if keys is None:
            msg = "the agent has no key that verifies placements (placementKeyFile)"
            raise K8sRdmaError(msg, reason=Reason.NOT_ALLOWED)
        try:
            promise = decode_promise(text.decode(), keys=keys)
        except UnicodeDecodeError as error:
            msg = "placement: no UTF-8"
            raise MalformedError(msg) from error
        uid, placement = promise.uid, promise.placement
        if placement.node != self._node:
            msg = f"placement: made for node {placement.node}, not {self._node}"
            raise K8sRdmaError(msg, reason=Reason.STALE_PLACEMENT)
        programmed = self._generations().get(uid)
        if programmed is None:
            msg = f"placement: made for the pod with UID {uid}, which has no interfaces here"
            raise K8sRdmaError(msg, reason=Reason.STALE_PLACEMENT)
        delivered = self._placements.get(uid)
        latest = max(programmed, delivered.generation if delivered else 0)
        if placement.generation < latest:
            msg = f"placement: of generation {placement.generation}, and there was generation {latest}"
            raise K8sRdmaError(msg, reason=Reason.STALE_PLACEMENT)
        if placement != delivered:
            self._placements = {**self.placements(), uid: placement}
            change, self._change = self._change, asyncio.Event()
            change.set()

    def placements(self) -> Mapping[PodUid, Placement]:
        """Return the delivered placements of pods that have interfaces here."""
        if self._placements and (ended := self._placements.keys() - self._generations().keys()):
            self._placements = {
                uid: placement for uid, placement in self._placements.items() if uid not in ended
            }
        return self._placements

    async def wait_for_placements(self, previous: Mapping[PodUid, Placement]) -> Mapping[PodUid, Placement]:
        """Wait until the delivered placements differ from the previous ones, and return them."""
        while self.placements() == previous:
            await self._change.wait()
        return self.placements()

    async def annotations(self, pod: Pod) -> Mapping[str, str]:
        """Refuse: there is no API server."""
        msg = (
            f"pod {pod.full_name}: the runtime delivered no annotations, and the agent has no "
            'credentials to ask the API server for them; set "capabilities": '
            '{"io.kubernetes.cri.pod-annotations": true} in the network configuration, or kubeconfig or '
            "inCluster in the agent's"
        )
        raise K8sRdmaError(msg, reason=Reason.INVALID_NETCONF)

    async def identified(self, pod: Pod) -> Pod:
        """Return the pod as it is: there is no API server."""
        return pod

    async def wait_listed(self) -> None:
        """Return at once: there is no list of placements."""

    def lasting_pods(self) -> Set[PodUid]:
        """Return an empty mapping: they stay unknown."""
        return frozenset()

    async def wait_for_consumers(self, previous: Consumers | None) -> Consumers:  # noqa: ARG002 - the Protocol's
        """Wait forever: they stay unknown."""
        await asyncio.Event().wait()
        raise AssertionError

    async def wait_for_caps(self, previous: CapsRequests | None) -> CapsRequests:  # noqa: ARG002 - the Protocol's
        """Wait forever: they stay unknown."""
        await asyncio.Event().wait()
        raise AssertionError

    def caps_decided(self, pod: Pod, status: str) -> None:
        """Ignore the status."""

    def attached(self, receipt: Receipt, results: Mapping[str, object]) -> None:
        """Ignore the attachment."""

    def annotation_ignored(self, pod: Pod, why: str) -> None:
        """Ignore the annotation."""

    def placed_anew(self, pod: Pod, why: str) -> None:
        """Ignore the new placement."""

    def refused(self, pod: Pod, error: K8sRdmaError) -> None:
        """Ignore the refusal."""

    def cap_altered(self, pod: Pod, change: str, *, restored: bool) -> None:
        """Ignore the altered cap."""

    def rates_changed(self, pod: Pod, change: str, *, refused: bool) -> None:
        """Ignore the change."""

    async def run(self) -> None:
        """Wait forever: there is no work."""
        await asyncio.Event().wait()
