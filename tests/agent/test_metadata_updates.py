"""Device metadata of claims after changes that no call makes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from agent.test_claim_metadata import generation, machine, said
from agent.test_claims import running
from k8s_rdma.agent.metadata_updates import MetadataUpdates
from k8s_rdma.core.types import PodUid
from resource_claims import interface

if TYPE_CHECKING:
    from agent.machine import Machine

__all__ = ["machine"]


def test_change_that_no_call_makes_reaches_the_file(machine: Machine) -> None:
    with running(machine) as agent:

        async def play() -> None:
            await agent.prepare(interface("a", bandwidth="60G"))
            await agent.add()
            assert generation(machine, "a") == 2
            updates = MetadataUpdates(
                agent.node, machine.specifications.devices.claims.metadata, machine.worker
            )
            task = asyncio.create_task(updates.run())
            [prepared] = agent.node.ledger.prepared_for(PodUid("uid-p"))
            await machine.worker.run(lambda: agent.node.change_caps(PodUid("uid-p"), {prepared.vf: 70_000}))
            written = asyncio.Event()
            await updates.publisher.publish()
            while generation(machine, "a") != 3:
                await machine.worker.run(written.set)
            [device] = said(machine, "a")["requests"][0]["devices"]
            assert device["attributes"]["rdma.k8s-rdma.io/maxRate"] == {"int": 70_000}
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

        asyncio.run(play())
