"""A machine to try a kernel on: the contract's needs beside `core.kernel.Kernel`."""

from __future__ import annotations

from typing import Protocol

import pytest

from fakes.kernel import FakeKernel
from fakes.machine import VF_DRIVER, FakeMachine, FakePf, Interface
from k8s_rdma.core.kernel import Kernel, Vf, present_config
from k8s_rdma.core.rate_ability import EVERY_RATE, RateAbility
from k8s_rdma.core.step import GiveVf, NetnsRef, VfConfig, VfHome, VfRate, VfRef
from k8s_rdma.core.types import PciAddress, Setting

PF0 = PciAddress("0000:03:00.0")
PF1 = PciAddress("0000:03:00.1")
LINK_MBPS = 1000
FRAME_BYTES = 1000
"""Of a frame that is sent, without the frame check sequence."""


class Lab(Protocol):
    """Two PFs, and whoever else uses the machine.

    pcis: their PCI addresses. pf_names: their netdevs.
    vfs: how many VFs each has. A kernel may be shown more PFs and VFs than those.
    link_mbps: of both PFs.
    rates: those that they take. A driver without minimum rates skips tests that need them.
    takes: other settings of VFs that they take. pf_mtu: of both PFs.
    vf_driver: the driver of their VFs at home.
    """

    pcis: tuple[PciAddress, PciAddress]
    pf_names: tuple[str, str]
    vfs: int
    link_mbps: int
    rates: RateAbility
    takes: frozenset[Setting]
    pf_mtu: int
    vf_driver: str
    kernel: Kernel

    def vf_name(self, pf: int, index: int) -> str:
        """The name at home of a VF of the first (0) or second (1) PF."""
        ...

    def another_kernel(self) -> Kernel:
        """A second one on the same machine, as after a restart of the agent."""
        ...

    def namespace(self) -> NetnsRef:
        """A new one."""
        ...

    def destroy(self, netns: NetnsRef) -> None:
        """Return when it can no longer be found; the kernel may still be taking it apart."""
        ...

    def occupy(self, name: str, netns: NetnsRef | None = None) -> None:
        """Somebody else's interface; in the host's namespace by default."""
        ...

    def vacate(self, name: str) -> None:
        """Take somebody else's interface from the host's namespace."""
        ...

    def alter(self, ifname: str, netns: NetnsRef | None, *, name: str, mac: str, mtu: int) -> None:
        """Change an interface as its pod may, or as anybody may with one of the host."""
        ...

    def add_altname(self, ifname: str, netns: NetnsRef | None, altname: str) -> None:
        """Give an interface an alternative name, as a pod may, or the host's udev."""
        ...

    def tune(self, ifname: str, netns: NetnsRef | None) -> None:
        """Set values that a kernel can set back: the length of the queue, and an alias."""
        ...

    def tune_driver(self, ifname: str, netns: NetnsRef | None) -> None:
        """Set values that only a driver that is bound again sets back."""
        ...

    def attach_program(self, ifname: str, netns: NetnsRef | None, *, by_link: bool = False) -> None:
        """Attach an XDP program by netlink, or by a bpf_link that is held until the lab ends."""
        ...

    def build_on(self, ifname: str, netns: NetnsRef) -> None:
        """Make another interface of the pod on this one, `above`, such as a macvlan."""
        ...

    def inherited(self, ifname: str, netns: NetnsRef | None) -> dict[str, str]:
        """Values of an interface that move along with it, as its namespace's inhabitants see them."""
        ...

    def use(self, ifname: str, netns: NetnsRef | None, *addresses: str) -> None:
        """Bring an interface up with these addresses, as its holder may."""
        ...

    def uncap(self, ifname: str, netns: NetnsRef) -> None:
        """Put another queueing discipline in place of ours, as a pod may do with its interface."""
        ...

    def send(self, ifname: str, netns: NetnsRef, frames: int) -> None:
        """Send Ethernet frames of FRAME_BYTES through an interface that is up; they have no receiver."""
        ...

    def seen(self, ifname: str, netns: NetnsRef | None = None) -> Interface | None:
        """The interface as its namespace's inhabitants see it; link-local addresses left out."""
        ...


