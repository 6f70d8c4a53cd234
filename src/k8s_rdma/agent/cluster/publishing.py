"""What the agent publishes of its node, as configured."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from k8s_rdma.agent.cluster.capacity_publisher import CapacityPublisher
from k8s_rdma.agent.cluster.lasting import lasting
from k8s_rdma.agent.cluster.own_node import OwnNode
from k8s_rdma.agent.cluster.status_publisher import StatusPublisher
from k8s_rdma.core.ids import NodeName
from k8s_rdma.kube.time import REAL_TIME

if TYPE_CHECKING:
    from k8s_rdma.agent.cluster.status_publisher import Reports
    from k8s_rdma.agent.config import AgentConfig
    from k8s_rdma.kube.published import PublishingApi
    from k8s_rdma.kube.time import Time


class Publishing:
    """Runs the publishers that are configured."""

    def __init__(
        self, config: AgentConfig, api: PublishingApi, reports: Reports, time: Time = REAL_TIME
    ) -> None:
        """The API server is not asked for anything until `run`."""
        publish = config.publish
        self._time = time
        own = OwnNode(api, NodeName(config.node), time)
        self._work = [own.run]
        if publish.rdma_node:
            self._work.append(StatusPublisher(api, reports, own, publish, time).run)
        if publish.vf_resource is not None:
            self._work.append(CapacityPublisher(api, reports, own, publish.vf_resource, time).run)

    async def run(self) -> None:
        """Publish until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for work in self._work:
                tasks.create_task(lasting(work, self._time))
