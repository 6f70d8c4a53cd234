"""A node on which pods have caps that software keeps."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.machine import Machine, Verbs, call
from agent.pods import KnowingCluster, requests
from k8s_rdma.agent.node import Node
from k8s_rdma.agent.report import Reporter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from fakes.machine import Device
    from k8s_rdma.core.ledger import Receipt
    from k8s_rdma.core.step import NetnsRef

SOFTWARE = {"max_tx_rate": 200, "enforce": "software"}
CHAINED = {"cniVersion": "1.0.0", "interfaces": [], "ips": []}


@dataclass
class Pods:
    """The node, and its pods."""

    machine: Machine
    node: Node
    verbs: Verbs
    cluster: KnowingCluster

    async def add(self, *interfaces: dict[str, object], container: str = "c1", uid: str = "") -> NetnsRef:
        netns = self.machine.hardware.create_namespace()
        annotations = requests(*(interfaces or (SOFTWARE,)))
        made = call("ADD", container, uid=uid or f"uid-{container}", name=container)
        given = await self.verbs.add(made, netns, self.machine.stdin(annotations, prevResult=CHAINED))
        assert given is not None
        return netns

    def cap(self, netns: NetnsRef, ifname: str = "rdma0") -> int:
        return self.device(netns, ifname).max_tx_rate_mbps

    def uncap(self, netns: NetnsRef, ifname: str = "rdma0", *, to: int = 0) -> None:
        self.device(netns, ifname).max_tx_rate_mbps = to

    def device(self, netns: NetnsRef, ifname: str = "rdma0") -> Device:
        return self.machine.hardware.device(netns, ifname)

    def receipt(self) -> Receipt:
        [receipt] = self.node.ledger.receipts.values()
        return receipt

    def enforced(self) -> tuple[list[str | None], list[str]]:
        """Return the keeper of each interface's cap, and the problems of PFs, as reported."""
        report = Reporter(self.node).now()
        given = [each for allocation in report.allocations for each in allocation.interfaces]
        return [each.enforced.max for each in given], [words for pf in report.pfs for words in pf.problems]


@contextmanager
def pods_on(machine: Machine) -> Iterator[Pods]:
    machine.cluster = cluster = KnowingCluster({})
    with machine.running() as (node, verbs):
        yield Pods(machine, node, verbs, cluster)


def run(machine: Machine, scenario: Callable[[Pods], Awaitable[None]]) -> None:
    async def main() -> None:
        with pods_on(machine) as pods:
            await scenario(pods)

    asyncio.run(main())
