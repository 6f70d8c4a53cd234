"""Records the replays of tests/linux: `python record_netlink.py FOLDER PF`, as root, on the hardware.

The PF needs 7 unused VFs that take a maximum rate only (igb), and the machine rdma_rxe, netdevsim
and debugfs.
"""

from __future__ import annotations

import platform
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from contract.linux_lab import run
from hardware.netlink_lab import pf_link, simulated_pf, soft_rdma_device, vf_netdev
from k8s_rdma.core.step import VfRate
from k8s_rdma.linux.netlink.devlink import Devlink, devlink_rates
from k8s_rdma.linux.netlink.rdma import RdmaNetlink
from k8s_rdma.linux.netlink.rtnl import Rtnl
from k8s_rdma.linux.netlink.socket import GENERIC, RDMA, ROUTE, NetlinkError, NetlinkSocket
from k8s_rdma.linux.netlink.sriov import (
    link_state,
    mac,
    set_rates,
    set_vfs,
    spoof_check,
    trust,
    vf_infos,
    vf_stats,
    vlan,
)
from linux.recorded import Recording

if TYPE_CHECKING:
    from collections.abc import Callable


def main(folder: Path, pf: str) -> None:
    """Record every conversation."""

    def record(name: str, family: int, what: str, talk: Callable[[NetlinkSocket], None]) -> None:
        recording = Recording(family)
        with NetlinkSocket(recording) as socket:
            talk(socket)
        said = f"# Linux {platform.release()}: {what}"
        (folder / f"{name}.txt").write_text("\n".join([said, *recording.lines, ""]))

    with Rtnl() as rtnl, ExitStack() as undo:
        index = pf_link(rtnl, pf).index
        run("ip", "link", "set", pf, "vf", "0", "max_tx_rate", "100")
        run("ip", "link", "set", pf, "vf", "1", "vlan", "5", "qos", "3")
        run("ip", "link", "set", pf, "vf", "2", "trust", "on", "spoofchk", "off")
        run("ip", "link", "set", pf, "vf", "3", "mac", "02:00:00:00:00:03")
        record(
            "igb",
            ROUTE,
            "igb, 7 VFs: 0 max rate 100, 1 VLAN 5 QoS 3, 2 trusted without spoof check,"
            " 3 MAC 02:00:00:00:00:03; then rates for VFs 4, 5 (a minimum, refused) and 6",
            lambda socket: _ask_igb(Rtnl(socket=socket), index),
        )
        name = undo.enter_context(simulated_pf(4))
        simulated = pf_link(rtnl, name).index
        record(
            "netdevsim",
            ROUTE,
            "netdevsim, 4 VFs that get rates, the last one every other setting as well",
            lambda socket: _ask_netdevsim(Rtnl(socket=socket), simulated),
        )
        record("devlink-legacy", GENERIC, "netdevsim in mode legacy", _ask_devlink)
        device = next(Path(f"/sys/class/net/{name}/device").resolve().glob("../netdevsim*")).name
        run("devlink", "dev", "eswitch", "set", f"netdevsim/{device}", "mode", "switchdev")
        record("devlink-switchdev", GENERIC, "netdevsim in mode switchdev", _ask_devlink)
        _rate_by_devlink(f"netdevsim/{device}")
        record(
            "devlink-rates",
            GENERIC,
            "netdevsim in mode switchdev: group low (tx_max 300) in group top, VF 0 tx_share 100 tx_max 200,"
            " VF 1 in low, VF 3 in top",
            lambda socket: devlink_rates(Devlink(socket), "netdevsim"),
        )
        for vf in (4, 5):
            undo.enter_context(soft_rdma_device(vf_netdev(pf, vf), f"rxe{vf}"))
        record("rdma", RDMA, "rdma_rxe on VFs 4 and 5, of which 4 is up", _ask_rdma)


def _ask_igb(rtnl: Rtnl, index: int) -> None:
    vf_infos(rtnl, index)
    vf_stats(rtnl, index)
    with suppress(NetlinkError):
        set_rates(rtnl, index, "rates", (VfRate(4, 0, 100), VfRate(5, 10, 100), VfRate(6, 0, 100)))


def _ask_netdevsim(rtnl: Rtnl, index: int) -> None:
    set_rates(rtnl, index, "rates", [VfRate(vf, 100 * vf, 1000) for vf in range(4)])
    settings = (mac(3, "02:00:00:00:00:03"), vlan(3, 100, 7, "802.1ad"), link_state(3, "disable"))
    set_vfs(rtnl, index, "settings", (*settings, trust(3, on=True), spoof_check(3, on=True)))
    vf_infos(rtnl, index)


def _ask_devlink(socket: NetlinkSocket) -> None:
    Devlink(socket).eswitch_modes("netdevsim")


def _rate_by_devlink(device: str) -> None:
    """Groups, and VFs by their ports, of which VF 0's is 128."""
    rate = ("devlink", "port", "function", "rate")
    run(*rate, "add", f"{device}/top")
    run(*rate, "add", f"{device}/low", "tx_max", "300mbit")
    run(*rate, "set", f"{device}/low", "parent", "top")
    run(*rate, "set", f"{device}/128", "tx_share", "100mbit", "tx_max", "200mbit")
    run(*rate, "set", f"{device}/129", "parent", "low")
    run(*rate, "set", f"{device}/131", "parent", "top")


def _ask_rdma(socket: NetlinkSocket) -> None:
    rdma = RdmaNetlink(socket=socket)
    rdma.netns_mode()
    rdma.devices()
    rdma.indexes()
    rdma.hw_counters(next(iter(rdma.indexes().values())))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
