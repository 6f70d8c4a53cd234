"""Rates by devlink as netdevsim reported them, and as other drivers and kernels may."""

from __future__ import annotations

import errno
import struct

import pytest

from k8s_rdma.linux.netlink.devlink import Devlink, devlink_rates
from k8s_rdma.linux.netlink.queries import DevlinkRate
from k8s_rdma.linux.netlink.socket import NetlinkError, NetlinkSocket, attribute
from linux.recorded import FOLDER, Replay, refusal, replayed

NAME = "netdevsim77"
FLAVOUR, EXTERNAL = 77, 149
PCI_VF, PCI_SF = 4, 7


def test_rates_are_read_by_vf_with_the_group_and_rates_above_it():
    with Devlink(replayed("devlink-rates")) as devlink:
        assert devlink_rates(devlink, "netdevsim") == {
            NAME: {
                0: DevlinkRate(min_tx_rate_mbps=100, max_tx_rate_mbps=200),
                1: DevlinkRate(group="low", group_rated=True),
                3: DevlinkRate(group="top"),
            }
        }
        assert devlink_rates(devlink, "pci") == {}


def answered_last(answer):
    """As recorded, but the question for rates, which is the second, is answered so."""
    lines = (FOLDER / "devlink-rates.txt").read_text().splitlines()
    second = [at for at, line in enumerate(lines) if line.startswith(">")][1]
    return Devlink(NetlinkSocket(Replay("\n".join([*lines[: second + 1], answer]))))


def test_kernel_without_rates_by_devlink_has_none():
    assert devlink_rates(answered_last(refusal(errno.EOPNOTSUPP)), "netdevsim") == {}


def test_unreadable_rates_are_an_error():
    with pytest.raises(NetlinkError, match="rates by devlink: ENOMEM"):
        devlink_rates(answered_last(refusal(errno.ENOMEM)), "netdevsim")


def test_kernel_without_devlink_or_without_devices_has_none(namespace):
    with Devlink() as devlink:
        assert devlink_rates(devlink, "pci") == {}


def altered(before, after):
    """As recorded, with other bytes in the answers."""
    lines = (FOLDER / "devlink-rates.txt").read_text().splitlines()
    assert any(before.hex() in line for line in lines)
    said = [line.replace(before.hex(), after.hex()) if line.startswith("<") else line for line in lines]
    return Devlink(NetlinkSocket(Replay("\n".join(said))))


def test_rate_below_a_megabit_is_not_zero():
    devlink = altered(struct.pack("=Q", 200 * 125_000), struct.pack("=Q", 1))
    assert devlink_rates(devlink, "netdevsim")[NAME][0].max_tx_rate_mbps == 1


def test_vfs_that_another_machine_has_are_not_among_ours():
    devlink = altered(attribute(EXTERNAL, b"\0"), attribute(EXTERNAL, b"\1"))
    assert devlink_rates(devlink, "netdevsim") == {}


def test_ports_of_other_functions_are_not_taken_for_vfs():
    devlink = altered(
        attribute(FLAVOUR, struct.pack("=H", PCI_VF)), attribute(FLAVOUR, struct.pack("=H", PCI_SF))
    )
    assert devlink_rates(devlink, "netdevsim") == {}
