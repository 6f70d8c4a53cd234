"""The server's own look at the hardware, for while the agent is away: unprivileged, and without a ledger."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

from k8s_rdma.core.ledger import Ledger
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.changes import CachedScan, files_without_events
from k8s_rdma.linux.discovery.netlink_queries import UnprivilegedQueries
from k8s_rdma.linux.discovery.observation import Observer
from k8s_rdma.linux.sysfs import Sysfs

if TYPE_CHECKING:
    from k8s_rdma.core.kernel import Hardware
    from k8s_rdma.core.selection import Selection
    from k8s_rdma.linux.discovery.queries import Queries
    from k8s_rdma.wire.node_report import NodeReports
    from k8s_rdma.wire.rest import NodeReport


class HardwareScan:
    """An `agent_link.Scan`. Nothing is opened before it is called, which may never be."""

    def __init__(self, reports: NodeReports, selection: Selection, sysfs: Path = Path("/sys")) -> None:
        self._reports = reports
        self._selection = selection
        self._sysfs = sysfs
        self._opened = ExitStack()
        self._lookout: CachedScan[Hardware] | None = None
        self._seen: Hardware | None = None
        self._report: NodeReport | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def __call__(self) -> NodeReport:
        """What is there, everything in use as foreign; the same object while nothing of it is new.

        KernelError when the kernel cannot be asked at all.
        """
        try:
            hardware = self._look()
        except OSError as error:
            msg = f"it cannot be looked at: {error}"
            raise KernelError(msg) from error
        if self._report is None or hardware is not self._seen:
            self._seen, self._report = hardware, self._reports.of(hardware, Ledger())
        return self._report

    def _look(self) -> Hardware:
        if self._lookout is None:
            with ExitStack() as opened:
                queries = opened.enter_context(UnprivilegedQueries(Sysfs(self._sysfs)))
                self._lookout = opened.enter_context(lookout(self._sysfs, queries, self._selection))
                self._opened = opened.pop_all()
        return self._lookout.look()


def lookout(root: Path, queries: Queries, selection: Selection) -> CachedScan[Hardware]:
    """Looks at the machine's hardware; KernelError or OSError as `Observer.observe`."""
    sysfs = Sysfs(root)
    return CachedScan(
        Observer(sysfs, queries, selection).observe,
        files=lambda hardware: frozenset(root / file for file in files_without_events(sysfs, hardware)),
        incomplete=lambda hardware: bool(hardware.unreadable),
    )
