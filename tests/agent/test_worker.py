"""The thread that owns the kernel and the ledger."""

from __future__ import annotations

import asyncio
import threading

import structlog

from k8s_rdma.agent.node import Worker


def test_calls_run_in_their_callers_context_on_one_other_thread() -> None:
    worker = Worker()

    def seen() -> tuple[object, int]:
        return structlog.contextvars.get_contextvars().get("operation"), threading.get_ident()

    async def caller(operation: str) -> tuple[object, int]:
        with structlog.contextvars.bound_contextvars(operation=operation):
            return await worker.run(seen)

    async def both() -> list[tuple[object, int]]:
        return await asyncio.gather(caller("a"), caller("b"))

    (first, thread), (second, other) = asyncio.run(both())
    worker.close()
    assert (first, second) == ("a", "b")
    assert thread == other != threading.get_ident()
