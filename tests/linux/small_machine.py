"""A machine of few files: a copy of sysfs below a directory, and answers of netlink, as plain values."""

from __future__ import annotations

import errno
import shutil
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from k8s_rdma.core.pf_selection import Selection
from k8s_rdma.core.types import PciAddress
from k8s_rdma.linux.discovery.observation import Observer
from k8s_rdma.linux.netlink.queries import DevlinkRate, RdmaNetlinkDevice, RdmaPort, VfInfo
from k8s_rdma.linux.netlink.rtnl import Link
from k8s_rdma.linux.netlink.socket import NetlinkError
from k8s_rdma.linux.sysfs import Sysfs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from k8s_rdma.core.kernel import Hardware, PfState

PF = PciAddress("0000:3b:00.0")
PF1 = PciAddress("0000:3b:00.1")
ROOT_PORT = "0000:3a:00.0"
ETHERNET, INFINIBAND = 1, 32


def vf_pci(index: int, pf: str = PF) -> PciAddress:
    return PciAddress(f"{pf[:-4]}{index + 2:02x}.{pf[-1]}")


def link(index: int, name: str, device: str = "", **changes: object) -> Link:
    made = Link(
        index=index,
        name=name,
        mac=f"0a:00:00:00:00:{index:02x}",
        mtu=1500,
        is_up=True,
        carrier=True,
        kind="",
        master=0,
        alias="",
        peer=0,
        peer_elsewhere=None,
        device=device,
    )
    return replace(made, **changes)


@dataclass
class Answers:
    """`Queries` that answers from its fields; `asked` are the PFs asked about their VFs."""

    by_name: dict[str, Link] = field(default_factory=dict)
    vfs: dict[int, list[VfInfo]] = field(default_factory=dict)
    routes: frozenset[int] = frozenset()
    addressed: frozenset[int] = frozenset()
    rdma: list[RdmaNetlinkDevice] = field(default_factory=list)
    modes: dict[str, str] = field(default_factory=dict)
    rates_by_devlink: dict[str, dict[int, DevlinkRate]] = field(default_factory=dict)
    firmwares: dict[str, str] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)

    def links(self) -> list[Link]:
        return list(self.by_name.values())

    def vf_infos(self, index: int) -> list[VfInfo]:
        self.asked.append(index)
        if index not in self.vfs:
            raise NetlinkError(f"VFs of link #{index}", errno.ENODEV)
        return self.vfs[index]

    def default_route_links(self) -> frozenset[int]:
        return self.routes

    def addressed_links(self) -> frozenset[int]:
        return self.addressed

    def rdma_devices(self) -> list[RdmaNetlinkDevice]:
        return self.rdma

    def eswitch_modes(self) -> dict[str, str]:
        return self.modes

    def devlink_rates(self) -> dict[str, dict[int, DevlinkRate]]:
        return self.rates_by_devlink

    def firmware(self, name: str) -> str:
        return self.firmwares.get(name, "")


