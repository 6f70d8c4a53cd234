"""Shapers of queues as the kernel's answers have them; no driver of this machine has any."""

from __future__ import annotations

import errno
import struct

import pytest

from k8s_rdma.linux.netlink.shapers import QueueShapers
from k8s_rdma.linux.netlink.socket import NetlinkSocket, attribute, nested, text, u32
from linux.recorded import Replay, refusal

FAMILY = 33
HANDLE, BW_MAX, IFINDEX, SCOPE, ID = 1, 4, 8, 1, 2


def message(kind, flags, body):
    return struct.pack("=IHHII", 16 + len(body), kind, flags, 0, 0) + body + bytes(-len(body) % 4)


def family_asked(*answers):
    question = message(16, 5, struct.pack("=BBxx", 3, 1) + text(2, "net-shaper"))
    return [f"> {question.hex()}", *answers]


def kernel(*shapers, index=7):
    """A kernel whose link of this index has shapers: numbers of queues, with their rates in bits/s."""
    found = message(16, 0, struct.pack("=BBxx", 1, 2) + attribute(1, struct.pack("=H", FAMILY)))
    found += message(2, 0, bytes(20))
    question = message(FAMILY, 0x301, struct.pack("=BBxx", 1, 1) + u32(IFINDEX, index))
    told = b"".join(
        message(
            FAMILY,
            2,
            struct.pack("=BBxx", 1, 1)
            + u32(IFINDEX, index)
            + nested(HANDLE, u32(SCOPE, 2), u32(ID, queue))
            + u32(BW_MAX, rate),
        )
        for queue, rate in shapers
    )
    lines = [f"> {question.hex()}", f"< {(told + message(3, 2, bytes(4))).hex()}"]
    return NetlinkSocket(Replay("\n".join([*family_asked(f"< {found.hex()}"), *lines])))


def queue_shapers(socket, index):
    return QueueShapers(socket).read(index)


def test_shapers_are_distinguished_by_queue_and_rate_and_not_by_netdev_index():
    assert queue_shapers(kernel(), 7) == ""
    one = queue_shapers(kernel((0, 1_000_000)), 7)
    assert one
    assert queue_shapers(kernel((0, 1_000_000), index=9), 9) == one
    others = {queue_shapers(kernel(*each), 7) for each in [((0, 2_000_000),), ((1, 1_000_000),)]}
    assert len(others | {one, ""}) == 4


@pytest.mark.parametrize(("number", "value"), [(errno.EOPNOTSUPP, None), (errno.EIO, "EIO")])
def test_driver_without_shapers_has_none_and_a_failing_one_reports_its_error(number, value):
    replay = kernel().socket
    question = message(FAMILY, 0x301, struct.pack("=BBxx", 1, 1) + u32(IFINDEX, 7))
    lines = [f"> {question.hex()}", refusal(number)]
    replay._answers |= Replay("\n".join(lines))._answers
    assert queue_shapers(NetlinkSocket(replay), 7) == value


def test_kernel_without_shapers_has_none():
    assert queue_shapers(NetlinkSocket(Replay("\n".join(family_asked(refusal(errno.ENOENT))))), 7) is None
