"""Scans of a node's hardware, and how many of them failed."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from k8s_rdma.core.kernel import Hardware, Kernel, Unreadable
from k8s_rdma.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Callable


TOLERATED_FAILURES = 1
"""Scans in a row that may fail entirely before the hardware counts as unreadable: one may have met a driver
while it was loaded, and the next follows within a second."""


@dataclass(frozen=True, slots=True)
class Scans:
    """Statistics of scans. failed: incomplete ones. seconds: the duration of all together."""

    total: int = 0
    failed: int = 0
    seconds: float = 0.0


class Scanner:
    """Scans the node's hardware; used from one thread, read from others.

    error: why the last scan failed entirely; empty when it did not.
    incomplete: whether the last scan failed or could not read everything, so that another one is due.
    last_s: the duration of the last scan.
    """

    def __init__(
        self,
        kernel: Kernel,
        in_pools: Callable[[Hardware], Hardware] = lambda hardware: hardware,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Wait for the first scan. in_pools: puts VFs into their pools."""
        self._kernel = kernel
        self._in_pools = in_pools
        self._now = now
        self._failures = 0
        self.scans = Scans()
        self.error = ""
        self.incomplete = False
        self.last_s = 0.0

    def scan(self) -> Hardware:
        """Observe the hardware. KernelError when the kernel cannot be queried."""
        started = self._now()
        self.incomplete = True
        try:
            hardware = self._in_pools(self._kernel.observe())
            self._failures, self.error = 0, ""
            self.incomplete = bool(hardware.unreadable)
        except KernelError as error:
            self._failures, self.error = self._failures + 1, str(error)
            raise
        finally:
            self.last_s = self._now() - started
            scans_before = self.scans
            self.scans = Scans(
                scans_before.total + 1,
                scans_before.failed + self.incomplete,
                scans_before.seconds + self.last_s,
            )
        return hardware

    def look_again(self, last: Hardware) -> Hardware:
        """Scan; return `last` when the kernel cannot be queried, marked as unreadable if that persists."""
        try:
            return self.scan()
        except KernelError as error:
            if self._failures <= TOLERATED_FAILURES:
                return last
            return replace(last, unreadable=(Unreadable("the hardware", str(error)),))
