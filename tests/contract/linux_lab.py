"""Network namespaces and their inhabitants, by the system's own programs, without the code under test."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

import bpf_programs
import driver_settings
from contract.lab import FRAME_BYTES
from fakes.machine import Interface
from k8s_rdma.core.step import NetnsRef, Route
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netns import Namespaces, entered
from network_namespaces import create_namespace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DEADLINE_S = 120
"""For a link to come up: one of a slow emulated machine takes several seconds."""

_INHERITED = (
    *("txqlen", "group", "ifalias", "gso_max_size", "gso_max_segs", "gro_max_size", "broadcast", "xdp"),
    "altnames",
)
"""Fields of `ip -details link` that move along with an interface, beside its flags."""

EXPERIMENTAL = b"\x88\xb5"
"""IEEE 802 local experimental ethertype 1: no other program here sends it."""

BROADCAST = b"\xff" * 6
NOBODY = b"\x02\0\0\0\0\xfe"
"""A station that is not there. Some cards give broadcasts back to the VF that sent them."""


class LinuxLab:
    """The parts of a lab on the running kernel, in the namespace of its thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made = 0
        self.namespaces = Namespaces()
        self.stack = ExitStack()

    def close(self) -> None:
        self.stack.close()

    def namespace(self) -> NetnsRef:
        self._made += 1
        path = self._directory / f"ns{self._made}"
        path.touch()
        run("unshare", f"--net={path}", "true")
        self.stack.callback(run, "umount", "--lazy", str(path), check=False)
        return NetnsRef(str(path), path.stat().st_ino)

    def destroy(self, netns: NetnsRef) -> None:
        run("umount", "--lazy", netns.path)
        run("rm", netns.path)

    def occupy(self, name: str, netns: NetnsRef | None = None) -> None:
        run(*inside(netns), "ip", "link", "add", name, "type", "bridge")
        if netns is None:
            self.stack.callback(run, "ip", "link", "delete", name, check=False)

    def vacate(self, name: str) -> None:
        run("ip", "link", "delete", name)

    def alter(self, ifname: str, netns: NetnsRef | None, *, name: str, mac: str, mtu: int) -> None:
        link = (*inside(netns), "ip", "link", "set", ifname)
        run(*link, "down")
        run(*link, "name", name, "address", mac, "mtu", str(mtu))

    def add_altname(self, ifname: str, netns: NetnsRef | None, altname: str) -> None:
        run(*inside(netns), "ip", "link", "property", "add", "dev", ifname, "altname", altname)

    def tune(self, ifname: str, netns: NetnsRef | None) -> None:
        link = (*inside(netns), "ip", "link", "set", ifname)
        run(*link, "txqueuelen", "77", "group", "7", "alias", "mine", "gso_max_size", "4000")
        run(*link, "gso_max_segs", "7", "multicast", "off", "broadcast", "ff:ff:ff:ff:ff:fe")
        run(*link, "gro_max_size", "5000", check=False)  # Linux 5.19
        with self._entered(netns):
            driver_settings.turn_features_off(ifname)

    def tune_driver(self, ifname: str, netns: NetnsRef | None) -> None:
        with self._entered(netns):
            if not driver_settings.change_sizes(ifname):
                pytest.skip("needs a driver with rings or channels to change")

    def attach_program(self, ifname: str, netns: NetnsRef | None, *, by_link: bool = False) -> None:
        program = bpf_programs.load(bpf_programs.returning(bpf_programs.XDP_PASS))
        with self._entered(netns):
            if by_link:
                self.stack.callback(os.close, bpf_programs.link_xdp(ifname, program))
            else:
                bpf_programs.attach_xdp(ifname, program)
        os.close(program)

    def build_on(self, ifname: str, netns: NetnsRef) -> None:
        for kind in (("macvlan",), ("vlan", "id", "7")):
            run(*inside(netns), "ip", "link", "add", "link", ifname, "above", "type", *kind, check=False)
            if self.seen("above", netns) is not None:
                return
        pytest.skip("needs macvlan or VLAN interfaces")

    def inherited(self, ifname: str, netns: NetnsRef | None) -> dict[str, str]:
        [link] = ip(netns, "-details", "link", "show", ifname)
        found = {name: str(link.get(name, "")) for name in _INHERITED}
        found["flags"] = " ".join(sorted({"MULTICAST", "NOARP", "PROMISC", "ALLMULTI"} & {*link["flags"]}))
        with self._entered(netns):
            settings = driver_settings.features(ifname), driver_settings.sizes(ifname)
        return found | {"settings": ", ".join(settings)}

    @contextmanager
    def _entered(self, netns: NetnsRef | None) -> Iterator[None]:
        if netns is None:
            yield
            return
        with self.namespaces.existing(netns) as namespace, entered(namespace):
            yield

    def use(self, ifname: str, netns: NetnsRef | None, *addresses: str) -> None:
        run(*inside(netns), "ip", "link", "set", ifname, "up")
        lines = (f"address add {each} dev {ifname}{' nodad' * (':' in each)}" for each in addresses)
        run(*inside(netns), "ip", "-batch", "-", stdin="\n".join(lines))

    def uncap(self, ifname: str, netns: NetnsRef) -> None:
        run(*inside(netns), "tc", "qdisc", "replace", "dev", ifname, "root", "handle", "1:", "pfifo")

    def send(self, ifname: str, netns: NetnsRef, frames: int) -> None:
        found = self.seen(ifname, netns)
        assert found is not None
        frame = NOBODY + bytes.fromhex(found.mac.replace(":", "")) + EXPERIMENTAL
        with self.namespaces.existing(netns) as namespace, entered(namespace):
            sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        with sender:
            await_link(ifname, netns)
            sender.bind((ifname, 0))
            for _ in range(frames):
                sender.send(frame.ljust(FRAME_BYTES, b"\0"))

    def seen(self, ifname: str, netns: NetnsRef | None = None) -> Interface | None:
        links = [each for each in ip(netns, "address") if each["ifname"] == ifname]
        if not links:
            return None
        link = links[0]
        return Interface(
            mac=link["address"],
            mtu=link["mtu"],
            is_up="UP" in link["flags"],
            addresses=tuple(
                f"{each['local']}/{each['prefixlen']}"
                for each in link["addr_info"]
                if each["scope"] == "global"
            ),
            routes=_routes(ifname, netns),
        )


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


