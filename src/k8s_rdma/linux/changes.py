"""Change notifications: subscriptions that record changes, and scans that run again only after a change.

`Changes` collects, for one process, what the kernel has reported since the last call; `CachedScan` runs a
scan when something has changed and otherwise returns the previous result. Files of sysfs for which the kernel
sends no event are read again and compared.
"""

from __future__ import annotations

import os
import select
import stat
import struct
import threading
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from k8s_rdma.core.types import LinkType
from k8s_rdma.linux.netlink.subscriptions import EVERYTHING, Dirty, Gathering, Subscription

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from k8s_rdma.core.kernel import Hardware, PfState
    from k8s_rdma.linux.sysfs import Sysfs


REST_MS = 50
"""Pause after each callback. An attachment makes hundreds of changes; waking for each would cost the thread
that makes them more than the changes themselves."""

POLL_S = 1.0
"""Interval between two scans of the watched files."""

QUEUE_BYTES = 4 << 20
"""Receive buffer of a socket: some 1,900 messages of links during the pause, where the default holds 48."""

_BATCH = 10_000
"""Most messages read before the callback runs, so that an endless stream cannot delay it."""
T = TypeVar("T")


class Changes:
    """Calls back from a thread of its own after one or more changes, until closed.

    By default it subscribes to the kernel's messages about links, addresses, devices (PCI, network, RDMA) and
    RDMA ports. Files cover what no message reports: their contents are compared once a second.
    """

    def __init__(
        self,
        changed: Callable[[], None],
        subscriptions: Sequence[Subscription] = EVERYTHING,
        *,
        queue_bytes: int = QUEUE_BYTES,
    ) -> None:
        """Subscribe in the calling thread's network namespace; earlier changes are not reported."""
        self._changed = changed
        self._lock = threading.Lock()
        self._gathering = Gathering()
        self._untold = False
        self.failure: Exception | None = None
        """Error of the last callback or of reading the sockets; both are retried once a second."""
        self._files: dict[Path, bytes | None] = {}
        self._subscribed: list[tuple[Subscription, socket.socket]] = []
        with ExitStack() as undo:
            for subscription in subscriptions:
                opened = subscription.open(queue_bytes)
                if opened is not None:
                    self._subscribed.append((subscription, undo.enter_context(opened)))
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

        Must not be called from the callback. A second call does nothing.
        """
        self._open.close()

    def dirty(self) -> Dirty:
        """Return what changed since the last call, up to this moment. Call it first, then observe.

        The kernel reports a change before it answers the request that made it. A caller who makes a change,
        calls this and then reads the result back need not observe again. The callback runs all the same.
        """
        with self._lock:
            if self._drain():
                self._untold = True
                os.eventfd_write(self._wake, 1)
            return self._gathering.drain()

    def watch_files(self, paths: Iterable[Path]) -> None:
        """Watch these files, and no others, from now on. Call it first, then read them."""
        requested = set(paths)
        new = {path: _contents(path) for path in requested - self._files.keys()}
        with self._lock:
            self._files = {path: file for path, file in self._files.items() if path in requested} | new
            os.eventfd_write(self._wake, 1)  # it may be waiting without end

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
        while not any(descriptor == self._stop for descriptor, _ in poll.poll(self._patience_ms(scan_due))):
            dirty = self._gather()
            if time.monotonic() >= scan_due:
                dirty |= self._scan()
                scan_due = time.monotonic() + POLL_S
            if dirty:
                self._changed()
                self.failure = None
                if stopping.poll(REST_MS):
                    return

    def _patience_ms(self, scan_at: float) -> float | None:
        return max(0.0, scan_at - time.monotonic()) * 1000 if self._files else None

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
            interesting |= self._drain_one(subscription, opened)
        return interesting

    def _drain_one(self, subscription: Subscription, opened: socket.socket) -> bool:
        interesting = False
        for _ in range(_BATCH):
            try:
                interesting |= subscription.read(opened.recv(subscription.size), self._gathering)
            except BlockingIOError:
                break
            except (OSError, ValueError, struct.error):
                # Messages were lost (ENOBUFS, reported once), or one is malformed.
                self._gathering.everything = interesting = True
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

    def __init__(
        self,
        observe: Callable[[Collection[int] | None], T],
        *,
        files: Callable[[T], frozenset[Path]],
        incomplete: Callable[[T], bool],
        subscriptions: Sequence[Subscription] = EVERYTHING,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """Subscribe in the calling thread's network namespace.

        observe: scans; its argument is the links that changed, None when anything may have changed.
        files: the files to watch after a scan, because no event reports their changes.
        incomplete: whether part could not be read and is to be tried again.
        changed: called from another thread when a scan may return something else; calls are merged.
        """
        self._observe, self._unannounced, self._incomplete = observe, files, incomplete
        self._on_change = changed
        self._result: T | None = None
        self._files: frozenset[Path] = frozenset()
        self._due = True
        self._changes = Changes(self._something_changed, subscriptions)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._changes.close()

    def scan(self, *, anew: bool = False) -> T:
        """Return the present state, the same object while nothing has changed; `anew` scans in any case.

        An incomplete scan is repeated. Raises what `observe` and `files` raise.
        """
        if self._result is not None and not self._due and not anew:
            return self._result
        self._due = False  # before anything is looked at: what changes meanwhile is looked at next time
        previous, self._result = self._result, None
        self._changes.look_at_files()
        dirty = self._changes.dirty()
        observed = self._observe(None if anew or previous is None or dirty.everything else dirty.links)
        files = self._unannounced(observed)
        if files != self._files:
            self._changes.watch_files(files)
            self._files, self._due = files, True
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
