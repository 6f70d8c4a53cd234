"""Nodes that publish: the writes of their agents, step by step, and as late as wanted."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from k8s_rdma.core.types import NodeName
from k8s_rdma.kube.client import Client
from k8s_rdma.kube.published_api import LeaseView, RdmaNodeView
from k8s_rdma.wire.rdma_node import encode_status, status_of
from k8s_rdma_demo.cluster.objects import parse_resource_type

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from k8s_rdma.kube.informer import Event
    from k8s_rdma.wire.report import NodeReport

NAMESPACE = "k8s-rdma"
RDMA_NODES = parse_resource_type("k8s-rdma.io/v1alpha1/rdmanodes/RdmaNode")


@dataclass
class PublishedNode:
    """One node's agent, which publishes when a test has it do so."""

    client: Client
    name: NodeName
    object: RdmaNodeView | None = None
    lease: LeaseView | None = None
    generation: str = ""

    async def publish(self, report: NodeReport) -> None:
        """Write the status, without a Lease that confirms it yet."""
        self.object = self.object or await self.client.create_rdma_node(self.name, "uid")
        status = encode_status(status_of(report))
        self.object = await self.client.write_status(replace(self.object, status=status))
        self.generation = report.generation

    async def renew(self) -> None:
        """Confirm that the published status holds."""
        lease = self.lease or LeaseView(namespace=NAMESPACE, name=self.name, holder="", duration_s=40)
        self.lease = await self.client.write_lease(replace(lease, holder=self.generation))

    async def say(self, report: NodeReport) -> None:
        """Both."""
        await self.publish(report)
        await self.renew()


def open_gate() -> asyncio.Event:
    gate = asyncio.Event()
    gate.set()
    return gate


@dataclass
class LateWatches:
    """`PublishedApi` whose watches are held up while their gates are cleared."""

    real: Client
    statuses: asyncio.Event = field(default_factory=open_gate)
    leases: asyncio.Event = field(default_factory=open_gate)
    asked: int = 0

    async def follow_rdma_nodes(self) -> AsyncIterator[Event[Any]]:
        async for event in self.real.follow_rdma_nodes():
            await self.statuses.wait()
            yield event

    async def follow_leases(self, namespace: str) -> AsyncIterator[Event[Any]]:
        async for event in self.real.follow_leases(namespace):
            await self.leases.wait()
            yield event

    async def leases_version(self, namespace: str) -> int:
        self.asked += 1
        return await self.real.leases_version(namespace)
