"""Change notifications: subscriptions that record changes, and scans that run again only after a change.

`Changes` collects, for one process, what the kernel has reported since the last call; `CachedScan` runs a
scan when something has changed and otherwise returns the previous result. Files of sysfs for which the kernel
sends no event are read again and compared; device nodes when entries of their directories change.

A subscription to the kernel's messages knows the state that each makes stale. Sources: inotify(7),
rtnetlink(7) RTNLGRP_LINK, RTNLGRP_TC, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR,
Linux `lib/kobject_uevent.c` (group 1 is the kernel's own, 2 is udev's),
`include/uapi/rdma/rdma_netlink.h` (RDMA_NL_GROUP_NOTIFY since 6.12).
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from k8s_rdma.core.types import LinkType
from k8s_rdma.linux.netlink.routes import counts
from k8s_rdma.linux.netlink.socket import KOBJECT_UEVENT, RDMA, ROUTE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from k8s_rdma.core.kernel import Hardware, PfState
    from k8s_rdma.linux.sysfs import Sysfs


_LINK_GROUP, _TRAFFIC_CONTROL_GROUP, _IPV4_ADDRESS_GROUP, _IPV6_ADDRESS_GROUP = 1, 4, 5, 9
_UEVENT_GROUP, _NOTIFY_GROUP = 1, 4
_MESSAGE_AND_LINK = struct.Struct("=16x4xi")  # nlmsghdr, ifinfomsg up to its index
_MESSAGE_AND_SCOPE = struct.Struct("=16x3xB")  # nlmsghdr, ifaddrmsg up to its scope
_UEVENT_BYTES = 8192
_SO_RCVBUFFORCE = 33

_TOKEN_BUCKET = b"/module/sch_tbf"

_OF_RDMA_DEVICES = frozenset({b"pci", b"infiniband", b"infiniband_verbs", b"infiniband_mad", b"misc"})

REST_MS = 50
"""Pause after each callback. An attachment makes hundreds of changes; waking for each would cost the thread
that makes them more than the changes themselves."""

POLL_S = 1.0
"""Interval between two scans of the watched files; of device nodes alone the shortest."""

QUEUE_BYTES = 4 << 20
"""Receive buffer of a socket: some 1,900 messages of links during the pause, where the default holds 48."""

_BATCH = 10_000
"""Most messages read at once, so that an endless stream delays neither a callback nor an observation."""
T = TypeVar("T")

_IN_MODIFY, _IN_ATTRIB, _IN_CLOSE_WRITE = 0x2, 0x4, 0x8
_IN_MOVED_FROM, _IN_MOVED_TO, _IN_CREATE = 0x40, 0x80, 0x100
_IN_DELETE, _IN_DELETE_SELF, _IN_MOVE_SELF = 0x200, 0x400, 0x800
_IN_UNMOUNT, _IN_Q_OVERFLOW, _IN_IGNORED = 0x2000, 0x4000, 0x8000
_IN_ONLYDIR = 0x0100_0000
_DELETIONS = _IN_MOVED_FROM | _IN_DELETE | _IN_DELETE_SELF | _IN_MOVE_SELF | _IN_ONLYDIR
_CHANGES = _DELETIONS | _IN_CREATE | _IN_MOVED_TO
_CONTENTS = _CHANGES | _IN_MODIFY | _IN_ATTRIB | _IN_CLOSE_WRITE
_ENDED = _IN_DELETE_SELF | _IN_MOVE_SELF | _IN_UNMOUNT | _IN_Q_OVERFLOW
_EVENT = struct.Struct("iIII")  # struct inotify_event, followed by `len` bytes of name
_BUFFER = 1 << 16

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Dirty:
    """Changes since the last call: the links of these indexes, or everything.

    everything: messages were lost, or a PCI function or a watched file was added, removed or changed.
    """

    links: frozenset[int] = frozenset()
    everything: bool = False


@dataclass(slots=True)
class Gathering:
    """Changes accumulated since the last `drain`."""

    links: set[int] = field(default_factory=set)
    everything: bool = False

    def drain(self) -> Dirty:
        """Return the accumulated changes and reset them."""
        dirty = Dirty(frozenset(self.links), self.everything)
        self.links.clear()
        self.everything = False
        return dirty


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """Groups of a netlink family.

    read: records a message; returns whether it is relevant.
    size: bytes of a message that it reads; the kernel drops the rest.
    optional: whether to continue if the kernel lacks the family or reserves it for root.
    """

    family: int
    groups: tuple[int, ...]
    read: Callable[[bytes, Gathering], bool]
    size: int
    optional: bool = False

    def open(self, queue_bytes: int) -> socket.socket | None:
        """Open a non-blocking socket that receives its messages in the calling thread's namespace."""
        try:
            opened = socket.socket(
                socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, self.family
            )
        except OSError:
            if self.optional:
                return None
            raise
        try:
            _make_room(opened, queue_bytes)
            opened.bind((0, sum(1 << group - 1 for group in self.groups)))
        except OSError as error:
            opened.close()
            if self.optional and error.errno == errno.EPERM:
                return None
            raise
        return opened

    def drain(self, opened: socket.socket, gathering: Gathering) -> bool:
        """Record the pending messages of a socket; return whether any of them is relevant.

        If messages were lost, one is malformed, or they come without end, everything counts as changed.
        """
        relevant = False
        for _ in range(_BATCH):
            try:
                relevant |= self.read(opened.recv(self.size), gathering)
            except BlockingIOError:
                return relevant
            except (OSError, ValueError, struct.error):  # ENOBUFS, which is reported once
                gathering.everything = relevant = True
        gathering.everything = True
        return True


