"""A node's hardware as an observation would find it, after a change that was made since the last one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from k8s_rdma.core.kernel import Hardware, PfState, shown

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from k8s_rdma.core.ledger import AllocatedInterface, Receipt
    from k8s_rdma.core.step import VfRef


def with_allocations(hardware: Hardware, interfaces: Iterable[AllocatedInterface]) -> Hardware:
    """Return the hardware as an observation would find it after these VFs went into a pod."""
    return _with_vfs(hardware, {interface.vf: _allocated_state(interface) for interface in interfaces})


def _rates(interface: AllocatedInterface) -> Mapping[str, Any]:
    rate = interface.rate()
    return {"min_tx_rate_mbps": rate.min_tx_rate_mbps, "max_tx_rate_mbps": rate.max_tx_rate_mbps}


def _allocated_state(interface: AllocatedInterface) -> Mapping[str, Any]:
    config = interface.config
    changes: dict[str, Any] = {"netdev": None, "mac": interface.home.mac, **_rates(interface)}
    if not interface.is_netdev:
        changes["driver"] = interface.options.driver.value
    if config is None:
        return changes
    pf_knows = {"mac": config.guid or config.mac} if config.guid or config.mac else {}
    return {**changes, **pf_knows, **shown(config)}


def with_rates(hardware: Hardware, receipts: Iterable[Receipt]) -> Hardware:
    """Return the hardware after the rates of these receipts were programmed."""
    interfaces = (interface for receipt in receipts for interface in receipt.interfaces)
    return _with_vfs(hardware, {interface.vf: _rates(interface) for interface in interfaces})


def returned(hardware: Hardware, interfaces: Iterable[AllocatedInterface]) -> Hardware:
    """Return the hardware after these VFs came home; observations made while they were away do not count."""
    return _with_vfs(hardware, {interface.vf: _returned(interface) for interface in interfaces})


def _returned(interface: AllocatedInterface) -> Mapping[str, Any]:
    home = interface.home
    changes: dict[str, Any] = {
        "netdev": home.name,
        "mac": home.mac,
        "mtu": home.mtu,
        "min_tx_rate_mbps": 0,
        "max_tx_rate_mbps": 0,
    }
    if interface.rdma_device:
        changes["rdma_device"] = interface.rdma_device
    if not interface.is_netdev:
        changes |= {"driver": interface.kernel_driver, "unusable": ""}
    return {**changes, **shown(interface.previous)} if interface.previous else changes


def _with_vfs(hardware: Hardware, changed: Mapping[VfRef, Mapping[str, Any]]) -> Hardware:
    touched = {vf.pf for vf in changed}
    pfs = tuple(_with_changes(pf, changed) if pf.pci in touched else pf for pf in hardware.pfs)
    return replace(hardware, pfs=pfs)


def _with_changes(pf: PfState, changed: Mapping[VfRef, Mapping[str, Any]]) -> PfState:
    changes = {vf.index: fields for vf, fields in changed.items() if vf.pf == pf.pci}
    vfs = (replace(vf, **changes[vf.index]) if vf.index in changes else vf for vf in pf.vfs)
    return replace(pf, vfs=tuple(vfs))


def without_vfs(hardware: Hardware, vfs: Collection[VfRef], why: str) -> Hardware:
    """Return the hardware with these VFs set aside."""
    return _with_vfs(hardware, {vf: {"unusable": why, "set_aside": True} for vf in vfs}) if vfs else hardware
