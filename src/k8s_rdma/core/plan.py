"""Kernel steps that give an attachment its interfaces, and those that take them back or restore their caps.

Caps in software depend on the kernel; a pod may alter them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from k8s_rdma.core.ledger import AllocatedInterface, Receipt
from k8s_rdma.core.options import address_flags
from k8s_rdma.core.step import (
    BindVf,
    CapInterface,
    CleanVf,
    ConfigureInterface,
    ConfigureVfs,
    GiveVf,
    ProgramVfs,
    Route,
    SetRates,
    Step,
    VfConfig,
    VfHome,
    VfRate,
    VfRef,
)
from k8s_rdma.core.types import Enforce, PciAddress
from k8s_rdma.errors import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from k8s_rdma.core.kernel import Hardware, LocatedVf, PfState

NOT_KEPT = "caps are not kept by software: the kernel has no token bucket filter; load its module sch_tbf"

Addressing = tuple[tuple[str, ...], tuple[Route, ...]]
"""The addresses (CIDR form) and routes of one interface."""


def hand_over(receipt: Receipt) -> tuple[Step, ...]:
    """Return the first part of the plan; rates and settings of a PF together, which one query reads back.

    VFs are cleaned first, because a driver that is bound again may take rates and settings from its VF.
    """
    settings = {step.pf: step for step in _settings(receipt.interfaces)}
    programs = (
        ProgramVfs(rates=rates, settings=settings[rates.pf]) if rates.pf in settings else rates
        for rates in _rates(receipt.interfaces)
    )
    netdevs = (interface for interface in receipt.interfaces if interface.is_netdev)
    clean = (CleanVf(vf=interface.vf, home=interface.home) for interface in netdevs)
    return (*clean, *programs, *(_assign_step(receipt, interface) for interface in receipt.interfaces))


def separate_steps(receipt: Receipt) -> tuple[Step, ...]:
    """Return the steps of `hand_over` apart, so that each undo fails alone. Their inverses end an attachment.

    A VF that moves loses its addresses (Linux `__dev_change_net_namespace`), so they need no undoing. An
    interface of the pod with that name may belong to something else if the VF was never given.
    """
    return (
        *_rates(receipt.interfaces),
        *_settings(receipt.interfaces),
        *(_assign_step(receipt, interface) for interface in receipt.interfaces),
    )


def configurations(receipt: Receipt, addressing: Mapping[str, Addressing]) -> tuple[Step, ...]:
    """Return the rest of the plan: addresses and routes, by interface name; netdevs are capped, then up."""
    steps: list[Step] = []
    for interface in receipt.interfaces:
        if interface.is_netdev:
            steps += (*_cap(receipt, interface), _configure(receipt, interface, addressing))
    return tuple(steps)


def concerned(step: Step, receipt: Receipt) -> tuple[AllocatedInterface, ...]:
    """Return the interfaces of a receipt that a step of its plan is for."""
    match step:
        case CleanVf() | GiveVf() | BindVf():
            vfs = {step.vf}
        case SetRates():
            vfs = {VfRef(step.pf, rate.index) for rate in step.rates}
        case ProgramVfs():
            return concerned(step.rates, receipt)
        case ConfigureInterface() | CapInterface():
            vfs = {interface.vf for interface in receipt.interfaces if interface.ifname == step.ifname}
        case _:
            vfs = set()
    return tuple(interface for interface in receipt.interfaces if interface.vf in vfs)


def undo(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Return the inverses in reverse order.

    The inverses of `separate_steps` end an attachment, undo a failed ADD, and clean up after a crash, because
    every inverse holds at once if its step never happened.
    """
    return tuple(step.inverse for step in reversed(tuple(steps)))


def _rates(interfaces: Iterable[AllocatedInterface]) -> Iterable[SetRates]:
    by_pf: dict[PciAddress, list[VfRate]] = {}
    for interface in interfaces:
        by_pf.setdefault(interface.vf.pf, []).append(interface.rate())
    for pf, rates in by_pf.items():
        # # Only a VF without rates is free, so its previous rates were 0.
        yield SetRates(pf=pf, rates=tuple(rates), previous=tuple(VfRate(rate.index) for rate in rates))


