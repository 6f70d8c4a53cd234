"""Virtual SR-IOV in network namespaces of the test's own."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from contract.lab import LINK_MBPS, PF0, PF1
from k8s_rdma.core.step import NetnsRef, Route
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netns import Namespaces, create_namespace, entered
from k8s_rdma.linux.rtnl import Rtnl, named, of_kind
from k8s_rdma.sim.fake_machine import Interface
from k8s_rdma.sim.virtual.kernel import VirtualSriov
from k8s_rdma.sim.virtual.pf import create_pf
from k8s_rdma.sim.virtual.topology import VirtualPf, random_base_mac

if TYPE_CHECKING:
    from pathlib import Path

    from k8s_rdma.core.ids import PciAddress


class VirtualLab:
    """Two virtual PFs in a namespace that this thread is in until `close`."""

    def __init__(self, directory: Path, vfs: int) -> None:
        self._directory = directory
        self._made = 0
        self.namespaces = Namespaces()
        self._stack = ExitStack()
        with ExitStack() as failed:
            failed.callback(self.close)
            host = create_namespace()
            self._stack.callback(os.close, host)
            self._stack.enter_context(entered(host))
            self.rtnl = self._stack.enter_context(Rtnl())
            self.pfs = [self._create_pf(number, pci, vfs) for number, pci in enumerate((PF0, PF1))]
            self.kernel = self.another_kernel()
            failed.pop_all()

    def close(self) -> None:
        self._stack.close()

    def another_kernel(self) -> VirtualSriov:
        kernel = VirtualSriov(self.namespaces)
        self._stack.callback(kernel.close)
        return kernel

    def namespace(self) -> NetnsRef:
        self._made += 1
        path = self._directory / f"ns{self._made}"
        path.touch()
        _run("unshare", f"--net={path}", "true")
        self._stack.callback(_run, "umount", "--lazy", str(path), check=False)
        return NetnsRef(str(path), path.stat().st_ino)

    def destroy(self, netns: NetnsRef) -> None:
        _run("umount", "--lazy", netns.path)
        _run("rm", netns.path)

    def occupy(self, name: str, netns: NetnsRef | None = None) -> None:
        with self._rtnl_of(netns) as rtnl:
            rtnl.create(f"create {name}", named(name), of_kind("bridge"))

    def alter(self, ifname: str, netns: NetnsRef, *, name: str, mac: str, mtu: int) -> None:
        inside = ("nsenter", f"--net={netns.path}", "ip", "link", "set", ifname)
        _run(*inside, "down")
        _run(*inside, "name", name, "address", mac, "mtu", str(mtu))

    def seen(self, ifname: str, netns: NetnsRef | None = None) -> Interface | None:
        links = [each for each in self._ip(netns, "address") if each["ifname"] == ifname]
        if not links:
            return None
        link = links[0]
        return Interface(
            mac=link["address"],
            mtu=link["mtu"],
            up="UP" in link["flags"],
            addresses=tuple(
                f"{each['local']}/{each['prefixlen']}"
                for each in link["addr_info"]
                if each["scope"] == "global"
            ),
            routes=self._routes(ifname, netns),
        )

    def _routes(self, ifname: str, netns: NetnsRef | None) -> tuple[Route, ...]:
        found = [
            *self._ip(netns, "-4", "route", "show", "dev", ifname),
            *self._ip(netns, "-6", "route", "show", "dev", ifname),
        ]
        return tuple(
            Route(each["dst"], each.get("gateway"))
            for each in found
            if each.get("protocol") is None and not each["dst"].startswith("fe80")
        )

    def _ip(self, netns: NetnsRef | None, *arguments: str) -> list[dict[str, Any]]:
        inside = ("nsenter", f"--net={netns.path}") if netns else ()
        return json.loads(_run(*inside, "ip", "-json", *arguments) or "[]")

    def _rtnl_of(self, netns: NetnsRef | None) -> Rtnl:
        if netns is None:
            return Rtnl()
        with self.namespaces.opened(netns) as namespace:
            return Rtnl(namespace)

    def _create_pf(self, number: int, pci: PciAddress, vfs: int) -> VirtualPf:
        uplink = f"up{number}"
        self.rtnl.create("create uplink", named(uplink), of_kind("veth"))
        for link in self.rtnl.links():
            if link.kind == "veth" and link.name in (uplink, f"veth{number}"):
                self.rtnl.change(link.index, link.name, up=True)
        pf = VirtualPf(
            name=f"enp3s0f{number}",
            pci=pci,
            uplink=uplink,
            vfs=vfs,
            link_mbps=LINK_MBPS,
            base_mac=random_base_mac(),
        )
        create_pf(pf, self.rtnl)
        return pf


def may_make_namespaces() -> bool:
    """Whether this process is root, or one in a user namespace of its own."""
    try:
        os.close(create_namespace())
    except KernelError:
        return False
    return True


needs_namespaces = pytest.mark.skipif(
    not may_make_namespaces(), reason="needs root or `unshare -Urmn`, since it makes network namespaces"
)


def _run(*command: str, check: bool = True) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not check or ended.returncode == 0, (command, ended.stderr)
    return ended.stdout
