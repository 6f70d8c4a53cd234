"""Work beside the agent's own that must not take the agent with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import NoReturn

    from k8s_rdma.kube.time import Time

AFTER_FAULT_S = 30.0
_log = structlog.get_logger()


async def lasting(work: Callable[[], Awaitable[NoReturn]], time: Time) -> NoReturn:
    """Begin again after a fault of ours: pods start without the cluster, not without the agent."""
    while True:
        try:
            await work()
        except Exception:
            _log.exception("cluster_fault")
        await time.pause(AFTER_FAULT_S)
