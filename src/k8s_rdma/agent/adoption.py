"""The adoption of foreign, unused VFs at an operator's request (`k8s-rdma agent adopt`)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import structlog

from k8s_rdma.agent.calls import AgentCall
from k8s_rdma.agent.cni.kubelet_devices import PodDeviceLookup
from k8s_rdma.agent.node import Adopted, Node
from k8s_rdma.core.allocation import Scope, VfCandidate
from k8s_rdma.wire.adopt import AdoptedVf, AdoptReply, decode_adopt, encode_adopted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from k8s_rdma.agent.report import Reporter
    from k8s_rdma.agent.worker import Worker
    from k8s_rdma.wire.cni_socket import Reply, SocketRequest

_log = structlog.get_logger()


class Adoption:
    """Adopts foreign VFs at an operator's request."""

    def __init__(
        self, *, node: Node, worker: Worker, reporter: Reporter, pod_devices: PodDeviceLookup | None = None
    ) -> None:
        """Adopt VFs by `call` alone. pod_devices: finds VFs that pods have without an attachment."""
        self._node = node
        self._pod_devices = pod_devices or PodDeviceLookup()
        self._worker = worker
        self._reporter = reporter

    async def call(self, request: SocketRequest) -> Reply:
        """Adopt the VFs that the request names. A failure is an answer, too."""
        return await AgentCall(
            name="adopt",
            perform=partial(self._answer, request),
            failed=lambda error: encode_adopted(AdoptReply(error=str(error))),
            publish=self._reporter.publish,
        ).answer()

    async def _answer(self, request: SocketRequest) -> Reply:
        adopt_request = decode_adopt(request)
        scope = Scope(pf=adopt_request.pf, vf=adopt_request.vf)
        in_use = await self._pod_devices.exclusive()
        found = await self._worker.run(self._node.adoptable, scope, in_use)
        outcomes = map(_supposed, found) if adopt_request.dry_run else await self._adopt(found, in_use)
        vfs = tuple(map(_adopted_vf, outcomes))
        for vf in vfs:
            rates = {"min_tx_rate": vf.min_tx_rate, "max_tx_rate": vf.max_tx_rate, "vlan": vf.vlan}
            _log.info("vf_adoption", pf=vf.pf, vf=vf.vf, outcome=vf.outcome, why=vf.why, previous=rates)
        unreadable = tuple(f"{item.subject}: {item.why}" for item in self._node.hardware.unreadable)
        return encode_adopted(AdoptReply(vfs=vfs, unreadable=unreadable))

    async def _adopt(self, found: Iterable[VfCandidate], in_use: Mapping[str, str]) -> list[Adopted]:
        adopted = [await self._worker.run(self._node.adopt, vf, in_use) for vf in found]
        await self._worker.run(self._node.refresh)
        return adopted


def _supposed(candidate: VfCandidate) -> Adopted:
    """Predict the outcome for a VF, for a dry run."""
    if candidate.exemption:
        return Adopted(candidate=candidate, outcome="left alone", why=candidate.exemption)
    return Adopted(candidate=candidate, outcome="would reset", why=candidate.foreign)


def _adopted_vf(adopted: Adopted) -> AdoptedVf:
    candidate = adopted.candidate
    return AdoptedVf(
        pf=candidate.pf_name,
        pci=candidate.ref.pf,
        vf=candidate.ref.index,
        netdev=candidate.vf.netdev,
        min_tx_rate=candidate.vf.min_tx_rate_mbps,
        max_tx_rate=candidate.vf.max_tx_rate_mbps,
        vlan=candidate.vf.vlan,
        outcome=adopted.outcome,
        why=adopted.why,
    )