class SmallMachine:
    """Begins without any network card."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.answers = Answers()
        for directory in ("bus/pci/devices", "bus/pci/drivers", "class/net", "class/infiniband"):
            (root / directory).mkdir(parents=True)

    def at(self, path: str) -> Path:
        return self.root / path

    def write(self, path: str, text: object) -> None:
        self.at(path).parent.mkdir(parents=True, exist_ok=True)
        self.at(path).write_text(f"{text}\n")

    def refuse(self, path: str) -> None:
        """Let a file refuse to be read."""
        self.at(path).unlink(missing_ok=True)
        self.at(path).mkdir(parents=True)

    def device(self, pci: str) -> str:
        return f"devices/pci0000:3a/{ROOT_PORT}/{pci}"

    def add_function(self, pci: str, driver: str | None, **files: object) -> None:
        for name, text in files.items():
            self.write(f"{self.device(pci)}/{name}", text)
        self.at(f"bus/pci/devices/{pci}").symlink_to(f"../../../{self.device(pci)}")
        self.bind(pci, driver)

    def bind(self, pci: str, driver: str | None) -> None:
        symlink = self.at(f"{self.device(pci)}/driver")
        symlink.unlink(missing_ok=True)
        if driver:
            self.at(f"bus/pci/drivers/{driver}").mkdir(exist_ok=True)
            symlink.symlink_to(f"../../../../bus/pci/drivers/{driver}")

    def add_netdev(self, pci: str, name: str, index: int, **changes: object) -> None:
        directory = f"{self.device(pci)}/net/{name}"
        self.write(f"{directory}/speed", 100_000)
        self.at(f"class/net/{name}").symlink_to(f"../../{directory}")
        self.answers.by_name[name] = link(index, name, pci, **changes)

    def remove_netdev(self, pci: str, name: str) -> None:
        """From this namespace, into another; its directory stays."""
        self.at(f"class/net/{name}").unlink()
        shutil.rmtree(self.at(f"{self.device(pci)}/net/{name}"))
        del self.answers.by_name[name]

    def add_rdma(self, pci: str, name: str, netdev_index: int | None = None) -> None:
        directory = f"{self.device(pci)}/infiniband/{name}"
        self.write(f"{directory}/ports/1/state", "4: ACTIVE")
        self.write(f"{directory}/ports/1/rate", "100 Gb/sec (4X EDR)")
        self.at(f"class/infiniband/{name}").symlink_to(f"../../{directory}")
        port = RdmaPort(number=1, state="ACTIVE", netdev_index=netdev_index)
        self.answers.rdma.append(RdmaNetlinkDevice(index=len(self.answers.rdma), name=name, ports=(port,)))

    def add_pf(
        self,
        pci: PciAddress = PF,
        name: str = "eth0",
        index: int = 10,
        *,
        driver: str | None = "mlx5_core",
        vfs: int = 0,
        rdma: str | None = "mlx5_0",
        **changes: object,
    ) -> None:
        self.add_function(
            pci,
            driver,
            vendor="0x15b3",
            device="0x1017",
            numa_node=1,
            sriov_totalvfs=8,
            sriov_numvfs=vfs,
            **{"class": "0x020000"},
        )
        self.add_netdev(pci, name, index, **changes)
        if rdma:
            self.add_rdma(pci, rdma, index)
        self.answers.vfs[index] = []
        for number in range(vfs):
            self.add_vf(number, pci=pci, pf_index=index)

    def add_vf(self, number: int, *, pci: PciAddress = PF, pf_index: int = 10) -> None:
        vf = vf_pci(number, pci)
        self.add_function(vf, "mlx5_core", vendor="0x15b3", device="0x1018")
        self.at(f"{self.device(pci)}/virtfn{number}").symlink_to(f"../{vf}")
        self.add_netdev(vf, f"eth{pf_index + number + 1}", pf_index + number + 1)
        self.answers.vfs[pf_index].append(VfInfo(index=number, mac=f"0b:00:00:00:00:{number:02x}"))

    def change_vf(self, number: int, pf_index: int = 10, **changes: object) -> None:
        vfs = self.answers.vfs[pf_index]
        vfs[number] = replace(vfs[number], **changes)

    def take_netdev(self, pci: str, name: str) -> None:
        """As before its driver made one."""
        self.remove_netdev(pci, name)
        self.at(f"{self.device(pci)}/net").rmdir()

    def observer(
        self, selection: Selection | None = None, *, now: Callable[[], float] = time.monotonic
    ) -> Observer:
        return Observer(Sysfs(self.root), self.answers, selection or Selection(), now=now)


def only_pf(hardware: Hardware) -> PfState:
    assert hardware.unreadable == ()
    (pf,) = hardware.pfs
    return pf


def observed(machine: SmallMachine) -> PfState:
    return only_pf(machine.observer().observe())
