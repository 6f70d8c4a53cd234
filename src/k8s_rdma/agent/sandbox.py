"""The sandbox of an attachment, and the failures of an ADD for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.core.devices.held_vfs import HeldDevice
from k8s_rdma.core.devices.pod_devices import SlotInUse
from k8s_rdma.core.ledger import AllocatedInterface, Attachment, DelegatedPlugin, Phase, Pod, Receipt
from k8s_rdma.core.step import NetnsRef
from k8s_rdma.errors import K8sRdmaError, Reason

if TYPE_CHECKING:
    from k8s_rdma.core.placement import Rejection


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """The sandbox that interfaces go to: the attachment of a CNI ADD, with its names and plugins.

    ifnames: names in the sandbox, in the request's order. entries: the indices of these interfaces in the
        pod's request; a pod with several attachments has some of its interfaces in each.
    ipam, ipams, delegate, device_info_file, slots: as in `Receipt`.
    devices: the exclusive devices of a pod that holds some, one for each interface.
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


def held_elsewhere(receipt: Receipt) -> K8sRdmaError:
    """Make the failure of an ADD whose pod holds its interfaces in another sandbox."""
    msg = (
        f"pod {receipt.pod.namespace}/{receipt.pod.name} still holds its interfaces, in sandbox "
        f"{receipt.attachment.container} as {receipt.attachment.ifname} of network {receipt.network}; "
        "try again when that sandbox is gone"
    )
    return K8sRdmaError(msg, reason=Reason.HELD_BY_OLDER_SANDBOX)


def attached_already(receipt: Receipt, interface: AllocatedInterface) -> K8sRdmaError:
    """Make the failure of an ADD for an interface that its pod already has."""
    msg = (
        f"pod {receipt.pod.namespace}/{receipt.pod.name} has interface {interface.entry} of its request "
        f"already, as {interface.ifname} by network {receipt.network}"
    )
    return K8sRdmaError(msg, reason=Reason.ALREADY_ATTACHED)


def rejected(rejection: Rejection, pod: Pod) -> K8sRdmaError:
    """Make the failure of an ADD that the node cannot serve."""
    message = f"node {rejection.node}: cannot give pod {pod.namespace}/{pod.name} its RDMA interfaces: "
    return K8sRdmaError(message + rejection.message, reason=rejection.reason)
