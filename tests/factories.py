"""Values that several tests start from."""

from __future__ import annotations

from dataclasses import replace

from k8s_rdma.core.kernel import Hardware, PfState, Vf
from k8s_rdma.core.ledger import AllocatedInterface, Attachment, Phase, Pod, Receipt
from k8s_rdma.core.step import NetnsRef, VfHome, VfRef
from k8s_rdma.core.types import ContainerId, PciAddress, PodUid

PF0 = PciAddress("0000:03:00.0")
PF1 = PciAddress("0000:03:00.1")


def vf(pf: str, index: int, **changes: object) -> Vf:
    mac = f"0a:00:{'00' if pf == PF0 else '01'}:00:00:{index:02x}"
    made = Vf(
        index=index, pci=PciAddress(f"{pf[:-1]}{index % 8}"), netdev=f"{pf[-1]}v{index}", mac=mac, mtu=1500
    )
    return replace(made, **changes)


def pf_state(pci: str = PF0, *, vfs: int = 4, link_mbps: int | None = 1000, **changes: object) -> PfState:
    made = PfState(
        name=f"enp3s0f{pci[-1]}",
        pci=PciAddress(pci),
        link_mbps=link_mbps,
        driver="mlx5_core",
        vfs=tuple(vf(pci, index) for index in range(vfs)),
    )
    return replace(made, **changes)


def hardware(*pfs: PfState) -> Hardware:
    return Hardware(pfs=pfs or (pf_state(PF0), pf_state(PF1)))


def pod(name: str = "p") -> Pod:
    return Pod(namespace="default", name=name, uid=PodUid(f"uid-{name}"))


def interface(
    pf: str = PF0, index: int = 0, ifname: str = "rdma0", minimum: int = 0, maximum: int = 0
) -> AllocatedInterface:
    it = vf(pf, index)
    return AllocatedInterface(
        vf=VfRef(PciAddress(pf), index),
        pci=it.pci,
        ifname=ifname,
        min_tx_rate_mbps=minimum,
        max_tx_rate_mbps=maximum,
        home=VfHome(name=it.netdev or "", mac=it.mac, mtu=it.mtu),
    )


def receipt(container: str = "c1", *interfaces: AllocatedInterface, **changes: object) -> Receipt:
    made = Receipt(
        attachment=Attachment("net", ContainerId(container), "eth0"),
        pod=pod(),
        netns=NetnsRef(f"/run/netns/{container}", 4026531840),
        boot_id="boot-1",
        phase=Phase.ATTACHED,
        interfaces=interfaces or (interface(),),
    )
    return replace(made, **changes)
