"""Watchers are notified of changes, can ask which, and are not notified after their end."""

from __future__ import annotations

import errno
import ipaddress
import os
import shutil
import struct
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest

from contract.linux_lab import needs_namespaces
from k8s_rdma.linux.changes import ADDRESSES, DEVICE_UEVENTS, LINKS, UEVENTS, Changes, Dirty, Gathering
from k8s_rdma.linux.netlink.rtnl import Rtnl, named, of_kind
from k8s_rdma.linux.netns import entered
from linux.watcher import Watcher
from network_namespaces import create_namespace

pytestmark = needs_namespaces
DEADLINE_S = 120
NOTHING, EVERYTHING = Dirty(), Dirty(everything=True)


@contextmanager
def watching(changed=lambda: None, subscriptions=(LINKS,), **options):
    with Changes(changed, subscriptions, **options) as changes:
        yield changes


@pytest.fixture
def bridge(rtnl):
    rtnl.create("create", named("a"), of_kind("bridge"))
    return rtnl.link("a").index


@pytest.fixture
def other(rtnl):
    rtnl.create("create", named("b"), of_kind("bridge"))
    return rtnl.link("b").index


def test_watcher_is_notified_when_a_link_appears_changes_and_disappears(rtnl):
    told = threading.Event()
    with watching(told.set, (LINKS, UEVENTS)):
        rtnl.create("create", named("a"), of_kind("bridge"))
        index = rtnl.link("a").index
        for change in (
            lambda: rtnl.change(index, "rename", named("b")),
            lambda: rtnl.change(index, "up", up=True),
            lambda: rtnl.delete(index, "delete"),
        ):
            assert told.wait(DEADLINE_S)
            told.clear()
            change()
        assert told.wait(DEADLINE_S)


@pytest.mark.parametrize("text", ["10.0.0.1/24", "fd00::1/64"])
def test_watcher_is_notified_of_addresses_without_dirty_links(rtnl, bridge, text):
    address, told = ipaddress.ip_interface(text), threading.Event()
    rtnl.change(bridge, "up", up=True)
    with watching(told.set, (ADDRESSES,)) as changes:
        for change in (rtnl.add_address, rtnl.delete_address):
            change(bridge, address, "change")
            assert told.wait(DEADLINE_S)
            told.clear()
            assert changes.dirty() == NOTHING


@pytest.mark.parametrize(("scope", "interesting"), [(0, True), (200, True), (253, False), (254, False)])
def test_address_that_every_link_gives_itself_is_of_no_interest(scope, interesting):
    message = struct.pack("=16xBBBBI", 10, 64, 0, scope, 7)
    assert ADDRESSES.read(message[: ADDRESSES.size], Gathering()) is interesting


def test_default_subscription_includes_addresses(rtnl, bridge):
    watcher = Watcher()
    with Changes(watcher):
        rtnl.add_address(bridge, ipaddress.ip_interface("10.0.0.1/24"), "add")
        watcher.wait()


def test_watcher_is_notified_of_one_namespace_only_and_not_after_its_end(rtnl):
    told, elsewhere = [], create_namespace()
    with entered(elsewhere):
        changes = Changes(lambda: told.append(True), (LINKS,))
    rtnl.create("create", named("a"), of_kind("bridge"))
    changes.close()
    changes.close()
    with Rtnl(elsewhere) as there:
        there.create("create", named("a"), of_kind("bridge"))
    os.close(elsewhere)
    assert told == []


def test_dirty_links_are_those_that_changed_and_once(rtnl, bridge, other):
    with watching() as changes:
        assert changes.dirty() == NOTHING
        rtnl.change(bridge, "up", up=True)
        assert changes.dirty() == Dirty(frozenset({bridge}))
        assert changes.dirty() == NOTHING
        rtnl.change(bridge, "down", up=False)
        rtnl.change(other, "up", up=True)
        assert changes.dirty() == Dirty(frozenset({bridge, other}))


def test_watcher_is_notified_although_a_query_came_first(rtnl, bridge):
    """Otherwise a query for another purpose would hide a change from the watcher."""
    working, told = threading.Event(), Watcher()

    def changed():
        told()
        assert working.wait(DEADLINE_S)

    with watching(changed) as changes:
        rtnl.change(bridge, "up", up=True)
        told.wait()
        rtnl.change(bridge, "down", up=False)  # the watch's own thread cannot take this message yet
        assert changes.dirty() == Dirty(frozenset({bridge}))
        working.set()
        told.wait()


