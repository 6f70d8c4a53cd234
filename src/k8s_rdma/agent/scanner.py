"""Looking at the hardware: counted, timed, and never mistaken for knowledge when it failed."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from k8s_rdma.core.devices.pools import in_pools
from k8s_rdma.core.kernel import Unreadable
from k8s_rdma.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from k8s_rdma.core.devices.pools import Pool
    from k8s_rdma.core.kernel import Hardware, Kernel

TOLERATED_FAILURES = 1
"""Looks in a row that may fail altogether before what was seen last counts as unreadable: one may have met
a driver that was just being loaded, and the next follows within a second."""


@dataclass(frozen=True, slots=True)
class Scans:
    """Looks so far; failed: those that could not see everything; seconds: all of them together."""

    total: int = 0
    failed: int = 0
    seconds: float = 0.0


class Scanner:
    """Looks for the node; used from one thread, read from others.

    error: why the last look failed altogether; empty when it did not.
    incomplete: whether the last look failed or could not see everything, so that another one is due.
    last_s: how long it took.
    """

    def __init__(
        self, kernel: Kernel, pools: Sequence[Pool] = (), now: Callable[[], float] = time.monotonic
    ) -> None:
        """Nothing has been looked at. pools: which VFs exclusive resources have."""
        self._kernel = kernel
        self._pools = pools
        self._now = now
        self._failures = 0
        self.scans = Scans()
        self.error = ""
        self.incomplete = False
        self.last_s = 0.0

    def look(self) -> Hardware:
        """What there is. KernelError when the kernel cannot be asked."""
        started = self._now()
        self.incomplete = True
        try:
            hardware = in_pools(self._kernel.observe(), self._pools)
            self._failures, self.error = 0, ""
            self.incomplete = bool(hardware.unreadable)
        except KernelError as error:
            self._failures, self.error = self._failures + 1, str(error)
            raise
        finally:
            self.last_s = self._now() - started
            done = self.scans
            self.scans = Scans(done.total + 1, done.failed + self.incomplete, done.seconds + self.last_s)
        return hardware

    def look_again(self, last: Hardware) -> Hardware:
        """What there is; `last` when the kernel cannot be asked, marked as unreadable if that persists."""
        try:
            return self.look()
        except KernelError as error:
            if self._failures <= TOLERATED_FAILURES:
                return last
            return replace(last, unreadable=(Unreadable("the hardware", str(error)),))
