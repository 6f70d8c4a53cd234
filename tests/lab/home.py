"""Whether every VF is at home in the node's own namespace, as it was; the kernel is asked, not the product.

before = vfs_of(machine)
...
assert not_home(machine, before) == {}
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lab.machine import Machine

PFS = ("eth0", "eth1")
DEADLINE_S = 60.0

LOOK = """
for pf in {pfs}; do for vf in /sys/class/net/$pf/device/virtfn*; do
  [ -e "$vf" ] || continue  # a PF without VFs
  echo "$pf ${{vf##*virtfn}} $(basename $(readlink $vf)) $(ls $vf/net 2>/dev/null)"
done; done
echo ---; ip -json -details address show; echo ---; rdma -j link show 2>/dev/null || echo '[]'
"""
"""VFs by PF and index: PCI address, netdev if it is here; the netdevs of this namespace; its RDMA devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vf:
    """A VF as the node's own namespace shows it. Rates in Mb/s; 0 for an unset rate or vlan.

    netdev: its name; unset while it is in another namespace or has no driver, as are its properties then.
    addresses: those of IPv4; empty for a VF at home. rdma: the device that its netdev carries.
    """

    pci: str
    netdev: str | None
    mac: str | None
    pf_mac: str
    mtu: int | None
    addresses: tuple[str, ...]
    min_tx_rate: int
    max_tx_rate: int
    vlan: int
    trust: bool
    spoof_check: bool
    rdma: str | None


def vfs_of(machine: Machine, pfs: Iterable[str] = PFS) -> dict[tuple[str, int], Vf]:
    """Every VF by its PF's netdev and its index. pf_mac: the PF's address for it."""
    functions, links, rdma = (
        machine.run("bash", "-c", LOOK.format(pfs=" ".join(pfs))).stdout.strip().split("---\n")
    )
    by_name = {link["ifname"]: link for link in json.loads(links) if link}
    devices = {each["netdev"]: each["ifname"] for each in json.loads(rdma) if "netdev" in each}
    found = {}
    for line in functions.splitlines():
        pf, index, pci, *netdevs = line.split()
        netdev = netdevs[0] if netdevs else None
        config = next(each for each in by_name[pf]["vfinfo_list"] if each["vf"] == int(index))
        found[pf, int(index)] = _vf(pci, by_name.get(netdev or ""), config, devices.get(netdev or ""))
    return found


def not_home(
    machine: Machine, before: Mapping[tuple[str, int], Vf], *, within_s: float = DEADLINE_S
) -> dict[str, tuple[Any, Any]]:
    """Return changes as (then, now), by VF and property; looks until all are gone, or the time is over."""
    pfs = tuple(dict.fromkeys(pf for pf, _ in before))
    end = time.monotonic() + within_s
    while True:
        left = differences(before, vfs_of(machine, pfs))
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.2)


def differences(
    before: Mapping[tuple[str, int], Vf], now: Mapping[tuple[str, int], Vf]
) -> dict[str, tuple[Any, Any]]:
    """Return the differences of two looks, by VF and property."""
    left = {}
    for (pf, index), then in before.items():
        vf = now.get((pf, index))
        found = asdict(vf) if vf is not None else dict.fromkeys(asdict(then))
        for name, value in asdict(then).items():
            if found[name] != value:
                left[f"{pf} VF {index} {name}"] = (value, found[name])
    return left


def _vf(pci: str, link: dict[str, Any] | None, config: dict[str, Any], rdma: str | None) -> Vf:
    rates = config["rate"]
    return Vf(
        pci=pci,
        netdev=link["ifname"] if link else None,
        mac=link["address"] if link else None,
        pf_mac=config["address"],
        mtu=link["mtu"] if link else None,
        addresses=tuple(each["local"] for each in link["addr_info"] if each["family"] == "inet")
        if link
        else (),
        min_tx_rate=rates["min_tx"],
        max_tx_rate=rates["max_tx"],
        vlan=next((each["vlan"] for each in config.get("vlan_list", ()) if "vlan" in each), 0),
        trust=config.get("trust", False),
        spoof_check=config.get("spoofchk", False),
        rdma=rdma,
    )