class FakeLab:
    """In memory."""

    pcis = (PF0, PF1)
    pf_names = ("enp3s0f0", "enp3s0f1")
    link_mbps = LINK_MBPS
    rates = EVERY_RATE
    takes = frozenset(Setting) - {Setting.GUID, Setting.PKEY, Setting.SOFTWARE_CAPS}
    pf_mtu = 9000
    vf_driver = VF_DRIVER

    def __init__(self, vfs: int) -> None:
        self.vfs = vfs
        self.machine = FakeMachine(
            *(
                FakePf(name=name, pci=pci, vfs=vfs, link_mbps=LINK_MBPS, mtu=self.pf_mtu)
                for name, pci in zip(self.pf_names, self.pcis, strict=True)
            )
        )
        self.kernel = FakeKernel(self.machine)

    def vf_name(self, pf: int, index: int) -> str:
        return f"{self.pf_names[pf]}v{index}"

    def another_kernel(self) -> FakeKernel:
        return FakeKernel(self.machine)

    def namespace(self) -> NetnsRef:
        return self.machine.create_namespace()

    def destroy(self, netns: NetnsRef) -> None:
        self.machine.destroy_namespace(netns)

    def occupy(self, name: str, netns: NetnsRef | None = None) -> None:
        self.machine.add_interface(name, netns)

    def vacate(self, name: str) -> None:
        self.machine.remove_interface(name)

    def alter(self, ifname: str, netns: NetnsRef | None, *, name: str, mac: str, mtu: int) -> None:
        self.machine.alter_interface(ifname, netns, name=name, mac=mac, mtu=mtu)

    def add_altname(self, ifname: str, netns: NetnsRef | None, altname: str) -> None:
        self.machine.add_altname(ifname, netns, altname)

    def tune(self, ifname: str, netns: NetnsRef | None) -> None:
        self.machine.tune_interface(ifname, netns, txqueuelen="77", alias="mine")

    def tune_driver(self, ifname: str, netns: NetnsRef | None) -> None:
        self.machine.tune_interface(ifname, netns, **{"ring sizes": "64"})

    def attach_program(self, ifname: str, netns: NetnsRef | None, *, by_link: bool = False) -> None:
        self.machine.tune_interface(ifname, netns, held_program=by_link, XDP="98 (driver)")

    def build_on(self, ifname: str, netns: NetnsRef) -> None:
        self.machine.add_interface("above", netns)
        self.machine.device(netns, ifname).links_above = ("above",)

    def inherited(self, ifname: str, netns: NetnsRef | None) -> dict[str, str]:
        return dict(self.machine.device(netns, ifname).attributes)

    def use(self, ifname: str, netns: NetnsRef | None, *addresses: str) -> None:
        self.machine.use_interface(ifname, netns, *addresses)

    def uncap(self, ifname: str, netns: NetnsRef) -> None:
        self.machine.device(netns, ifname).max_tx_rate_mbps = 0

    def send(self, ifname: str, netns: NetnsRef, frames: int) -> None:
        self.machine.count(ifname, netns, tx_packets=frames, tx_bytes=frames * FRAME_BYTES)

    def seen(self, ifname: str, netns: NetnsRef | None = None) -> Interface | None:
        return self.machine.interface(ifname, netns)


def state_of(lab: Lab, vf: VfRef) -> Vf:
    """The VF as the kernel shows it."""
    return next(pf for pf in lab.kernel.observe().pfs if pf.pci == vf.pf).vfs[vf.index]


def home_of(lab: Lab, vf: VfRef) -> VfHome:
    """A VF's home, as the ledger records it before giving it away."""
    state = state_of(lab, vf)
    assert state.netdev is not None
    attributes = lab.kernel.attributes(vf)
    return VfHome(name=state.netdev, mac=state.mac, mtu=state.mtu, attributes=attributes)


def give(lab: Lab, vf: VfRef, netns: NetnsRef, ifname: str = "rdma0") -> GiveVf:
    """The step that gives a VF away which is at home now."""
    return GiveVf(vf=vf, home=home_of(lab, vf), netns=netns, ifname=ifname)


def rate(lab: Lab, index: int, minimum: int, maximum: int) -> VfRate:
    """A rate of a VF; without its minimum if the lab takes no minimum."""
    return VfRate(index, minimum if lab.rates.min else 0, maximum)


def needs_min_rates(lab: Lab) -> None:
    """Skip if VFs have no minimum rates."""
    if not lab.rates.min:
        pytest.skip(f"needs minimum rates, which the driver of {lab.pf_names[0]} does not take")


def needs(lab: Lab, setting: Setting) -> None:
    """Skip if VFs cannot be asked for this."""
    if setting not in lab.takes:
        pytest.skip(f"needs {setting} of VFs, which {lab.pf_names[0]} does not take")


def previous_of(lab: Lab, pf: PciAddress, config: VfConfig) -> VfConfig:
    """The present values of the settings in a configuration, as the kernel shows them."""
    return present_config(state_of(lab, VfRef(pf, config.index)), config)