def _make_room(opened: socket.socket, queue_bytes: int) -> None:
    try:
        opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, queue_bytes)
    except PermissionError:  # without CAP_NET_ADMIN up to net.core.rmem_max
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, queue_bytes)


def _link(message: bytes, gathering: Gathering) -> bool:
    """Record that a link, its state or carrier, or the settings of its VFs changed."""
    gathering.links.add(_MESSAGE_AND_LINK.unpack_from(message)[0])
    return True


def _address(message: bytes, _gathering: Gathering) -> bool:
    """Report a changed address as relevant; links and settings of VFs stay valid."""
    return counts(_MESSAGE_AND_SCOPE.unpack_from(message)[0])


def _uevent(message: bytes, gathering: Gathering) -> bool:
    """Record a uevent: `ACTION@DEVPATH` and `KEY=value`s, each ended by NUL."""
    values = dict(line.split(b"=", 1) for line in message.split(b"\0") if b"=" in line)
    match values.get(b"SUBSYSTEM"):
        case b"net":
            gathering.links.add(int(values.get(b"IFINDEX", b"0")))
        case b"pci":
            gathering.everything = True
        case b"module" if values.get(b"DEVPATH") == _TOKEN_BUCKET:
            pass  # from now on caps can be kept by software
        case b"infiniband":
            pass  # for its sake no link and no VF's settings are other than they were
        case _:
            return False
    return True


def _rdma(_message: bytes, _gathering: Gathering) -> bool:
    """Report a changed RDMA device or netdev of its ports as relevant, as with uevents of them."""
    return True


def _device(message: bytes, gathering: Gathering) -> bool:
    """Record a uevent of RDMA devices; those of links arrive through another family."""
    of_interest = any(
        line == b"SUBSYSTEM=" + subsystem for line in message.split(b"\0") for subsystem in _OF_RDMA_DEVICES
    )
    gathering.everything |= of_interest
    return of_interest


def _rdma_device(_message: bytes, gathering: Gathering) -> bool:
    gathering.everything = True
    return True


LINKS = Subscription(family=ROUTE, groups=(_LINK_GROUP,), read=_link, size=_MESSAGE_AND_LINK.size)


CLASSES = Subscription(
    family=ROUTE, groups=(_TRAFFIC_CONTROL_GROUP,), read=_link, size=_MESSAGE_AND_LINK.size
)
"""Messages about qdiscs, classes and filters; their link is where a link's own message has it (`tcmsg`). The
kernel also sends the answer to a query of one class."""


ADDRESSES = Subscription(
    family=ROUTE,
    groups=(_IPV4_ADDRESS_GROUP, _IPV6_ADDRESS_GROUP),
    read=_address,
    size=_MESSAGE_AND_SCOPE.size,
)


UEVENTS = Subscription(family=KOBJECT_UEVENT, groups=(_UEVENT_GROUP,), read=_uevent, size=_UEVENT_BYTES)


RDMA_EVENTS = Subscription(family=RDMA, groups=(_NOTIFY_GROUP,), read=_rdma, size=1, optional=True)
"""Includes ports that got or lost their netdev; without it, uevents report added and removed RDMA devices."""


EVERYTHING = (LINKS, ADDRESSES, UEVENTS, RDMA_EVENTS)


