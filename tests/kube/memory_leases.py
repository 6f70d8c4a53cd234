"""A Lease in an API server of its own, beside time that passes as a test says."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from k8s_rdma.kube.errors import ApiRefusedError
from k8s_rdma.kube.leader_election import LeaderElectionConfig, LeaderElector
from k8s_rdma.kube.published_api import LeaseView

LEASE_S = 15


@dataclass
class Leases:
    """A Lease in an API server, and time that passes when somebody sleeps.

    faults: errors that the next writes raise; with `written` these are stored all the same.
    """

    stored: LeaseView | None = None
    now: float = 1_000.0
    put_at: float = 0.0
    version: int = 0
    faults: list[Exception] = field(default_factory=list)
    written: bool = False

    async def get_lease(self, namespace: str, name: str) -> LeaseView | None:
        return self.stored

    async def write_lease(self, lease: LeaseView) -> LeaseView:
        fault = self.faults.pop(0) if self.faults else None
        if fault and not self.written:
            raise fault
        if lease.version != (self.stored.version if self.stored else ""):
            raise ApiRefusedError("write lease: modified", status=409)
        self.put(lease.holder, lease.duration_s)
        if fault:
            raise fault
        return self.stored

    def put(self, holder: str, duration_s: int = LEASE_S) -> None:
        self.version += 1
        self.put_at = self.now
        self.stored = LeaseView(
            namespace="n", name="l", holder=holder, duration_s=duration_s, version=str(self.version)
        )

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)

    def lease(self, holder: str = "me") -> LeaderElector:
        terms = LeaderElectionConfig(namespace="n", name="l", holder=holder, lease_s=LEASE_S)
        return LeaderElector(self, terms, self.clock, self.sleep)


class SteppedLeases(Leases):
    """Each sleep ends when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: asyncio.Queue[None] = asyncio.Queue()

    async def sleep(self, seconds: float) -> None:
        await self.steps.get()
        self.now += seconds

    def step(self) -> None:
        self.steps.put_nowait(None)
