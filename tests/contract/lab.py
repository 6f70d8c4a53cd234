"""A machine to try a kernel on: what the contract needs beside `core.kernel.Kernel`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from k8s_rdma.core.ids import PciAddress
from k8s_rdma.core.step import VfHome, VfRef
from k8s_rdma.sim.fake_kernel import FakeKernel
from k8s_rdma.sim.fake_machine import FakeMachine, FakePf, Interface

if TYPE_CHECKING:
    from k8s_rdma.core.kernel import Kernel
    from k8s_rdma.core.step import NetnsRef

PF0 = PciAddress("0000:03:00.0")
PF1 = PciAddress("0000:03:00.1")
LINK_MBPS = 1000


class Lab(Protocol):
    """Two PFs of LINK_MBPS, `enp3s0f0` and `enp3s0f1`, and whoever else uses the machine."""

    kernel: Kernel

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

    def alter(self, ifname: str, netns: NetnsRef, *, name: str, mac: str, mtu: int) -> None:
        """What a pod may do with its interface."""
        ...

    def seen(self, ifname: str, netns: NetnsRef | None = None) -> Interface | None:
        """The interface as its namespace's inhabitants see it; link-local addresses left out."""
        ...


class FakeLab:
    """In memory."""

    def __init__(self, vfs: int) -> None:
        self.machine = FakeMachine(
            FakePf(name="enp3s0f0", pci=PF0, vfs=vfs, link_mbps=LINK_MBPS),
            FakePf(name="enp3s0f1", pci=PF1, vfs=vfs, link_mbps=LINK_MBPS),
        )
        self.kernel = FakeKernel(self.machine)

    def another_kernel(self) -> FakeKernel:
        return FakeKernel(self.machine)

    def namespace(self) -> NetnsRef:
        return self.machine.create_namespace()

    def destroy(self, netns: NetnsRef) -> None:
        self.machine.destroy_namespace(netns)

    def occupy(self, name: str, netns: NetnsRef | None = None) -> None:
        self.machine.add_interface(name, netns)

    def alter(self, ifname: str, netns: NetnsRef, *, name: str, mac: str, mtu: int) -> None:
        self.machine.alter_interface(ifname, netns, name=name, mac=mac, mtu=mtu)

    def seen(self, ifname: str, netns: NetnsRef | None = None) -> Interface | None:
        return self.machine.interface(ifname, netns)


def home_of(lab: Lab, vf: VfRef) -> VfHome:
    """What a VF at home is, as the ledger records it before giving it away."""
    state = next(pf for pf in lab.kernel.observe().pfs if pf.pci == vf.pf).vfs[vf.index]
    assert state.netdev is not None
    return VfHome(name=state.netdev, mac=state.mac, mtu=state.mtu)
