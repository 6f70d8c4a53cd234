"""Fail-over on a real control plane: `make fail-over` writes its table to docs/extender-availability.md.

Two replicas are behind a Service, as kube-proxy has it, with the extender's default Lease. A pod is bound.
At once the leader ends in one of the ways, and two pods are created: the time is from that end to the bind of
both. kube-scheduler then has open connections to the leader, which is the worst case. Both replicas run again
before the next time. A time beyond the promise of that page fails the command.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic

import httpx2
import msgspec

from cluster.extenders import Extender, registration
from cluster.real import obstacle
from cluster.relay import service_of
from cluster.world import Cluster, cluster
from docs_site.reference.tables import table
from docs_site.reference.written import with_table
from k8s_rdma.config.extender import ExtenderConfig

PAGE = Path(__file__).resolve().parent.parent / "docs" / "extender-availability.md"
LEASE_S = next(key.default for key in msgspec.structs.fields(ExtenderConfig) if key.name == "lease_s")
HTTP_TIMEOUT_S = 10
PROBE_S = 1.0
TO_LEAD_S = 10
"""The part of the promise beside the Lease: pods are touched, the Service leads on, and a process starts."""
RUNS = 5
DEADLINE_S = 3_600.0


@dataclass(slots=True)
class Replicas:
    """Two replicas, and the pods that a scheduler has bound by them. hung: stopped processes."""

    c: Cluster
    both: tuple[Extender, Extender]
    http: httpx2.AsyncClient
    hung: list[Extender] = field(default_factory=list)
    pods: int = 0

    async def leader(self) -> Extender:
        """Wait for the one that is ready: with a Lease that is the leader alone."""
        while True:
            for each in self.both:
                if await each.is_ready(self.http):
                    return each
            await asyncio.sleep(0.05)

    async def bind_pods(self, count: int) -> None:
        """Create pods and wait until they are bound; then they end, so that each time finds the same room."""
        names = [f"pod-{self.pods + number}" for number in range(count)]
        self.pods += count
        for name in names:
            await self.c.create_pod(name, 1_000)
        for name in names:
            await self.c.bound(name)

    async def remove_pods(self) -> None:
        """Delete all pods and wait for their end."""
        for number in range(self.pods):
            if await self.c.pod(f"pod-{number}") is not None:
                await self.c.delete_pod(f"pod-{number}")
                await self.c.gone(f"pod-{number}")

    async def kill_leader(self) -> None:
        """End the leader as a crash does."""
        await (await self.leader()).end(signal.SIGKILL)

    async def terminate_leader(self) -> None:
        """End the leader as a roll-out does."""
        await (await self.leader()).end(signal.SIGTERM)

    async def stop_leader(self) -> None:
        """Have the leader hang."""
        leader = await self.leader()
        leader.program.process.send_signal(signal.SIGSTOP)
        self.hung.append(leader)

    async def kill_both(self) -> None:
        """End both as crashes do; kubelet starts them again at once."""
        for each in self.both:
            await each.end(signal.SIGKILL)
        for each in self.both:
            await each.start()

    async def restore(self) -> None:
        """Have both run again, one of them ready."""
        while self.hung:
            await self.hung.pop().end(signal.SIGKILL)
        for each in self.both:
            if each.program.process.returncode is not None:
                await each.start()
        await self.leader()
        await self.remove_pods()


Way = Callable[[Replicas], Awaitable[None]]

WAYS: dict[str, tuple[Way, float]] = {
    "was terminated": (Replicas.terminate_leader, LEASE_S + TO_LEAD_S),
    "was killed": (Replicas.kill_leader, LEASE_S + TO_LEAD_S),
    "hung within 2 s of a request": (Replicas.stop_leader, LEASE_S + TO_LEAD_S + 2 * HTTP_TIMEOUT_S),
    "was killed together with the other replica": (Replicas.kill_both, LEASE_S + TO_LEAD_S),
}
"""The end of the leader, and the time until new pods are bound that the page promises."""


async def measure(directory: Path, runs: int) -> dict[str, list[float]]:
    """Return the times of each way, in seconds."""
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    async with AsyncExitStack() as stack:
        c = await stack.enter_async_context(cluster("real", directory, "w1", deadline_s=DEADLINE_S))
        one, two = (c.extender(name, leaseS=LEASE_S) for name in ("one", "two"))
        http = await stack.enter_async_context(httpx2.AsyncClient(trust_env=False))
        replicas = Replicas(c, (one, two), http)
        for each in (one, two):
            await each.start()
        url = await stack.enter_async_context(service_of(one, two, probe_s=PROBE_S))
        scheduler = registration(url, httpTimeout=f"{HTTP_TIMEOUT_S}s")
        await stack.enter_async_context(c.plane.scheduler(scheduler))
        for run in range(runs):
            for name, (way, _) in WAYS.items():
                await replicas.bind_pods(1)
                began = monotonic()
                await way(replicas)
                await replicas.bind_pods(2)
                times[name].append(monotonic() - began)
                print(f"run {run + 1} of {runs}: the leader {name}: {times[name][-1]:.1f} s", flush=True)
                await replicas.restore()
    return times


def made(times: dict[str, list[float]]) -> str:
    """Return the table, and the machine that it was measured on."""
    rows = [
        [
            name,
            f"{WAYS[name][1]:.0f}",
            f"{median(seconds):.1f}",
            f"{min(seconds):.1f} to {max(seconds):.1f}",
        ]
        for name, seconds in times.items()
    ]
    runs = len(next(iter(times.values())))
    machine = f"{os.cpu_count()} cores, Linux {platform.release().split('-')[0]}"
    day = datetime.now(UTC).date().isoformat()
    said = (
        f"{runs} times each, in seconds, with `leaseS: {LEASE_S:.0f}`, `httpTimeout: {HTTP_TIMEOUT_S}s`, "
        "`podMaxBackoffSeconds: 1` and a probe each second, "
        f"on a virtual machine ({machine}), {day}.\n"
    )
    return table(("the leader", "promised", "median", "lowest to highest"), rows) + "\n" + said


def beyond(times: dict[str, list[float]]) -> list[str]:
    """Return the ways that took longer than promised."""
    return [
        f"the leader {name}: {max(seconds):.1f} s, of promised {WAYS[name][1]:.0f} s"
        for name, seconds in times.items()
        if max(seconds) > WAYS[name][1]
    ]


def main(arguments: list[str]) -> int:
    """Measure, write the table, and say which times are beyond the promise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    options = parser.parse_args(arguments)
    if why := obstacle():
        print(f"fail-over: {why}", file=sys.stderr)
        return 2
    with TemporaryDirectory() as directory:
        times = asyncio.run(measure(Path(directory), options.runs))
    PAGE.write_text(with_table(PAGE.read_text(), "fail-over", made(times)))
    late = beyond(times)
    for line in late:
        print(line, file=sys.stderr)
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
