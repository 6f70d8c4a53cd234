"""Nodes that publish themselves.

The agent's own publisher, in the agents' account, publishes the state that a simulated node has.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from cluster.world import RBAC, Cluster
from k8s_rdma.agent.cluster.api_cluster import open_cluster
from k8s_rdma.agent.cluster.publisher import Publishing
from k8s_rdma.config.agent import AgentConfig, PublishConfig
from k8s_rdma.core.namespace_policy import NO_POLICIES
from k8s_rdma.kube.client import Client, connect
from k8s_rdma.wire.placement_keys import UNSIGNED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cluster.nodes import Node

CRD = Path(__file__).parents[2] / "deploy" / "crds" / "rdmanodes.yaml"
AGENT = "k8s-rdma-agent"
VFS = "k8s-rdma.io/vf"


async def prepare(c: Cluster) -> None:
    """Make the kind of object known, and the agents' account; for once in a cluster."""
    await c.plane.add_crd(yaml.safe_load(CRD.read_text()))
    await c.apply(RBAC / "agent.yaml")
    await c.apply(RBAC / "agent-evictions.yaml")
    await c.account(AGENT, "k8s-rdma")


@asynccontextmanager
async def as_agent(c: Cluster) -> AsyncIterator[Client]:
    """The API server as agents reach it."""
    client = connect(str(c.directory / f"{AGENT}.kubeconfig"))
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def publishing(c: Cluster, node: Node, **publish: Any) -> AsyncIterator[None]:
    """A node's agent publishes until the block ends. publish: of its configuration."""
    config = AgentConfig(
        node=node.server.name,
        in_cluster=True,
        publish=PublishConfig(rdma_node=True, vf_resource=VFS, **publish),
    )
    async with as_agent(c) as client:
        pods = open_cluster(config, UNSIGNED, lambda: NO_POLICIES, client)
        published = Publishing(config, client, node, cluster=pods)
        work = [asyncio.create_task(run()) for run in (pods.run, published.run)]
        try:
            yield
            for task in work:
                assert not task.done(), task.exception()
        finally:
            for task in work:
                task.cancel()
            await asyncio.wait(work)
