"""What is seen of the host's devices, kept up to date by the kernel's events and by small files. Blocking."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from k8s_rdma.core.devices.rdma_devices import INFINIBAND, RDMA_CM, DevicesSeen
from k8s_rdma.deviceplugin.seeing.health import Health
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.changes import CachedScan
from k8s_rdma.linux.discovery.netlink_queries import NetlinkQueries
from k8s_rdma.linux.netlink.subscriptions import RDMA_DEVICES
from k8s_rdma.linux.rdma.character_devices import DEV, DeviceNodes
from k8s_rdma.linux.rdma.observation import RdmaObserver, RdmaQueries, port_state_files
from k8s_rdma.linux.sysfs import Sysfs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.deviceplugin.seeing.health import Agent
    from k8s_rdma.linux.rdma.observation import RdmaSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Where the machine is looked at. questions: opens what answers beside sysfs."""

    sysfs: Path = Path("/sys")
    dev: Path = DEV
    questions: Callable[[], AbstractContextManager[RdmaQueries]] = NetlinkQueries


@dataclass(frozen=True, slots=True)
class Looks:
    """At the hardware so far. failed: those that could not see everything."""

    total: int = 0
    failed: int = 0


class Watching:
    """Of one thread at a time; nothing is opened before the first look."""

    def __init__(self, host: Host, *, changed: Callable[[], None]) -> None:
        """changed: called from another thread when a look may show something else."""
        self._host = host
        self._changed = changed
        self._opened = ExitStack()
        self._lookout: CachedScan[RdmaSnapshot] | None = None
        self._nodes = DeviceNodes(host.dev)
        self._health = Health()
        self._expected: Mapping[str, str] = {}
        self._last: RdmaSnapshot | None = None
        self.looks = Looks()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    @property
    def succeeded(self) -> bool:
        """Whether any look did."""
        return self._last is not None

    def seen(self, agent: Agent, now: float, *, anew: bool = False) -> DevicesSeen:
        """What there is by now; what was seen last where it cannot be looked at, which is then told.

        anew: look whether or not there is a sign of a change.
        """
        expected = self._health.expected(agent)
        anew |= expected != self._expected
        self._expected = expected
        failure: tuple[str, ...] = ()
        try:
            self._last = self._look(anew=anew)
        except (KernelError, OSError) as error:
            self._count(failed=True)
            failure = (f"the host's RDMA devices cannot be looked at: {error}",)
        if self._last is None:
            return DevicesSeen(unreadable=failure)
        return self._health.judged(self._last, agent, now, unreadable=failure)

    def due_at(self) -> float | None:
        """When to ask for what is seen though nothing changed, by the clock of `now`; None for never."""
        return self._health.due_at()

    @property
    def due(self) -> bool:
        """Whether something could not be seen, or may have changed while it was looked at."""
        return self._lookout is None or self._lookout.due

    def _look(self, *, anew: bool) -> RdmaSnapshot:
        if self._lookout is None:
            self._lookout = self._open()
        look = self._lookout.look(anew=anew)
        if look is not self._last:
            self._count(failed=bool(look.unreadable))
        return look

    def _open(self) -> CachedScan[RdmaSnapshot]:
        with ExitStack() as opened:
            sysfs = Sysfs(self._host.sysfs)
            questions = opened.enter_context(self._host.questions())
            observer = RdmaObserver(sysfs, questions, self._nodes)
            lookout = CachedScan(
                lambda changed: observer.look(self._expected, changed=changed),
                files=self._files,
                incomplete=lambda look: bool(look.unreadable),
                subscriptions=RDMA_DEVICES,
                changed=self._changed,
            )
            opened.enter_context(lookout)
            self._opened = opened.pop_all()
        return lookout

    def _files(self, look: RdmaSnapshot) -> frozenset[Path]:
        """What no event tells of: the states of InfiniBand ports, and nodes that come and go by hand."""
        nodes = {node.path for here in look.here.values() for node in here.characters}
        return frozenset(
            {self._host.sysfs / path for path in port_state_files(look)}
            | {self._nodes.at(path) for path in (INFINIBAND, RDMA_CM, *nodes)}
        )

    def _count(self, *, failed: bool) -> None:
        self.looks = Looks(self.looks.total + 1, self.looks.failed + failed)
