"""A lost receipt's interface, made anew of what the kernel shows and of what the pod asks for.

What a VF was before its pod nobody knows any more. It becomes what it would be if it had not been given:
called after its PF, with the MAC that the PF has for it, and in all else like a free VF of the same PF.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from k8s_rdma.core.allocation import is_free
from k8s_rdma.core.ids import NodeName
from k8s_rdma.core.kernel import Hardware, PfState, Vf, present_config
from k8s_rdma.core.ledger import AllocatedInterface
from k8s_rdma.core.macs import NO_MAC
from k8s_rdma.core.options import NO_OPTIONS, VfDriver
from k8s_rdma.core.programming import programmed
from k8s_rdma.core.rates import Enforce
from k8s_rdma.core.step import VfConfig, VfHome, VfRef, Vlan

if TYPE_CHECKING:
    from k8s_rdma.core.request import InterfaceRequest

MAX_NAME = 15
"""`IFNAMSIZ` without its end."""

_DEFAULTS: dict[str, Any] = {
    "vlan": 0,
    "qos": 0,
    "vlan_proto": "N/A",
    "trust": "OFF",
    "spoof_check": "ON",
    "link_state": "Follow",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedInterface:
    """A VF that a pod has.

    mac: its netdev's there; empty when it is not known. max_tx_rate_mbps: what `core.step.CapInterface` set
        there; 0 for nothing.
    """

    pf: PfState
    vf: Vf
    ifname: str
    mac: str = ""
    max_tx_rate_mbps: int = 0


def rebuilt_interface(
    observed: ObservedInterface, entry: int, request: InterfaceRequest | None
) -> AllocatedInterface:
    """The interface of a receipt whose end leaves the VF as it should be.

    entry: its place in the pod's request. request: that; None when it is not known, and then what is
        programmed counts as asked for.
    """
    pf, vf = observed.pf, observed.vf
    like = next(filter(is_free, pf.vfs), replace(vf, **_DEFAULTS))
    config, previous = _differences(vf, replace(like, index=vf.index))
    options = request.options if request else NO_OPTIONS
    by_program = vf.driver == VfDriver.VFIO_PCI
    by_software = 0 if by_program else _software_cap(observed, request)
    return AllocatedInterface(
        vf=VfRef(pf.pci, vf.index),
        pci=vf.pci,
        ifname=observed.ifname,
        min_tx_rate_mbps=request.min_tx_rate_mbps if request else vf.min_tx_rate_mbps,
        max_tx_rate_mbps=request.max_tx_rate_mbps if request else vf.max_tx_rate_mbps or by_software,
        home=VfHome(name=_name(pf, vf), mac=_mac(observed, request), mtu=like.mtu),
        set_min_tx_rate_mbps=vf.min_tx_rate_mbps,
        set_max_tx_rate_mbps=vf.max_tx_rate_mbps,
        software_max_tx_rate_mbps=by_software,
        entry=entry,
        enforce=request.enforce if request else Enforce.AUTO,
        options=replace(options, driver=VfDriver.VFIO_PCI if by_program else VfDriver.KERNEL),
        config=config,
        previous=previous,
        kernel_driver=like.driver if by_program else vf.driver,
        rdma_device=vf.rdma_device or "",
        pool=vf.pool,
    )


def _software_cap(observed: ObservedInterface, request: InterfaceRequest | None) -> int:
    """As asked for, also where somebody in the pod took it away; nothing where the hardware has one."""
    if observed.vf.max_tx_rate_mbps:
        return 0
    pf = Hardware((observed.pf,)).inventory(NodeName("")).pf(observed.pf.pci)
    if request is None or pf is None:
        return observed.max_tx_rate_mbps
    is_capped = observed.max_tx_rate_mbps > 0
    return request.max_tx_rate_mbps if is_capped else programmed(pf, request).software_max_tx_rate_mbps


def _name(pf: PfState, vf: Vf) -> str:
    """As systemd names VFs since version 239, and `k8s-rdma init` by default; or after the PCI address."""
    name = vf.netdev or f"{pf.name}v{vf.index}"
    return name if len(name) <= MAX_NAME else "vf" + vf.pci.replace(":", "").replace(".", "")


def _mac(observed: ObservedInterface, request: InterfaceRequest | None) -> str:
    """The PF's, unless that is the pod's own choice or none; then the one that it has."""
    own_choice = request is not None and request.options.mac is not None
    is_assigned = observed.vf.admin_mac not in ("", NO_MAC) and not own_choice
    return (observed.vf.admin_mac if is_assigned else observed.mac) or observed.vf.mac


def _differences(vf: Vf, like: Vf) -> tuple[VfConfig | None, VfConfig | None]:
    """What the PF has for a VF and would not have for one that is free, and what it would have instead."""
    every = VfConfig(index=vf.index, vlan=Vlan(0), trust=False, spoof_check=False)
    present, expected = present_config(vf, every), present_config(like, every)
    differ = {
        name: (getattr(present, name), getattr(expected, name))
        for name in ("vlan", "trust", "spoof_check")
        if getattr(present, name) != getattr(expected, name)
    }
    if not differ:
        return None, None
    nothing = VfConfig(index=vf.index)
    return (
        replace(nothing, **{name: old for name, (old, _) in differ.items()}),
        replace(nothing, **{name: new for name, (_, new) in differ.items()}),
    )
