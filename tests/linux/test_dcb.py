"""Data Center Bridging as the kernel's header has it, and as the kernel here answers."""

from __future__ import annotations

import errno
import struct

import pytest

from k8s_rdma.linux.netlink.dcb import Dcb, DcbState
from k8s_rdma.linux.netlink.rtnl import named, of_kind
from k8s_rdma.linux.netlink.socket import NetlinkError, NetlinkSocket, attribute, nested
from linux.recorded import Replay, answering, refusal

IEEE, PFC, APP_TABLE, APP = 13, 2, 3, 1


def told(*parts: bytes) -> DcbState | None:
    """Of a driver that answers with these (`struct dcbmsg`, then attributes)."""
    return Dcb(answering(struct.pack("=BBxx", 0, 21) + nested(IEEE, *parts))).state("eth0")


def pfc(bits: int) -> bytes:
    """`struct ieee_pfc`, of 136 bytes."""
    return attribute(PFC, struct.pack("=BBBxHxx8Q8Q", 8, bits, 0, 0, *[0] * 16))


def app(selector: int, priority: int, protocol: int) -> bytes:
    return attribute(APP, struct.pack("=BBH", selector, priority, protocol))


def test_priorities_with_flow_control_are_read():
    assert told(pfc(0b1000)) == DcbState(pfc=(3,), by_dscp=False)
    assert told(pfc(0b10000001)) == DcbState(pfc=(0, 7), by_dscp=False)
    assert told(pfc(0)) == DcbState(pfc=(), by_dscp=False)


def test_driver_that_reports_no_flow_control_is_unknown_not_without():
    assert told() == DcbState(pfc=None, by_dscp=False)


def test_priorities_by_dscp_are_distinguished_from_those_by_ethertype():
    assert told(pfc(0), nested(APP_TABLE, app(1, 3, 0x8906))) == DcbState(pfc=(), by_dscp=False)
    by_both = nested(APP_TABLE, app(1, 3, 0x8906), app(5, 3, 26))
    assert told(pfc(0), by_both) == DcbState(pfc=(), by_dscp=True)


def test_refusal_is_an_error_except_of_a_link_without_dcb():
    with pytest.raises(NetlinkError, match="DCB of eth0: EPERM"):
        Dcb(NetlinkSocket(Replay(refusal(errno.EPERM)))).state("eth0")
    assert Dcb(NetlinkSocket(Replay(refusal(errno.EOPNOTSUPP)))).state("eth0") is None


def test_kernel_reports_no_dcb_of_links_without_it(rtnl):
    rtnl.create("create", named("a"), of_kind("veth"))
    with Dcb() as dcb:
        assert dcb.state("a") is None
        assert dcb.state("absent") is None
