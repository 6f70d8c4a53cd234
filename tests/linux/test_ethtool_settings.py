"""Settings of a netdev's driver by ethtool's netlink, read and restored in a namespace of the test's own."""

from __future__ import annotations

import subprocess
from socket import SO_RCVBUF, SOL_SOCKET

import driver_settings
from contract.linux_lab import needs_namespaces
from k8s_rdma.core.netdev_attributes import differences
from k8s_rdma.linux.netlink.ethtool_settings import EthtoolSettings
from k8s_rdma.linux.netlink.socket import GENERIC, NetlinkSocket, connect
from k8s_rdma.linux.vf.attributes import NetdevAttributes

pytestmark = needs_namespaces


def test_features_are_read_and_restored_and_sizes_that_the_driver_chose_stay(rtnl, netdev, read_attributes):
    home = read_attributes()
    driver_settings.turn_features_off("vf4")
    assert driver_settings.change_sizes("vf4")
    names = {name for name, value in read_attributes() if dict(home)[name] != value}
    assert names == {"features", "channels"}
    with NetdevAttributes(rtnl) as attributes:
        attributes.restore(netdev, home, "restore")
    [remaining] = differences(home, read_attributes())
    assert remaining.startswith("its channels is ")


def test_features_that_the_driver_refused_to_tell_at_home_stay_and_the_rest_is_restored(
    rtnl, netdev, read_attributes
):
    """A driver that resets answers EBUSY, which is then recorded."""
    home = tuple(sorted((dict(read_attributes()) | {"features": "EBUSY"}).items()))
    subprocess.run(["ip", "link", "set", "vf4", "txqueuelen", "77"], check=True)
    with NetdevAttributes(rtnl) as attributes:
        attributes.restore(netdev, home, "restore")
    [difference] = differences(home, read_attributes())
    assert difference.endswith("at home EBUSY")


def test_settings_of_a_driver_are_read_when_the_sockets_buffer_does_not_hold_all_answers(netdev):
    connection = connect(GENERIC)
    with EthtoolSettings(NetlinkSocket(connection)) as settings:
        expected = settings.read(netdev.index)
        connection.setsockopt(SOL_SOCKET, SO_RCVBUF, 2048)  # twice as many bytes, socket(7)
        assert settings.read(netdev.index) == expected
        assert {"features", "channels"} <= expected.keys()
