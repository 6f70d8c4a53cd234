"""Interfaces in the namespaces of a pretended machine: configured, cleared and limited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.software_caps import NOT_KEPT
from k8s_rdma.core.step import CapInterface, ClearInterface, ConfigureInterface
from k8s_rdma.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.sim.fake_function import Device
    from k8s_rdma.sim.fake_machine import FakeMachine


def change(machine: FakeMachine, step: ConfigureInterface | ClearInterface | CapInterface) -> Iterator[None]:
    """Make the step hold; yields before every change, and makes none that holds already."""
    match step:
        case ConfigureInterface():
            return _configure(machine, step)
        case ClearInterface():
            return _clear(machine, step)
        case CapInterface():
            return _cap(machine, step)


def _configure(machine: FakeMachine, step: ConfigureInterface) -> Iterator[None]:
    device = machine.device(step.netns, step.ifname)
    for address in step.addresses:
        if address not in device.addresses:
            yield
            device.addresses += (address,)
            device.duplicates = machine.duplicates(device)
    if not device.up:
        yield
        device.up = True
    for route in step.routes:
        if route not in device.routes:
            yield
            device.routes += (route,)


def _clear(machine: FakeMachine, step: ClearInterface) -> Iterator[None]:
    device = _found(machine, step)
    if device is None:
        return
    if device.up:
        yield
        device.up, device.routes = False, ()
    if device.addresses:
        yield
        device.addresses = ()


def _cap(machine: FakeMachine, step: CapInterface) -> Iterator[None]:
    without_limit = not step.max_tx_rate_mbps
    if not (without_limit or machine.token_bucket):
        raise KernelError(NOT_KEPT)
    device = _found(machine, step) if without_limit else machine.device(step.netns, step.ifname)
    if device is not None and device.max_tx_rate_mbps != step.max_tx_rate_mbps:
        yield
        device.max_tx_rate_mbps = step.max_tx_rate_mbps


def _found(machine: FakeMachine, step: ClearInterface | CapInterface) -> Device | None:
    """The netdev; None when that or its namespace is gone."""
    return machine.find(step.ifname, step.netns.inode) if machine.alive(step.netns) else None
