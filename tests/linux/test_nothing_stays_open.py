"""Descriptors and threads: those that are closed are gone, and no call waits for ever."""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
from pathlib import Path

import pytest

from k8s_rdma.core.step import NetnsRef
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.changes import Changes
from k8s_rdma.linux.netlink.rtnl import named, of_kind
from k8s_rdma.linux.netlink.socket import NetlinkError, NetlinkSocket, text
from k8s_rdma.linux.netns import Namespaces, current_namespace

OURS = Path("/proc/self/ns/net")
DEADLINE_S = 120


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_released_and_closed_namespaces_keep_no_descriptor(tmp_path):
    own, namespaces = current_namespace(), Namespaces()
    before = open_files()
    namespaces.release(namespaces.hold(own, "/run/netns/elsewhere"))
    assert open_files() == before
    for _ in range(2):
        namespaces.hold(own, "/run/netns/elsewhere")
    namespaces.close()
    assert open_files() == before
    os.close(own)


@pytest.mark.parametrize(
    ("kind", "offset"), [("net", 0), ("net", 1), ("mnt", 0)], ids=["it", "other", "no net"]
)
def test_reading_a_namespace_keeps_no_descriptor(tmp_path, kind, offset):
    (tmp_path / "a").symlink_to(f"/proc/self/ns/{kind}")
    before = open_files()
    Namespaces(tmp_path).alive(NetnsRef("/a", OURS.stat().st_ino + offset))
    assert open_files() == before


def test_looking_at_a_namespace_does_not_wait_when_a_fifo_lies_there(tmp_path):
    os.mkfifo(tmp_path / "a")
    with (
        pytest.raises(KernelError, match="cannot be accessed"),
        Namespaces(tmp_path).opened(NetnsRef("/a", 1)),
    ):
        pass


def test_changes_leave_no_thread_and_no_file_when_closed_even_twice(rtnl, tmp_path):
    before, told = open_files(), threading.Event()
    events = Changes(told.set)
    rtnl.create("create", named("b"), of_kind("bridge"))
    assert told.wait(DEADLINE_S)
    events.close()
    assert "changes" not in {thread.name for thread in threading.enumerate()}
    assert open_files() == before
    with (tmp_path / "a").open("w") as one, (tmp_path / "b").open("w") as other:
        events.close()
        assert not one.closed
        assert os.fstat(one.fileno()) != os.fstat(other.fileno())


def test_error_at_a_dumps_end_has_the_kernels_explanation():
    """The explanation stands at once behind the status there: no request is copied (netlink_dump_done)."""
    connection, kernel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    body = struct.pack("=i", -errno.EINVAL) + text(1, "so it is")
    kernel.send(struct.pack("=IHHII", 16 + len(body), 3, 0x200, 1, 0) + body)
    with kernel, NetlinkSocket(connection) as asking, pytest.raises(NetlinkError, match=r"\(so it is\)$"):
        asking.dump(0, b"", "list")