DEVICE_UEVENTS = Subscription(
    family=KOBJECT_UEVENT, groups=(_UEVENT_GROUP,), read=_device, size=_UEVENT_BYTES
)


DEVICE_RDMA_EVENTS = replace(RDMA_EVENTS, read=_rdma_device)


RDMA_DEVICES = (LINKS, DEVICE_UEVENTS, DEVICE_RDMA_EVENTS)
"""Subscriptions for RDMA devices, their character devices and their netdevs."""


class Changes:
    """Calls back from a thread of its own after one or more changes, until closed.

    By default it subscribes to the kernel's messages about links, addresses, devices (PCI, network, RDMA) and
    RDMA ports. Files cover what no message reports: their contents are compared once a second, device nodes
    when inotify(7) reports a change.
    """

    def __init__(
        self,
        changed: Callable[[], None],
        subscriptions: Sequence[Subscription] = EVERYTHING,
        *,
        with_nodes: bool = False,
        queue_bytes: int = QUEUE_BYTES,
    ) -> None:
        """Subscribe in the calling thread's network namespace; earlier changes are not reported.

        with_nodes: whether device nodes are to be watched.
        """
        self._changed = changed
        self._lock = threading.Lock()
        self._gathering = Gathering()
        self._untold = False
        self.failure: Exception | None = None
        """Error of the last callback or of reading the sockets; both are retried once a second."""
        self._files: dict[Path, bytes | None] = {}
        self._nodes: frozenset[Path] = frozenset()
        self._polls = False
        self._directories: DirectoryChanges | None = None
        self._subscribed: list[tuple[Subscription, socket.socket]] = []
        with ExitStack() as undo:
            for subscription in subscriptions:
                opened = subscription.open(queue_bytes)
                if opened is not None:
                    self._subscribed.append((subscription, undo.enter_context(opened)))
            if with_nodes:
                with suppress(OSError):  # at the limit of instances: the nodes are polled
                    self._directories = undo.enter_context(DirectoryChanges())
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            undo.callback(os.close, self._wake)
            self._stop, stopping = os.pipe2(os.O_CLOEXEC)
            undo.callback(os.close, self._stop)
            thread = threading.Thread(target=self._listen, name="changes", daemon=True)
            thread.start()
            undo.callback(thread.join)
            undo.callback(os.close, stopping)
            self._open = undo.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop; no callback runs afterwards.

        Must not be called from the callback. A second call has no effect.
        """
        self._open.close()

    def dirty(self) -> Dirty:
        """Return the changes since the last call, up to this moment. Call it first, then observe.

        The kernel reports a change before it answers the request that made it. A caller who makes a change,
        calls this and then reads the result back need not observe again. The callback runs all the same.
        """
        with self._lock:
            if self._drain():
                self._untold = True
                os.eventfd_write(self._wake, 1)
            return self._gathering.drain()

    def watch_files(self, paths: Iterable[Path], nodes: Collection[Path] = ()) -> None:
        """Watch these files, and no others, from now on. Call it first, then read them.

        nodes: device nodes and directories; their presence and device numbers count, not their contents.
        """
        polled = set(paths)
        requested = polled.union(nodes)
        self._nodes = frozenset(nodes)
        self._polls = not self._watch_directories() or bool(polled)
        new = {path: _contents(path) for path in requested - self._files.keys()}
        with self._lock:
            self._files = {path: file for path, file in self._files.items() if path in requested} | new
            os.eventfd_write(self._wake, 1)  # it may be waiting without end

    def _watch_directories(self) -> bool:
        """Watch the directories of the nodes, and their parents, which show when the directories come.

        Returns whether the kernel reports all changes of the nodes.
        """
        if self._directories is None:
            return not self._nodes
        try:
            self._directories.watch({parent for node in self._nodes for parent in node.parents[:2]})
        except OSError:
            return False
        return True

    def look_at_files(self) -> None:
        """Scan the watched files now, so that a reader is notified of every change from here on.

        Otherwise a file that changes, is read, and changes back within a second would leave the reader with
        the value in between.
        """
        self._scan()

    def _listen(self) -> None:
        stopping = select.poll()
        stopping.register(self._stop, select.POLLHUP)
        while not stopping.poll(0):
            try:
                self._notify(stopping)
            except Exception as error:  # otherwise the thread would end silently
                self.failure = error
                with self._lock:
                    self._untold = True
                    os.eventfd_write(self._wake, 1)
                stopping.poll(POLL_S * 1000)

    def _notify(self, stopping: select.poll) -> None:
        """Run the callback after changes until the object is closed."""
        poll = select.poll()
        poll.register(self._stop, select.POLLHUP)
        poll.register(self._wake, select.POLLIN)
        for _, opened in self._subscribed:
            poll.register(opened, select.POLLIN)
        scan_due = time.monotonic() + POLL_S
        while not any(descriptor == self._stop for descriptor, _ in self._wait(poll, scan_due)):
            dirty = self._gather()
            if time.monotonic() >= scan_due and (self._entries_changed() or self._polls):
                dirty |= self._scan()
                scan_due = time.monotonic() + POLL_S
            if dirty:
                self._changed()
                self.failure = None
                if stopping.poll(REST_MS):
                    return

    def _wait(self, poll: select.poll, scan_due: float) -> list[tuple[int, int]]:
        """Wait for events; those of directories from `scan_due` on: busy ones cost no more than polling."""
        left_ms = max(0.0, scan_due - time.monotonic()) * 1000
        if self._directories is not None:
            poll.register(self._directories, 0 if left_ms else select.POLLIN)
        return poll.poll(left_ms if left_ms or self._polls else None)

    def _entries_changed(self) -> bool:
        """Report whether entries of the nodes' directories have changed, and watch those that are new."""
        if self._directories is None or not self._directories.forget():
            return False
        self._polls |= not self._watch_directories()
        return True

    def _gather(self) -> bool:
        """Read the sockets and report whether the callback is due."""
        with self._lock:
            with suppress(BlockingIOError):
                os.eventfd_read(self._wake)
            events = self._drain() or self._untold
            self._untold = False
            return events

    def _drain(self) -> bool:
        """Read all pending messages; return whether any of them is relevant."""
        interesting = False
        for subscription, opened in self._subscribed:
            interesting |= subscription.drain(opened, self._gathering)
        return interesting

    def _scan(self) -> bool:
        """Compare the watched files and report whether any has changed."""
        now = {path: _contents(path) for path in self._files}
        with self._lock:
            changed = {
                path: found
                for path, found in now.items()
                if path in self._files and self._files[path] != found
            }
            self._files.update(changed)
            self._gathering.everything |= bool(changed)
        return bool(changed)