def run(*command: str, check: bool = True, stdin: str = "") -> str:
    """The output of a program; it must succeed unless `check` is false."""
    ended = subprocess.run(command, capture_output=True, text=True, check=False, input=stdin)
    assert not check or ended.returncode == 0, (command, ended.stderr)
    return ended.stdout


def ip(netns: NetnsRef | None, *arguments: str) -> list[dict[str, Any]]:
    """The output of `ip` for a namespace, the caller's own by default."""
    return json.loads(run(*inside(netns), "ip", "-json", *arguments) or "[]")


def await_link(ifname: str, netns: NetnsRef | None = None) -> None:
    """Wait until an interface that was set up sends: with only a carrier, frames are lost for a while."""
    deadline = time.monotonic() + DEADLINE_S
    while ip(netns, "link", "show", ifname)[0]["operstate"] != "UP":
        assert time.monotonic() < deadline, f"{ifname} does not come up"
        time.sleep(0.05)


def inside(netns: NetnsRef | None) -> tuple[str, ...]:
    """Begins a command that is to run in a namespace."""
    return ("nsenter", f"--net={netns.path}") if netns else ()


def _routes(ifname: str, netns: NetnsRef | None) -> tuple[Route, ...]:
    found = [
        *ip(netns, "-4", "route", "show", "dev", ifname),
        *ip(netns, "-6", "route", "show", "dev", ifname),
    ]
    return tuple(
        Route(each["dst"], each.get("gateway"))
        for each in found
        if each.get("protocol") is None and not each["dst"].startswith("fe80")
    )
