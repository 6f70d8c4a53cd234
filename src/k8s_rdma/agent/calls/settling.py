"""The last of an ADD: nobody else has the pod's addresses, and its networks know where they are now.

Duplicate address detection (RFC 4862) is the kernel's. It is waited for once for all interfaces of a pod,
only where there are IPv6 addresses and a link, and without holding up any other pod.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from k8s_rdma.core.settling import settling
from k8s_rdma.errors import KernelError, Reason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from k8s_rdma.agent.node import Node
    from k8s_rdma.agent.worker import Worker
    from k8s_rdma.core.ledger import Receipt

FIRST_LOOK_S = 0.11
"""When whoever has such an address has told so, where the kernel asked at once (`linux.pod_interface`)."""

LOOK_AGAIN_S = 0.05
DEADLINE_S = 3.0
"""Asking may begin a second later (`rtr_solicit_delay`), and be done more than once (`dad_transmits`)."""


async def settle(
    receipt: Receipt,
    addresses: Mapping[str, tuple[str, ...]],
    *,
    node: Node,
    worker: Worker,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Wait until no other station objects to these addresses (CIDR form, by interface), then announce them.

    K8sRdmaError (`IPAM_FAILURE`) names those that another station has, or that cannot be used in time.
    """
    asked = {ifname: given for ifname, given in addresses.items() if any(":" in each for each in given)}
    if asked:
        await _verify(receipt, asked, node, worker, pause)
    if any(addresses.values()):
        await worker.run(node.announce, receipt, addresses)


async def _verify(
    receipt: Receipt,
    addresses: Mapping[str, tuple[str, ...]],
    node: Node,
    worker: Worker,
    pause: Callable[[float], Awaitable[None]],
) -> None:
    await pause(FIRST_LOOK_S)
    for _ in range(round((DEADLINE_S - FIRST_LOOK_S) / LOOK_AGAIN_S)):
        now = settling(addresses, await worker.run(node.look_into, receipt))
        if now.duplicates:
            raise _unsettled(receipt, now.duplicates, "in use by another station of its network")
        if not (now.unusable or now.unverified):
            return
        await pause(LOOK_AGAIN_S)
    if now.unusable:
        why = f"duplicate address detection has not ended within {DEADLINE_S:g} s"
        raise _unsettled(receipt, now.unusable, why)


def _unsettled(receipt: Receipt, which: tuple[str, ...], why: str) -> KernelError:
    msg = f"container {receipt.attachment.container}: address {', '.join(which)}: {why}"
    return KernelError(msg, reason=Reason.IPAM_FAILURE)