class CachedScan(Generic[T]):
    """Runs a scan again when something has changed, and returns the previous result otherwise.

    Used by one thread at a time.
    """

    def __init__(  # noqa: PLR0913  each is of its own
        self,
        observe: Callable[[Collection[int] | None], T],
        *,
        files: Callable[[T], frozenset[Path]],
        nodes: Callable[[T], frozenset[Path]] | None = None,
        incomplete: Callable[[T], bool],
        subscriptions: Sequence[Subscription] = EVERYTHING,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """Subscribe in the calling thread's network namespace.

        observe: scans; its argument is the links that changed, or None if anything may have changed.
        files: the files to watch after a scan, because no event reports their changes.
        nodes: the device nodes to watch after a scan.
        incomplete: whether part could not be read and is to be tried again.
        changed: called from another thread when a scan may return something else; calls are merged.
        """
        self._observe, self._unannounced, self._incomplete = observe, files, incomplete
        self._nodes = nodes or (lambda _: frozenset())
        self._on_change = changed
        self._result: T | None = None
        self._watched: tuple[frozenset[Path], frozenset[Path]] = (frozenset(), frozenset())
        self._due = True
        self._changes = Changes(self._something_changed, subscriptions, with_nodes=nodes is not None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._changes.close()

    def scan(self, *, anew: bool = False) -> T:
        """Return the present state, the same object while nothing has changed; `anew` scans in any case.

        An incomplete scan is repeated. Raises the errors of `observe` and `files`.
        """
        if self._result is not None and not self._due and not anew:
            return self._result
        self._due = False  # before the scan: later changes are scanned next time
        previous, self._result = self._result, None
        self._changes.look_at_files()
        dirty = self._changes.dirty()
        observed = self._observe(None if anew or previous is None or dirty.everything else dirty.links)
        watched = self._unannounced(observed), self._nodes(observed)
        if watched != self._watched:
            self._changes.watch_files(*watched)
            self._watched, self._due = watched, True
        self._due |= self._incomplete(observed)
        self._result = observed
        return observed

    @property
    def due(self) -> bool:
        """Report whether the next scan may return something else."""
        return self._due or self._result is None

    def _something_changed(self) -> None:
        self._due = True
        self._on_change()


def files_without_events(sysfs: Sysfs, hardware: Hardware) -> frozenset[str]:
    """Return the files, by path below sysfs, whose changes no event reports.

    They are the port states of InfiniBand PFs and MLNX_OFED's settings of each VF.
    """
    return frozenset(path for pf in hardware.pfs for path in _files(sysfs, pf))


def _files(sysfs: Sysfs, pf: PfState) -> Iterator[str]:
    if pf.rdma_device and pf.link_type is LinkType.INFINIBAND:
        ports = f"class/infiniband/{pf.rdma_device}/ports"
        for port in sysfs.names_if_any(ports) or ():
            yield f"{ports}/{port}/state"
    settings = f"bus/pci/devices/{pf.pci}/sriov"
    for vf in sysfs.names_if_any(settings) or ():
        if vf.isdecimal():
            yield f"{settings}/{vf}/config"


def _contents(path: Path) -> bytes | None:
    """Read a file; None while it cannot be read, for whatever reason. Becoming readable or not is a change.

    Only regular files are opened: of a device node only the device number counts.
    """
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            return b"%d %d" % (stat.S_IFMT(found.st_mode), found.st_rdev)
        return path.read_bytes()
    except OSError:
        return None


class _Inotify:
    """Watches directories; its descriptor, for an event loop, is readable when there are events."""

    def __init__(self) -> None:
        """Open a descriptor without watches. OSError at the limit of inotify instances."""
        self._fd = _checked(_libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all watches; a second call has no effect."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def fileno(self) -> int:
        """Return the file descriptor."""
        return self._fd

    def _add(self, directory: Path, events: int) -> int:
        """Add a watch, or find the one that a directory already has; negative on failure."""
        return int(_libc.inotify_add_watch(self._fd, os.fsencode(directory), events))

    def _read(self) -> bytes:
        try:
            return os.read(self._fd, _BUFFER)
        except BlockingIOError:
            return b""


class DirectoryChanges(_Inotify):
    """Notifies that entries of directories, or the directories, were added or removed, but not which.

    contents: notify also of files that were written to in place or whose modes changed.
    """

    def __init__(self, *, contents: bool = False) -> None:
        super().__init__()
        self._events = _CONTENTS if contents else _CHANGES

    def watch(self, directories: Iterable[Path]) -> None:
        """Watch these directories as well, as they are now; missing ones are left out.

        OSError (ENOSPC) at the limit of watches; the directories before that one are watched.
        """
        for directory in directories:
            if self._add(directory, self._events) < 0 and ctypes.get_errno() == errno.ENOSPC:
                raise OSError(errno.ENOSPC, "no inotify watch is left", str(directory))

    def forget(self) -> bool:
        """Discard all pending events; return whether there was any."""
        found = False
        while self._read():
            found = True
        return found


class Deletions(_Inotify):
    """Reports the entries that are deleted from directories."""

    def __init__(self) -> None:
        super().__init__()
        self._watched: dict[int, Path] = {}

    def watch(self, directories: Iterable[Path]) -> bool:
        """Watch these, and no others; return whether any watch is new.

        Directories that cannot be watched are left out. In /proc a watch outlives what it is on: nothing
        reports there that a process has ended (inotify(7), "Limitations and caveats").
        """
        requested = set(directories)
        for watch in [watch for watch, directory in self._watched.items() if directory not in requested]:
            del self._watched[watch]
            _libc.inotify_rm_watch(self._fd, watch)
        watched = set(self._watched)
        for directory in requested.difference(self._watched.values()):
            watch = self._add(directory, _DELETIONS)
            if watch >= 0:
                self._watched[watch] = directory
        return bool(self._watched.keys() - watched)

    def drain(self) -> frozenset[Path] | None:
        """Return the paths deleted or moved away since the last call, unless events were lost."""
        deleted: set[Path] = set()
        untold = False
        while data := self._read():
            while data:
                watch, mask, _, length = _EVENT.unpack_from(data)
                name = data[_EVENT.size : _EVENT.size + length].rstrip(b"\0")
                data = data[_EVENT.size + length :]
                untold |= bool(mask & _ENDED)
                directory = self._watched.get(watch)
                if mask & (_IN_IGNORED | _IN_MOVE_SELF):
                    self._watched.pop(watch, None)
                elif directory is not None and name:
                    deleted.add(directory / os.fsdecode(name))
        return None if untold else frozenset(deleted)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