def _settings(interfaces: Iterable[AllocatedInterface]) -> Iterable[ConfigureVfs]:
    by_pf: dict[PciAddress, list[tuple[VfConfig, VfConfig, VfHome]]] = {}
    for interface in interfaces:
        if interface.config is not None and interface.previous is not None:
            settings = interface.config, interface.previous, interface.home
            by_pf.setdefault(interface.vf.pf, []).append(settings)
    for pf, settings_of in by_pf.items():
        configs, previous, homes = zip(*settings_of, strict=True)
        yield ConfigureVfs(pf=pf, configs=configs, previous=previous, homes=homes)


def _assign_step(receipt: Receipt, interface: AllocatedInterface) -> GiveVf | BindVf:
    if not interface.is_netdev:
        return BindVf(
            vf=interface.vf,
            pci=interface.pci,
            driver=interface.options.driver,
            kernel_driver=interface.kernel_driver,
            home=interface.home,
            mac=interface.options.mac,
        )
    return GiveVf(
        vf=interface.vf,
        home=interface.home,
        netns=receipt.netns,
        ifname=interface.ifname,
        mac=interface.options.mac,
        mtu=interface.options.mtu,
    )


def _cap(receipt: Receipt, interface: AllocatedInterface) -> Iterable[CapInterface]:
    cap = interface.software_max_tx_rate_mbps
    if cap:
        yield CapInterface(netns=receipt.netns, ifname=interface.ifname, max_tx_rate_mbps=cap)


def _configure(
    receipt: Receipt, interface: AllocatedInterface, addressing: Mapping[str, Addressing]
) -> ConfigureInterface:
    addresses, routes = addressing.get(interface.ifname, ((), ()))
    return ConfigureInterface(
        netns=receipt.netns,
        ifname=interface.ifname,
        addresses=addresses,
        routes=routes,
        address_flags=address_flags(interface.options),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlteredCap:
    """An interface whose cap differs from the one that it was given.

    found: its present cap, in a clause.
    step: the step that restores it, by the name that the interface has now; None if it is not in the pod.
    """

    interface: AllocatedInterface
    found: str
    step: CapInterface | None


def without_software_caps(hardware: Hardware) -> Hardware:
    """Return the hardware without token bucket filter: a problem of PFs that leave caps to software."""
    return replace(hardware, pfs=tuple(map(_without_software_caps, hardware.pfs)))


def _without_software_caps(pf: PfState) -> PfState:
    by_software = pf.enforce is Enforce.SOFTWARE or (pf.enforce is Enforce.AUTO and pf.rates.max is None)
    problems = (*pf.problems, NOT_KEPT) if by_software else pf.problems
    return replace(pf, software_caps=False, problems=problems)


def software_capped(receipt: Receipt) -> tuple[AllocatedInterface, ...]:
    """Return the interfaces whose caps software keeps."""
    return tuple(interface for interface in receipt.interfaces if interface.software_max_tx_rate_mbps)


def altered_caps(receipt: Receipt, found: Mapping[PciAddress, LocatedVf]) -> Iterator[AlteredCap]:
    """Find the caps that do not hold. found: the VFs in the pod's namespace."""
    for interface in software_capped(receipt):
        observed, expected = found.get(PciAddress(interface.pci)), interface.software_max_tx_rate_mbps
        if observed is None:
            found_instead = f"interface {interface.ifname} is not in the pod's namespace"
            yield AlteredCap(interface=interface, found=found_instead, step=None)
        elif observed.max_tx_rate_mbps != expected:
            step = CapInterface(netns=receipt.netns, ifname=observed.ifname, max_tx_rate_mbps=expected)
            yield AlteredCap(interface=interface, found=_describe(observed), step=step)


def _describe(vf: LocatedVf) -> str:
    interface = f"interface {printable(vf.ifname)}"  # the pod may have given it any name
    if vf.max_tx_rate_mbps:
        return f"{interface} is limited to {vf.max_tx_rate_mbps} Mb/s"
    return f"{interface} has {vf.qdisc or 'no queueing discipline'} instead of its limit"
