"""Two SR-IOV PFs of the machine, of which the variable K8S_RDMA_HARDWARE_PFS says which.

Their VFs must be unused: tests move them, set their rates, and leave them as they were.
"""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from contract.linux_lab import DEADLINE_S, LinuxLab, await_link, ip, run
from k8s_rdma.core.pf_selection import PfRule, Selection
from k8s_rdma.core.types import LinkType, PciAddress
from k8s_rdma.linux.drivers import ability, supported_settings
from k8s_rdma.linux.kernel import SriovKernel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

VARIABLE = "K8S_RDMA_HARDWARE_PFS"
FEWEST_VFS = 3
PFS = tuple(os.environ.get(VARIABLE, "").split(",")) if os.environ.get(VARIABLE) else ()

needs_hardware = pytest.mark.skipif(
    not PFS, reason=f"needs SR-IOV hardware: set {VARIABLE}, such as to eth0,eth1"
)


@dataclass(frozen=True)
class Home:
    """A VF's netdev before the first test, as the system's own programs show it."""

    name: str
    mac: str
    mtu: int


class HardwareLab(LinuxLab):
    """In the host's own namespace, which the tests' thread is in."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        assert len(PFS) == 2, f"{VARIABLE}: two PFs, such as eth0,eth1; not {PFS}"
        self.pf_names = PFS[0], PFS[1]
        self.pcis = _pci(PFS[0]), _pci(PFS[1])
        self.homes = _homes()
        self.vfs = min(_vfs(name) for name in PFS)
        assert self.vfs >= FEWEST_VFS, f"{PFS}: {FEWEST_VFS} VFs on each"
        self.link_mbps = int(Path(f"/sys/class/net/{PFS[0]}/speed").read_text())
        self.rates = ability(driver=_driver(PFS[0]), link_mbps=self.link_mbps, vendor=_vendor(PFS[0]))
        self.takes = supported_settings(
            driver=_driver(PFS[0]),
            link_type=LinkType.ETHERNET,
            switchdev=False,
            vfio_pci=_can_have_vfio(PFS[0]),
        )
        self.pf_mtu = int(Path(f"/sys/class/net/{PFS[0]}/mtu").read_text())
        self.vf_driver = Path(f"/sys/class/net/{PFS[0]}/device/virtfn0/driver").resolve().name
        self._settings = {name: _settings(name) for name in PFS}
        with ExitStack() as failed:
            failed.callback(self.close)
            self.stack.callback(self._tidy)
            self.kernel = self.another_kernel()
            failed.pop_all()

    def vf_name(self, pf: int, index: int) -> str:
        return self.homes[pf, index].name

    def another_kernel(self, **options: Any) -> SriovKernel:
        selection = Selection(require_rdma=False, rules=(PfRule(names=frozenset(PFS)),))
        kernel = SriovKernel(self.namespaces, selection, **options)
        self.stack.callback(kernel.close)
        return kernel

    @contextmanager
    def pf_down(self, pf: int) -> Iterator[None]:
        """The first (0) or second (1) PF down for a while."""
        run("ip", "link", "set", PFS[pf], "down")
        try:
            yield
        finally:
            run("ip", "link", "set", PFS[pf], "up")
            await_link(PFS[pf])
            # After that igb does not hear VFs until they were up.
            for index in range(_vfs(PFS[pf])):
                for name in _netdevs(PFS[pf], index):
                    run("ip", "link", "set", name, "up")
                    run("ip", "link", "set", name, "down")

    def _tidy(self) -> None:
        """Wait until all VFs are back, and restore them."""
        for name in PFS:
            _restore_settings(name, self._settings[name])
        _let_choose_macs(self.homes)
        for pf, index in self.homes:
            _release(PFS[pf], index, self.vf_driver)
        names = {vf: _await_netdev(PFS[vf[0]], vf[1]) for vf in self.homes}
        links = {link["ifname"]: link for link in ip(None, "address")}
        for vf, home in self.homes.items():
            _make_as_it_was(links[names[vf]], home)
        _take_own_macs(self.homes)
        for name in PFS:
            for vf in _details(name)["vfinfo_list"]:
                if vf["rate"]["max_tx"] or vf["rate"]["min_tx"]:
                    run(
                        "ip", "link", "set", name, "vf", str(vf["vf"]), "max_tx_rate", "0", "min_tx_rate", "0"
                    )


def _settings(pf: str) -> list[dict[str, Any]]:
    return [dict(vf) for vf in _details(pf)["vfinfo_list"]]


def _restore_settings(pf: str, before: list[dict[str, Any]]) -> None:
    """Restore values that differ, by ip(8)'s own words."""
    for was, now in zip(before, _settings(pf), strict=True):
        vf = ("ip", "link", "set", pf, "vf", str(was["vf"]))
        if was["address"] != now["address"] and _driver(pf) != "igb":
            run(*vf, "mac", was["address"])
        tags = [{"vlan": 0, "qos": 0, **(each.get("vlan_list") or [{}])[0]} for each in (was, now)]
        if tags[0] != tags[1]:
            run(*vf, "vlan", str(tags[0]["vlan"]), "qos", str(tags[0]["qos"]))
        for key, word in (("spoofchk", "spoofchk"), ("trust", "trust")):
            if was.get(key) != now.get(key):
                run(*vf, word, "on" if was[key] else "off")


