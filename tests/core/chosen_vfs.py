"""VFs that are chosen for interfaces with options."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from factories import PF0, PF1, hardware, pf_state
from k8s_rdma.core.allocation import choose_vfs
from k8s_rdma.core.ledger import AllocatedInterface, Ledger
from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.placement import PlacedInterface, Placement, Rejection
from k8s_rdma.core.types import LinkState, NodeName, PciAddress, VlanProto

if TYPE_CHECKING:
    from k8s_rdma.core.kernel import Hardware

W1 = NodeName("w1")
ASKED = InterfaceOptions(
    name="data0",
    vlan=100,
    qos=3,
    vlan_proto=VlanProto.DOT1AD,
    mac="02:00:00:00:00:aa",
    mtu=9000,
    trust=True,
    spoof_check=False,
    link_state=LinkState.ENABLE,
)


def asking(*options: InterfaceOptions, pf: PciAddress = PF0) -> Placement:
    return Placement(node=W1, interfaces=tuple(PlacedInterface(pf=pf, options=each) for each in options))


def chosen_for(
    asked: Placement, seen: Hardware | None = None, ledger: Ledger | None = None
) -> tuple[AllocatedInterface, ...]:
    names = tuple(f"rdma{index}" for index in range(len(asked.interfaces)))
    chosen = choose_vfs(asked, seen or hardware(), ledger or Ledger(), names)
    assert not isinstance(chosen, Rejection), chosen
    return chosen


def altered(index: int, **changes: object) -> Hardware:
    """The usual hardware with one VF of the first PF changed."""
    first = pf_state(PF0)
    vfs = tuple(replace(each, **changes) if each.index == index else each for each in first.vfs)
    return hardware(replace(first, vfs=vfs), pf_state(PF1))
