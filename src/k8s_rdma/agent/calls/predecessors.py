"""What a pod held before: in sandboxes that are gone, or by an ADD that was cut short."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.errors import K8sRdmaError, Reason

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AsyncExitStack

    from k8s_rdma.agent.calls.ending import Ending
    from k8s_rdma.agent.calls.means import Means
    from k8s_rdma.agent.plugins.called import CalledPlugins
    from k8s_rdma.agent.sandbox import Sandbox
    from k8s_rdma.core.ledger import Attachment


class Predecessors:
    """Ends them for an ADD, which has its own container's turn."""

    def __init__(self, means: Means, ending: Ending) -> None:
        """ending: how."""
        self._node = means.node
        self._worker = means.worker
        self._turns = means.turns
        self._ending = ending

    async def end(
        self, sandbox: Sandbox, turns: AsyncExitStack, now: CalledPlugins
    ) -> tuple[Attachment, ...]:
        """Take back what the pod held in sandboxes that are gone, and what an ADD cut short left in this one.

        What it holds elsewhere is left to `Node.prepare` to refuse. Returned is what shall end in the moment
        of the new claim, so that nobody else gets it; the turns of those containers are held until then.
        now: as in `Ending`.
        """
        await self._end_cut_short(sandbox.attachment, now)
        inherited = []
        for receipt in self._node.ledger.of_pod(sandbox.pod.uid):
            elsewhere = receipt.attachment.container != sandbox.attachment.container
            if elsewhere and await self._worker.run(self._node.is_unfinished, receipt):
                inherited.append(receipt)
        older = {receipt.attachment.container for receipt in inherited}
        free = {container for container in older if not self._turns.busy(container)}
        for container in free:
            await turns.enter_async_context(self._turns.alone(container))
        ended = (receipt.attachment for receipt in inherited if receipt.attachment.container in free)
        return await self._give_back(ended, now)

    async def _end_cut_short(self, attachment: Attachment, now: CalledPlugins) -> None:
        """K8sRdmaError (`ALREADY_ATTACHED`) for one that is whole, whichever pod it was made for."""
        receipt = self._node.ledger.receipts.get(attachment)
        if receipt is None:
            return
        if not await self._worker.run(self._node.is_unfinished, receipt):
            msg = f"container {attachment.container} has its interfaces already"
            raise K8sRdmaError(msg, reason=Reason.ALREADY_ATTACHED)
        await self._ending.end(receipt, now)

    async def _give_back(
        self, attachments: Iterable[Attachment], now: CalledPlugins
    ) -> tuple[Attachment, ...]:
        """Those of them that are there still."""
        there = tuple(each for each in attachments if each in self._node.ledger.receipts)
        for attachment in there:
            await self._ending.give_back(self._node.ledger.receipts[attachment], now)
        return there
