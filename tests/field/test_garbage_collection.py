"""Collections of attachments while a pod's sandbox is made.

https://github.com/containernetworking/cni/pull/981 forbids runtimes to call ADD before GC ends, after
somebody asked whether they may. https://github.com/kubernetes/kubernetes/issues/86944: a collection beside
the creation of a sandbox happens, and the pod was left without network. The list is older than the ADD.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from agent.machine import Machine, asks, call, names_in
from k8s_rdma.agent.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path


class InterruptedWorker(Worker):
    """Begins a collection before its call of a number; the collection has its turn when the ADD has ended."""

    calls = 0
    number = 0

    def begin_at(self, number: int, collection: Coroutine[Any, Any, None]) -> None:
        """Begin it before the call of this number from now on."""
        self.number, self.collection = self.calls + number, collection
        self.added = asyncio.Event()

    async def run(self, call, *args, **kwargs):
        if getattr(self, "collecting", None) is asyncio.current_task():
            await self.added.wait()
            return await super().run(call, *args, **kwargs)
        self.calls += 1
        if self.calls == self.number:
            self.collecting = asyncio.create_task(self.collection)
            await asyncio.sleep(0)
        return await super().run(call, *args, **kwargs)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_collection_that_begins_at_any_step_of_an_add_leaves_it_alone(number: int, tmp_path: Path):
    machine = Machine(tmp_path)
    machine.new_worker = InterruptedWorker

    async def scenario() -> None:
        with machine.running() as (node, verbs):
            worker = machine.worker
            assert isinstance(worker, InterruptedWorker)
            nothing_valid = machine.stdin(None, **{"cni.dev/valid-attachments": []})
            worker.begin_at(number, verbs.collect(call("GC"), nothing_valid))
            netns = machine.hardware.create_namespace()
            await verbs.add(call("ADD"), netns, machine.stdin(asks({})))
            worker.added.set()
            await worker.collecting
            assert len(node.ledger.receipts) == 1
            assert names_in(machine, netns, "eth0") == [True]

    asyncio.run(scenario())