def test_no_change_is_lost_when_an_attachment_makes_more_messages_than_a_common_queue_holds(rtnl, bridge):
    working = threading.Event()
    with watching(lambda: working.wait(DEADLINE_S)) as changes:
        for number in range(1000):
            rtnl.change(bridge, "toggle", up=number % 2 == 0)
        working.set()
        assert changes.dirty() == Dirty(frozenset({bridge}))


def test_everything_is_dirty_when_more_changed_than_the_queue_holds(rtnl, bridge):
    working, told = threading.Event(), Watcher()

    def changed():
        told()
        assert working.wait(DEADLINE_S)

    with watching(changed, queue_bytes=4096) as changes:
        rtnl.change(bridge, "up", up=True)
        told.wait()
        for number in range(100):
            rtnl.change(bridge, "toggle", up=number % 2 == 1)
        working.set()
        told.wait()
        assert changes.dirty().everything


def test_uevents_tell_of_links(rtnl):
    watcher = Watcher()
    with watching(watcher, (UEVENTS,)) as changes:
        rtnl.create("create", named("a"), of_kind("bridge"))
        watcher.wait()
        assert changes.dirty() == Dirty(frozenset({rtnl.link("a").index}))


def unreadable(message, gathering):
    return UEVENTS.read(uevent("net", "IFINDEX=none of text"), gathering)


def test_all_links_are_dirty_after_a_malformed_message_and_the_next_one_is_reported(rtnl, bridge):
    watcher, strange = Watcher(), replace(LINKS, read=unreadable)
    with watching(watcher, (strange,)) as changes:
        for up in (True, False):
            rtnl.change(bridge, "toggle", up=up)
            watcher.wait()
            assert changes.dirty() == EVERYTHING


def test_callback_that_fails_is_called_again_and_until_then_its_failure_can_be_seen(rtnl, bridge):
    watcher, failures, before = Watcher(), [RuntimeError("first"), RuntimeError("second")], []

    def changed():
        before.append(changes.failure and str(changes.failure))
        watcher()
        if failures:
            raise failures.pop(0)

    with watching(changed) as changes:
        rtnl.change(bridge, "up", up=True)
        for _ in range(3):
            watcher.wait()
        rtnl.change(bridge, "down", up=False)
        watcher.wait()
    assert before == [None, "first", "second", None]


def uevent(subsystem, *more):
    values = [f"ACTION=add\0DEVPATH=/devices/a=b\0SUBSYSTEM={subsystem}", *more]
    return b"add@/devices/a=b\0" + "\0".join(values).encode() + b"\0"


@pytest.mark.parametrize(
    ("message", "interesting", "dirty"),
    [
        (uevent("net", "INTERFACE=eth0", "IFINDEX=7"), True, Dirty(frozenset({7}))),
        (uevent("pci", "PCI_SLOT_NAME=0000:3b:00.2"), True, EVERYTHING),
        (uevent("infiniband", "NAME=mlx5_2"), True, NOTHING),
        (uevent("queues"), False, NOTHING),
        (uevent("module", "DEVPATH=/module/sch_tbf"), True, NOTHING),
        (uevent("module", "DEVPATH=/module/sch_htb"), False, NOTHING),
        (b"libudev\0\xfe\xed\xca\xfe", False, NOTHING),
        (b"", False, NOTHING),
    ],
    ids=["net", "pci", "infiniband", "queues", "sch_tbf", "sch_htb", "udev", "nothing"],
)
def test_uevent_is_of_interest_by_its_subsystem(message, interesting, dirty):
    gathering = Gathering()
    assert UEVENTS.read(message, gathering) is interesting
    assert gathering.drain() == dirty


@pytest.mark.parametrize(
    ("subsystem", "interesting"),
    [
        (b"infiniband", True),
        (b"infiniband_verbs", True),
        (b"infiniband_mad", True),
        (b"misc", True),
        (b"pci", True),
        (b"net", False),
        (b"block", False),
    ],
)
def test_uevents_of_rdma_devices_and_their_character_devices_are_of_interest(subsystem, interesting):
    message = b"add@/devices/x\0ACTION=add\0SUBSYSTEM=" + subsystem + b"\0SEQNUM=1\0"
    gathering = Gathering()
    assert DEVICE_UEVENTS.read(message, gathering) is interesting
    assert gathering.everything is interesting


