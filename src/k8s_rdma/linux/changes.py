"""Change notifications: subscriptions that mark what has changed, and scans that run again only then.

`Changes` keeps, for one process, what the kernel reported since it was last asked; `CachedScan` runs a scan
when something has changed and returns the result of the one before otherwise. Files of sysfs for which the
kernel sends no event are read again and compared.
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

from k8s_rdma.core.options import LinkType
from k8s_rdma.linux.netlink.subscriptions import EVERYTHING, Gathering

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from k8s_rdma.core.kernel import Hardware, PfState
    from k8s_rdma.linux.netlink.subscriptions import Dirty, Subscription
    from k8s_rdma.linux.sysfs import Sysfs


def files_without_events(sysfs: Sysfs, hardware: Hardware) -> frozenset[str]:
    """By their path below sysfs: the port state of InfiniBand PFs, what MLNX_OFED has of each VF."""
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


REST_MS = 50
"""After telling of changes: an attachment makes hundreds, and to wake for each costs the thread that makes
them more than the changes themselves take."""

LOOK_S = 1.0
"""Between two looks at the watched files."""

QUEUE_BYTES = 4 << 20
"""What a socket may hold during the rest, before messages are lost: some 1,900 of links (48 by default)."""

_BATCH = 10_000
"""Messages taken before the callback is told, so that a stream without end cannot keep it waiting."""


class Changes:
    """Calls back from a thread of its own after one or more changes, until closed.

    By default it listens to what the kernel tells of links, their addresses, devices (PCI, network, RDMA) and
    RDMA ports. Files are for what it tells nothing of: their contents are compared once a second.
    """

    def __init__(
        self,
        changed: Callable[[], None],
        subscriptions: Sequence[Subscription] = EVERYTHING,
        *,
        queue_bytes: int = QUEUE_BYTES,
    ) -> None:
        """Listen in the calling thread's network namespace; what came before is not told."""
        self._changed = changed
        self._lock = threading.Lock()
        self._gathering = Gathering()
        self._untold = False
        self.failure: Exception | None = None
        """What the last call back, or the listening for it, ended with; tried again once a second."""
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
        """End; no call comes afterwards. Not from within the callback. Once more does nothing."""
        self._open.close()

    def dirty(self) -> Dirty:
        """What changed since this was asked last, up to this moment: ask first, then look.

        The kernel tells of a change before it answers who made it. So whoever makes one, asks this, and then
        reads back what they made, need not look again for that. The callback comes all the same.
        """
        with self._lock:
            if self._drain():
                self._untold = True
                os.eventfd_write(self._wake, 1)
            return self._gathering.drain()

    def watch_files(self, paths: Iterable[Path]) -> None:
        """Look at these files from now on, and at no others: call first, then read them."""
        requested = set(paths)
        new = {path: _contents(path) for path in requested - self._files.keys()}
        with self._lock:
            self._files = {path: file for path, file in self._files.items() if path in requested} | new
            os.eventfd_write(self._wake, 1)  # it may be waiting without end

    def look_at_files(self) -> None:
        """Look at the watched files now: whoever reads them next is told of what changes from here on.

        Else one that changes after a reader was told, is read, and is as before within a second, would be
        for that reader what it is not any more.
        """
        self._scan()

    def _listen(self) -> None:
        stopping = select.poll()
        stopping.register(self._stop, select.POLLHUP)
        while not stopping.poll(0):
            try:
                self._notify(stopping)
            except Exception as error:  # else its end would be silent, and nobody be told of anything
                self.failure = error
                with self._lock:
                    self._untold = True
                    os.eventfd_write(self._wake, 1)
                stopping.poll(LOOK_S * 1000)

    def _notify(self, stopping: select.poll) -> None:
        """Until it is to stop."""
        poll = select.poll()
        poll.register(self._stop, select.POLLHUP)
        poll.register(self._wake, select.POLLIN)
        for _, opened in self._subscribed:
            poll.register(opened, select.POLLIN)
        scan_due = time.monotonic() + LOOK_S
        while not any(descriptor == self._stop for descriptor, _ in poll.poll(self._patience_ms(scan_due))):
            dirty = self._gather()
            if time.monotonic() >= scan_due:
                dirty |= self._scan()
                scan_due = time.monotonic() + LOOK_S
            if dirty:
                self._changed()
                self.failure = None
                if stopping.poll(REST_MS):
                    return

    def _patience_ms(self, scan_at: float) -> float | None:
        return max(0.0, scan_at - time.monotonic()) * 1000 if self._files else None

    def _gather(self) -> bool:
        """Report whether there is something to tell."""
        with self._lock:
            with suppress(BlockingIOError):
                os.eventfd_read(self._wake)
            events = self._drain() or self._untold
            self._untold = False
            return events

    def _drain(self) -> bool:
        """Take what the sockets hold; whether any of it is of interest."""
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
                # Messages were lost (ENOBUFS, told once, then the queue goes on), or one says nothing.
                self._gathering.everything = interesting = True
        return interesting

    def _scan(self) -> bool:
        """Report whether a watched file has other contents than before."""
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


def _contents(path: Path) -> bytes | None:
    """None while it cannot be read, whyever: that it can be, or no longer, is a change.

    What is no file is not opened: of a device's node it is which device that counts.
    """
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            return b"%d %d" % (stat.S_IFMT(found.st_mode), found.st_rdev)
        return path.read_bytes()
    except OSError:
        return None


T = TypeVar("T")


class CachedScan(Generic[T]):
    """Looks at one thing again and again; of one thread at a time."""

    def __init__(
        self,
        observe: Callable[[Collection[int] | None], T],
        *,
        files: Callable[[T], frozenset[Path]],
        incomplete: Callable[[T], bool],
        subscriptions: Sequence[Subscription] = EVERYTHING,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """Listen in the calling thread's network namespace.

        observe: looks; of which links there were changes alone, None when anything may have changed.
        files: what to look at once a second after such a look, as no event tells of it. incomplete: whether
        something could not be seen, and is to be tried again. changed: called from another thread when a look
        may show something else; several signs may be one call.
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
        """What there is now, the same object while there is no sign of a change; anew: look all the same.

        What could not be seen last time is tried again. Raises what `observe` and `files` raise.
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
        """Report whether the next look may show something else."""
        return self._due or self._result is None

    def _something_changed(self) -> None:
        self._due = True
        self._on_change()