def _let_choose_macs(homes: Mapping[tuple[int, int], Home]) -> None:
    """igb shows a MAC that the PF gave like one that a VF took, and lets the VF have no other."""
    if _driver(PFS[0]) == "igb":
        assert _batch(f"link set {PFS[pf]} vf {index} mac 00:00:00:00:00:00" for pf, index in homes)


def _take_own_macs(homes: Mapping[tuple[int, int], Home]) -> None:
    """Those that igb does not hear since it was reset are up for that."""
    if _driver(PFS[0]) != "igb":
        return
    take = [(f"link set {home.name}", f"address {home.mac}") for home in homes.values()]
    if not _batch(f"{link} {mac}" for link, mac in take):
        assert _batch(f"{link} {what}" for link, mac in take for what in ("up", mac, "down"))


def _batch(lines: Iterable[str]) -> bool:
    """Whether ip(8) did all that; it does all that it can."""
    ended = subprocess.run(
        ["ip", "-force", "-batch", "-"],
        input="\n".join([*lines, ""]),
        text=True,
        capture_output=True,
        check=False,
    )
    return ended.returncode == 0


def _release(pf: str, index: int, driver: str) -> None:
    """Back to the kernel's driver."""
    device = Path(f"/sys/class/net/{pf}/device/virtfn{index}").resolve()
    (device / "driver_override").write_text("\n")
    if (device / "driver").exists() and (device / "driver").resolve().name != driver:
        (device / "driver/unbind").write_text(device.name)
    if not (device / "driver").exists():
        Path(f"/sys/bus/pci/drivers/{driver}/bind").write_text(device.name)


def _can_have_vfio(pf: str) -> bool:
    group = Path(f"/sys/class/net/{pf}/device/virtfn0/iommu_group/devices")
    return Path("/sys/bus/pci/drivers/vfio-pci").exists() and group.exists() and len([*group.iterdir()]) == 1


def _make_as_it_was(link: dict[str, Any], home: Home) -> None:
    """Set only differing values: a driver may refuse a MAC that the VF has."""
    change = ("ip", "link", "set")
    if "UP" in link["flags"] or link["addr_info"]:
        run(*change, link["ifname"], "down")
        run("ip", "address", "flush", "dev", link["ifname"])
    if link["ifname"] != home.name:
        run(*change, link["ifname"], "name", home.name)
    if link["mtu"] != home.mtu:
        run(*change, home.name, "mtu", str(home.mtu))
    if link["address"] != home.mac:
        run(*change, home.name, "address", home.mac)


@cache
def _homes() -> dict[tuple[int, int], Home]:
    """Before the first test, of the first (0) and second (1) PF."""
    return {(pf, index): _home(PFS[pf], index) for pf in (0, 1) for index in range(_vfs(PFS[pf]))}


def _await_netdev(pf: str, index: int) -> str:
    deadline = time.monotonic() + DEADLINE_S
    while not (names := _netdevs(pf, index)):
        assert time.monotonic() < deadline, f"VF {index} of {pf} is not at home"
        time.sleep(0.02)
    return names[0]


def _netdevs(pf: str, index: int) -> list[str]:
    return [each.name for each in Path(f"/sys/class/net/{pf}/device/virtfn{index}/net").iterdir()]


def _home(pf: str, index: int) -> Home:
    link = _details(_netdevs(pf, index)[0])
    return Home(link["ifname"], link["address"], link["mtu"])


def _details(name: str) -> dict[str, Any]:
    return ip(None, "-details", "link", "show", name)[0]


def _pci(pf: str) -> PciAddress:
    return PciAddress(Path(f"/sys/class/net/{pf}/device").resolve().name)


def _vfs(pf: str) -> int:
    return int(Path(f"/sys/class/net/{pf}/device/sriov_numvfs").read_text())


def _driver(pf: str) -> str:
    return Path(f"/sys/class/net/{pf}/device/driver").resolve().name


def _vendor(pf: str) -> str:
    device = Path(f"/sys/class/net/{pf}/device")
    return ":".join((device / name).read_text().strip().removeprefix("0x") for name in ("vendor", "device"))
