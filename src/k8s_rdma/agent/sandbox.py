"""The sandbox of a pod that interfaces go to, as one ADD describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from k8s_rdma.core.devices.held_vfs import HeldDevice
from k8s_rdma.core.devices.pod_devices import SlotInUse
from k8s_rdma.core.inventory import Gpu
from k8s_rdma.core.ledger import (
    AllocatedInterface,
    Attachment,
    DelegatedPlugin,
    Phase,
    Pod,
    PreparedInterface,
    Receipt,
)
from k8s_rdma.core.step import NetnsRef, VfRef

if TYPE_CHECKING:
    from k8s_rdma.core.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """The sandbox that interfaces go to: the attachment of a CNI ADD, with its names and plugins.

    ifnames: names in the sandbox, in the request's order. entries: the indices of these interfaces in the
        pod's request; a pod with several attachments has some of its interfaces in each.
    ipam, ipams, delegate, device_info_file, slots: as in `Receipt`.
    devices: the exclusive devices of a pod that holds some, one for each interface.
    gpus: those to which interfaces belong that are to be near GPUs.
    claimed: the interfaces that are prepared for the pod's ResourceClaims, by their index in `entries`.
    avoided: VFs that are not to be chosen: the ADD has tried them in vain.
    """

    attachment: Attachment
    pod: Pod
    netns: NetnsRef
    ifnames: tuple[str, ...]
    entries: tuple[int, ...]
    ipam: DelegatedPlugin | None = None
    ipams: tuple[tuple[str, DelegatedPlugin | None], ...] = ()
    delegate: DelegatedPlugin | None = None
    device_info_file: str = ""
    slots: tuple[SlotInUse, ...] = ()
    devices: tuple[HeldDevice, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    claimed: Mapping[int, PreparedInterface] = field(default_factory=dict)
    avoided: frozenset[VfRef] = frozenset()

    def annotated(self, request: Request) -> tuple[Sandbox, Request]:
        """Select the interfaces that are not of claims. request: the part of the pod's for all of them."""
        if not self.claimed:
            return self, request
        indexes = [index for index in range(len(self.entries)) if index not in self.claimed]
        only = replace(
            self,
            ifnames=tuple(self.ifnames[index] for index in indexes),
            entries=tuple(self.entries[index] for index in indexes),
            claimed={},
        )
        return only, replace(request, interfaces=tuple(request.interfaces[index] for index in indexes))

    def receipt(self, interfaces: tuple[AllocatedInterface, ...], *, phase: Phase, boot_id: str) -> Receipt:
        """Make the receipt of this sandbox's interfaces."""
        return Receipt(
            attachment=self.attachment,
            pod=self.pod,
            netns=self.netns,
            boot_id=boot_id,
            phase=phase,
            interfaces=interfaces,
            ipam=self.ipam,
            ipams=self.ipams,
            delegate=self.delegate,
            device_info_file=self.device_info_file,
            slots=self.slots,
        )