def test_watcher_is_notified_when_a_watched_file_changes_appears_and_disappears(rtnl, tmp_path):
    watcher, state, rates = Watcher(), tmp_path / "state", tmp_path / "rates"
    state.write_text("4: ACTIVE\n")
    with watching(watcher, ()) as changes:
        changes.watch_files([state, rates])
        for change in (
            lambda: state.write_text("1: DOWN\n"),
            lambda: rates.write_text("max 100\n"),
            rates.unlink,
        ):
            assert changes.dirty() == NOTHING
            change()
            watcher.wait()
            assert changes.dirty() == EVERYTHING


def test_change_of_a_file_is_reported_although_it_is_renamed_before_the_next_look(rtnl, tmp_path):
    watcher, one, forgotten = Watcher(), tmp_path / "one", tmp_path / "forgotten"
    for path in (one, forgotten):
        path.write_text("before")
    with watching(watcher, ()) as changes:
        changes.watch_files([forgotten])
        changes.watch_files([one])
        forgotten.write_text("after")
        one.write_text("before")
        changes.watch_files([one])
        one.write_text("after")
        changes.watch_files([one])
        watcher.wait()
    assert not watcher.called()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make device nodes")
def test_watcher_is_notified_when_a_device_node_or_its_directory_changes(rtnl, tmp_path):
    watcher, directory, other = Watcher(), tmp_path / "infiniband", tmp_path / "other"
    node = directory / "uverbs0"
    os.mknod(other, 0o20666, os.makedev(231, 193))
    with watching(watcher, (), with_nodes=True) as changes:
        changes.watch_files((), nodes=[directory, node])
        for change in (
            directory.mkdir,
            lambda: os.mknod(node, 0o20666, os.makedev(231, 192)),
            lambda: other.rename(node),
            node.unlink,
            directory.rmdir,
        ):
            assert changes.dirty() == NOTHING
            change()
            watcher.wait()
            assert changes.dirty() == EVERYTHING


def test_file_is_read_again_beside_a_node(rtnl, tmp_path):
    watcher, state = Watcher(), tmp_path / "sys" / "state"
    state.parent.mkdir()
    with watching(watcher, (), with_nodes=True) as changes:
        changes.watch_files([state], nodes=[tmp_path / "dev" / "uverbs0"])
        state.write_text("4: ACTIVE\n")
        watcher.wait()
        state.write_text("1: DOWN\n")
        watcher.wait()


POLLED = """
echo 0 > /proc/sys/user/max_inotify_"$2" || exit 77
exec "$0" -c '
import pathlib, sys, threading
from k8s_rdma.linux.changes import Changes
node, told = pathlib.Path(sys.argv[1], "uverbs0"), threading.Event()
with Changes(told.set, (), with_nodes=True) as changes:
    changes.watch_files((), nodes=[node])
    node.touch()
    sys.exit(not told.wait(10))
' "$1"
"""


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare(1)")
@pytest.mark.parametrize("limit", ["instances", "watches"])
def test_node_is_polled_if_the_kernel_watches_no_directory(tmp_path, limit):
    inner = ("sh", "-c", POLLED, sys.executable, str(tmp_path), limit)
    command = ["unshare", "--user", "--map-root-user", *inner]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"needs a user namespace with limits of its own: {done.stderr}")
    assert (done.returncode, done.stderr) == (0, "")


class Messages:
    """A socket that has `number` messages about link 7, endless ones if it is unset."""

    def __init__(self, number, error=None):
        self.number = number
        self.error = error

    def recv(self, _size):
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        if self.number == 0:
            raise BlockingIOError
        if self.number is not None:
            self.number -= 1
        return struct.pack("=16x4xi", 7)


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (Messages(2), Dirty(links=frozenset({7}))),
        (Messages(0), NOTHING),
        (Messages(1, OSError(errno.ENOBUFS, "")), Dirty(links=frozenset({7}), everything=True)),
        (Messages(None), Dirty(links=frozenset({7}), everything=True)),
    ],
    ids=["some", "none", "lost", "without-end"],
)
def test_drained_messages_are_changes_and_everything_changed_if_some_are_not_read(messages, expected):
    gathering = Gathering()
    assert LINKS.drain(messages, gathering) is (expected != NOTHING)
    assert gathering.drain() == expected
