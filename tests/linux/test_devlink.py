"""Modes of embedded switches as netdevsim reported them, and as the kernel here does."""

from __future__ import annotations

import errno

import pytest

from k8s_rdma.linux.netlink.devlink import Devlink, DevlinkDevice
from k8s_rdma.linux.netlink.socket import NetlinkError, NetlinkSocket
from linux.recorded import FOLDER, Replay, refusal, replayed

NAME = "netdevsim77"


@pytest.mark.parametrize("mode", ["legacy", "switchdev"])
def test_mode_is_read_of_devices_on_the_requested_bus(mode):
    with Devlink(replayed(f"devlink-{mode}")) as devlink:
        assert devlink.devices() == (DevlinkDevice("netdevsim", NAME),)
        assert devlink.eswitch_modes("netdevsim") == {NAME: mode}
        assert devlink.eswitch_modes("pci") == {}


def refusing(number):
    """As recorded, but the last question, which is that of the mode, is refused."""
    lines = (FOLDER / "devlink-legacy.txt").read_text().splitlines()
    last = max(at for at, line in enumerate(lines) if line.startswith(">"))
    return NetlinkSocket(Replay("\n".join([*lines[: last + 1], refusal(number)])))


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENODEV], ids=["no switch", "gone"])
def test_device_without_a_switch_has_no_mode(number):
    assert Devlink(refusing(number)).eswitch_modes("netdevsim") == {}


def test_mode_that_may_not_be_queried_is_an_error():
    with pytest.raises(NetlinkError, match="switch mode of netdevsim/netdevsim77: EPERM"):
        Devlink(refusing(errno.EPERM)).eswitch_modes("netdevsim")


def test_kernel_without_devlink_or_without_devices_has_no_modes(namespace):
    with Devlink() as devlink:
        assert devlink.eswitch_modes("pci") == {}
