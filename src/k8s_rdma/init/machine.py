"""The machine that `init` works on: sysfs, netlink and time, each a parameter."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from k8s_rdma.init.waiting import Clock
from k8s_rdma.linux.discovery.queries import Queries
from k8s_rdma.linux.sysfs import Sysfs
from k8s_rdma.linux.vf.creation import SriovLinks


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """queries, links: open netlink for the thread that calls. boot_id: of `core.ledger.Receipt`."""

    sysfs: Sysfs
    queries: Callable[[], AbstractContextManager[Queries]]
    links: Callable[[], SriovLinks]
    clock: Clock
    boot_id: str
