"""RDMA devices as reported for two of rdma_rxe; moves are tried in tests/hardware."""

from __future__ import annotations

import errno
import struct
from pathlib import Path

import pytest

from k8s_rdma.linux.changes import RDMA_EVENTS
from k8s_rdma.linux.netlink.queries import RdmaNetlinkDevice, RdmaPort
from k8s_rdma.linux.netlink.rdma import NetnsMode, RdmaNetlink
from k8s_rdma.linux.netlink.socket import NetlinkError, NetlinkSocket
from linux.recorded import FOLDER, Replay, answering, refusal, replayed

without_rdma = pytest.mark.skipif(
    Path("/sys/class/infiniband").exists(), reason="needs a kernel without RDMA"
)
RECORDED = (FOLDER / "rdma.txt").read_text().splitlines()
DEVICES = "> 10000000011401030000000000000000"
PORTS_OF_4 = "> 180000000514010300000000000000000800010000000000"


def test_devices_are_listed_with_their_ports():
    with RdmaNetlink(socket=replayed("rdma")) as rdma:
        assert rdma.devices() == (
            RdmaNetlinkDevice(
                index=0,
                name="rxe4",
                node_guid="14dc:4aff:fea5:a240",
                ports=(RdmaPort(number=1, state="ACTIVE", netdev_index=8),),
            ),
            RdmaNetlinkDevice(
                index=1,
                name="rxe5",
                node_guid="0cc6:1cff:fe16:66eb",
                ports=(RdmaPort(number=1, state="DOWN", netdev_index=9),),
            ),
        )
        assert rdma.indexes() == {"rxe4": 0, "rxe5": 1}


def test_counters_have_the_names_of_the_kernel():
    counters = RdmaNetlink(socket=replayed("rdma")).hw_counters(0)
    assert (len(counters), counters["sent_pkts"], counters["rdma_sends"]) == (15, 0, 0)


@pytest.mark.parametrize(("value", "mode"), [(0, NetnsMode.EXCLUSIVE), (1, NetnsMode.SHARED)])
def test_mode_is_one_of_two(value, mode):
    body = struct.pack("=HHBxxx", 5, 66, value)
    assert RdmaNetlink(socket=answering(body)).netns_mode() is mode


def answer_to(request):
    rest = RECORDED[RECORDED.index(request) + 1 :]
    return [request, *rest[: next(at for at, line in enumerate(rest) if line[0] == ">")]]


def told(*lines):
    return RdmaNetlink(socket=NetlinkSocket(Replay("\n".join(lines))))


def test_devices_are_listed_again_if_one_disappeared_meanwhile():
    """The kernel answers EINVAL to the index of a device that is gone."""
    went = [*answer_to(DEVICES), PORTS_OF_4, refusal(errno.EINVAL)]
    assert [device.name for device in told(*went, *RECORDED).devices()] == ["rxe4", "rxe5"]


def test_devices_are_an_error_when_they_change_all_the_time():
    always = [*answer_to(DEVICES), PORTS_OF_4, refusal(errno.EINVAL)]
    with pytest.raises(NetlinkError, match="changed under way 5 times") as failure:
        told(*always).devices()
    assert failure.value.errno == errno.EINTR


def test_devices_are_an_error_when_the_kernel_refuses():
    with pytest.raises(NetlinkError, match=r"^RDMA devices: EPERM"):
        told(DEVICES, refusal(errno.EPERM)).devices()


@without_rdma
def test_kernel_without_rdma_is_an_error_of_its_own():
    with pytest.raises(NetlinkError, match=r"^RDMA netlink: EPROTONOSUPPORT") as failure:
        RdmaNetlink()
    assert failure.value.errno == errno.EPROTONOSUPPORT


@without_rdma
def test_watching_does_without_rdma_events_if_there_are_none():
    assert RDMA_EVENTS.open(1 << 16) is None
