"""A small machine whose RDMA devices have character devices, and nodes in a `/dev` of their own."""

from __future__ import annotations

import os
import shutil
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.core.devices.rdma_devices import NetnsMode
from k8s_rdma.deviceplugin.device_monitor import ScannedHost
from k8s_rdma.linux.netlink.queries import RdmaNetlinkDevice, RdmaPort
from k8s_rdma.linux.rdma.character_devices import DeviceNodes
from k8s_rdma.linux.rdma.observation import RdmaObserver
from k8s_rdma.linux.sysfs import Sysfs
from linux.small_machine import PF, Answers, SmallMachine, vf_pci

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

VERBS, MAD = "class/infiniband_verbs", "class/infiniband_mad"
MAJOR, UVERBS_MINOR, ISSM_MINOR = 231, 192, 64


@dataclass
class RdmaAnswers(Answers):
    """And the mode."""

    mode: NetnsMode | None = NetnsMode.EXCLUSIVE

    def netns_mode(self) -> NetnsMode | None:
        return self.mode


class RdmaMachine(SmallMachine):
    """PF eth0 with RDMA device mlx5_0, and VFs eth11, eth12 ... with mlx5_1, mlx5_2 ..., all healthy."""

    def __init__(self, folder: Path, *, vfs: int = 2) -> None:
        super().__init__(folder / "sys")
        self.answers: RdmaAnswers = RdmaAnswers()
        self.dev = folder / "dev"
        (self.dev / "infiniband").mkdir(parents=True)
        self.write("class/misc/rdma_cm/dev", "10:58")
        self.make_node("rdma_cm", 10, 58)
        self.add_pf(vfs=vfs)
        self.complete("mlx5_0", PF, 0)
        for number in range(vfs):
            self.add_rdma(vf_pci(number), f"mlx5_{number + 1}", 11 + number)
            self.at(f"{self.device(vf_pci(number))}/physfn").symlink_to(f"../{PF}")
            self.complete(f"mlx5_{number + 1}", vf_pci(number), number + 1)

    def host(self) -> ScannedHost:
        return ScannedHost(sysfs=self.root, dev=self.dev, queries=lambda: nullcontext(self.answers))

    def observer(self) -> RdmaObserver:  # type: ignore[override]
        return RdmaObserver(Sysfs(self.root), self.answers, DeviceNodes(self.dev))

    def complete(self, name: str, pci: str, number: int) -> None:
        """Give a device the files of the kernel's modules for user space."""
        self.at(f"{self.device(pci)}/infiniband/{name}/device").symlink_to(f"../../../{pci}")
        self.add_verbs(name, number, pci)

    def add_verbs(self, name: str, number: int, pci: str = "") -> None:
        self._character(VERBS, f"uverbs{number}", name, UVERBS_MINOR + number, pci)

    def add_mad(self, kind: str, name: str, number: int, pci: str = "") -> None:
        self._character(MAD, f"{kind}{number}", name, number + (ISSM_MINOR if kind == "issm" else 0), pci)
        self.write(f"{MAD}/{kind}{number}/port", 1)

    def _character(self, directory: str, node: str, name: str, minor: int, pci: str) -> None:
        self.write(f"{directory}/{node}/ibdev", name)
        self.write(f"{directory}/{node}/dev", f"{MAJOR}:{minor}")
        if pci:
            self.at(f"{directory}/{node}/device").symlink_to(f"../../../{self.device(pci)}")
        self.make_node(node, MAJOR, minor)

    def make_node(self, node: str, major: int, minor: int) -> None:
        try:
            os.mknod(self.dev / "infiniband" / node, 0o20666, os.makedev(major, minor))
        except PermissionError:
            pytest.skip("needs root, to make device nodes")

    def remove_node(self, node: str) -> None:
        (self.dev / "infiniband" / node).unlink()

    def remove_verbs(self, number: int) -> None:
        shutil.rmtree(self.at(f"{VERBS}/uverbs{number}"))
        self.remove_node(f"uverbs{number}")

    def set_port(self, name: str, state: str) -> None:
        self._replace(name, lambda device: replace(device, ports=(replace(device.ports[0], state=state),)))

    def set_ports(self, name: str, *ports: RdmaPort) -> None:
        self._replace(name, lambda device: replace(device, ports=ports))

    def set_link(self, name: str, **changes: object) -> None:
        self.answers.by_name[name] = replace(self.answers.by_name[name], **changes)

    def take_away(self, name: str, pci: str, number: int, *, new_number: int | None = None) -> None:
        """Into another namespace: it gets new character devices."""
        self.answers.rdma = [device for device in self.answers.rdma if device.name != name]
        self.at(f"class/infiniband/{name}").unlink()
        self.remove_verbs(number)
        if new_number is not None:
            self.add_verbs(name, new_number, pci)

    def add_rdma_again(self, name: str, pci: str, number: int) -> None:
        """Home again, with the character devices that it had."""
        port = RdmaPort(number=1, state="ACTIVE")
        self.answers.rdma.append(RdmaNetlinkDevice(index=100 + number, name=name, ports=(port,)))
        self.at(f"class/infiniband/{name}").symlink_to(f"../../{self.device(pci)}/infiniband/{name}")
        self.add_verbs(name, number, pci)

    def _replace(self, name: str, change: Callable[[RdmaNetlinkDevice], RdmaNetlinkDevice]) -> None:
        self.answers.rdma = [
            change(device) if device.name == name else device for device in self.answers.rdma
        ]
