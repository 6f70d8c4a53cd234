"""VFs of a pretended machine on their way into namespaces and to other drivers, and home again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.options import Setting
from k8s_rdma.core.step import BindVf, BringHome, GiveVf, UnbindVf
from k8s_rdma.errors import KernelError
from k8s_rdma.sim.fake_function import HOST, VF_DRIVER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.core.step import VfHome, VfRef
    from k8s_rdma.sim.fake_function import Device, Function
    from k8s_rdma.sim.fake_machine import FakeMachine

_MIN_MTU = 68
"""ETH_MIN_MTU, `include/uapi/linux/if_ether.h`."""


def move(machine: FakeMachine, step: GiveVf | BringHome | BindVf | UnbindVf) -> Iterator[None]:
    """Make the step hold; yields before every change, and makes none that holds already."""
    match step:
        case GiveVf():
            return _give(machine, step)
        case BringHome():
            return _bring_home(machine, step)
        case BindVf():
            return _bind(machine, step)
        case UnbindVf():
            return _unbind(machine, step)


def _give(machine: FakeMachine, step: GiveVf) -> Iterator[None]:
    """Make a VF's netdev be in a namespace under a name, with its MAC and MTU there."""
    function, target = machine.function(step.vf), machine.inode(step.netns)
    device = _netdev(function, step.vf)
    if device.place not in (HOST, target):
        where = machine.where(device.place)
        msg = f"{_words(step.vf)}: wanted in {step.netns.path}, but it is in {where}"
        raise KernelError(msg)
    _check_mtu(machine, step)
    mac = step.mac or (step.home.mac if device.place == HOST else device.mac)
    if function.rdma_device and function.rdma_place != target:
        yield
        machine.move_rdma(function, target)
    if (device.place, device.name) != (target, step.ifname):
        yield
        machine.move(device, target, step.ifname)
    if step.mtu not in (None, device.mtu):
        yield
        device.mtu = step.mtu or device.mtu
    if mac != device.mac:
        yield
        device.mac = mac


def _bring_home(machine: FakeMachine, step: BringHome) -> Iterator[None]:
    """Make a VF's netdev be at home as it was, unless it serves another namespace or driver."""
    function = machine.function(step.vf)
    device = function.device
    if not function.is_netdev or device.place not in (HOST, step.netns.inode):
        return
    if function.rdma_place != HOST:
        yield
        machine.move_rdma(function, HOST)
    yield from _as_at_home(machine, device, step.home)


def _bind(machine: FakeMachine, step: BindVf) -> Iterator[None]:
    """Make a VF that is at home another driver's."""
    function = _function(machine, step)
    if Setting.VFIO_PCI not in machine.pfs[step.vf.pf].taken():
        msg = f"{_words(step.vf)}: {step.driver}: this machine cannot give it as a PCI function"
        raise KernelError(msg)
    if function.driver not in ("", VF_DRIVER, step.driver):
        msg = f"{_words(step.vf)}: wanted by {step.driver}, but {function.driver} has it"
        raise KernelError(msg)
    if function.is_netdev and function.device.place != HOST:
        where = machine.where(function.device.place)
        msg = f"{_words(step.vf)}: wanted by {step.driver}, but its netdev is in {where}"
        raise KernelError(msg)
    if function.override != step.driver:
        yield
        function.override = step.driver
    yield from _drive(machine, function, step.driver)


def _unbind(machine: FakeMachine, step: UnbindVf) -> Iterator[None]:
    """Make a VF the kernel driver's, at home as it was, unless it serves a namespace or a third driver."""
    function = _function(machine, step)
    if function.driver not in ("", VF_DRIVER, step.driver):
        return
    if function.is_netdev and function.device.place != HOST:
        return
    if function.override:
        yield
        function.override = ""
    yield from _drive(machine, function, VF_DRIVER)
    yield from _as_at_home(machine, function.device, step.home)


def _drive(machine: FakeMachine, function: Function, driver: str) -> Iterator[None]:
    """Take the VF from whatever drives it, then let `driver` have it."""
    if function.driver not in ("", driver):
        yield
        if function.is_netdev:
            machine.take_netdev(function)
        function.driver = ""
    if not function.driver:
        yield
        function.driver = driver
        if function.is_netdev:
            machine.make_netdev(function)


def _as_at_home(machine: FakeMachine, device: Device, home: VfHome) -> Iterator[None]:
    if (device.place, device.name) != (HOST, home.name):
        yield
        machine.move(device, HOST, home.name)
    if (device.mac, device.mtu, device.up, device.addresses) != (home.mac, home.mtu, False, ()):
        yield
        device.mac, device.mtu = home.mac, home.mtu
        device.up, device.addresses, device.routes = False, (), ()


def _function(machine: FakeMachine, step: BindVf | UnbindVf) -> Function:
    function = machine.function(step.vf)
    if function.pci != step.pci:
        msg = f"{_words(step.vf)}: at {function.pci}, not at {step.pci}"
        raise KernelError(msg)
    if step.kernel_driver != VF_DRIVER:
        msg = f"{_words(step.vf)}: driven by {VF_DRIVER} at home, not by {step.kernel_driver!r}"
        raise KernelError(msg)
    return function


def _netdev(function: Function, vf: VfRef) -> Device:
    if not function.is_netdev:
        msg = f"{_words(vf)}: it has no netdev: {function.driver or 'no driver'} has it"
        raise KernelError(msg)
    return function.device


def _check_mtu(machine: FakeMachine, step: GiveVf) -> None:
    most = machine.pfs[step.vf.pf].mtu
    if step.mtu is not None and not _MIN_MTU <= step.mtu <= most:
        msg = f"{_words(step.vf)}: MTU {step.mtu}: it takes {_MIN_MTU} to {most}, its PF's"
        raise KernelError(msg)


def _words(vf: VfRef) -> str:
    return f"VF {vf.index} of PF {vf.pf}"
