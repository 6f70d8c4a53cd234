"""Kernel steps that give an attachment its interfaces, and those that take them back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.step import (
    BindVf,
    CapInterface,
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
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from k8s_rdma.core.ledger import AllocatedInterface, Receipt
    from k8s_rdma.core.types import PciAddress

Addressing = tuple[tuple[str, ...], tuple[Route, ...]]
"""The addresses (CIDR form) and routes of one interface."""


def hand_over(receipt: Receipt) -> tuple[Step, ...]:
    """The part of the plan that `claims` undoes; rates and settings of a PF together, so it is asked once."""
    settings = {step.pf: step for step in _settings(receipt.interfaces)}
    programs = (
        ProgramVfs(rates=rates, settings=settings[rates.pf]) if rates.pf in settings else rates
        for rates in _rates(receipt.interfaces)
    )
    return (*programs, *(_assign_step(receipt, interface) for interface in receipt.interfaces))


def claims(receipt: Receipt) -> tuple[Step, ...]:
    """The steps of `hand_over` apart, so that each undo fails alone. Their inverses end an attachment.

    A VF that moves loses its addresses (Linux `__dev_change_net_namespace`), so they need no undoing; and
    what the pod has under an interface's name may be somebody else's if that VF was never given.
    """
    return (
        *_rates(receipt.interfaces),
        *_settings(receipt.interfaces),
        *(_assign_step(receipt, interface) for interface in receipt.interfaces),
    )


def configurations(receipt: Receipt, addressing: Mapping[str, Addressing]) -> tuple[Step, ...]:
    """The rest of the plan: addresses and routes, by interface name; every netdev is capped, then up."""
    steps: list[Step] = []
    for interface in receipt.interfaces:
        if interface.is_netdev:
            steps += (*_cap(receipt, interface), _configure(receipt, interface, addressing))
    return tuple(steps)


def undo(steps: Iterable[Step]) -> tuple[Step, ...]:
    """The inverses in reverse order.

    Of `claims`, this is how an attachment ends, how a failure is undone and how a crash is cleaned up:
    every inverse holds at once where its step never happened.
    """
    return tuple(step.inverse for step in reversed(tuple(steps)))


def _rates(interfaces: Iterable[AllocatedInterface]) -> Iterable[SetRates]:
    by_pf: dict[PciAddress, list[VfRate]] = {}
    for interface in interfaces:
        by_pf.setdefault(interface.vf.pf, []).append(interface.rate())
    for pf, rates in by_pf.items():
        # Only a VF without rates is free, so none is what it had before.
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
        netns=receipt.netns, ifname=interface.ifname, addresses=addresses, routes=routes
    )
