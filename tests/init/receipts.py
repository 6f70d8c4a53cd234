"""Receipts of pods that hold VFs."""

from __future__ import annotations

from k8s_rdma.core.ledger import AllocatedInterface, Attachment, Phase, Pod, Receipt
from k8s_rdma.core.step import NetnsRef, VfHome, VfRef
from k8s_rdma.core.types import ContainerId, PciAddress, PodUid

BOOT_ID = "the boot of now"


def receipt_of(pod: str, pf: PciAddress, *vfs: int, boot_id: str = BOOT_ID) -> Receipt:
    """That of a pod in the namespace `default`."""
    home = VfHome(name="eth9", mac="02:00:00:00:00:01", mtu=1500)
    return Receipt(
        attachment=Attachment("rdma", ContainerId(pod), "net1"),
        pod=Pod(namespace="default", name=pod, uid=PodUid(pod)),
        netns=NetnsRef("/run/netns/a", 1),
        boot_id=boot_id,
        phase=Phase.ATTACHED,
        interfaces=tuple(
            AllocatedInterface(
                vf=VfRef(pf, vf),
                pci=pf,
                ifname=f"net{vf}",
                min_tx_rate_mbps=0,
                max_tx_rate_mbps=0,
                home=home,
            )
            for vf in vfs
        ),
    )
