"""How attachments end: by DEL, by GC, or because nothing else will end them."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from k8s_rdma.agent.plugins.called import delete_by, plugins_of_now
from k8s_rdma.agent.plugins.runner import target_of
from k8s_rdma.agent.release import RatesLeftError
from k8s_rdma.core.ledger import Attachment, Phase
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.wire.plugin_config import network_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from k8s_rdma.agent.cni.node_access import NodeAccess
    from k8s_rdma.agent.plugins.called import CalledPlugins
    from k8s_rdma.agent.plugins.delegate import CniPlugins
    from k8s_rdma.core.ledger import Receipt
    from k8s_rdma.wire.netconf import NetConf

_log = structlog.get_logger()

RECONCILED_AT_ONCE = 16
"""After a reboot that is every attachment of before, a plugin may wait in vain for a server for each of them,
and nobody is served until all have been tried."""


class DeleteCommand:
    """Ends attachments by what their receipts say, not by a configuration of now.

    now: what a call's configuration names; tried for what another plugin failed to give and fails to end.
    """

    def __init__(self, access: NodeAccess, plugins: CniPlugins) -> None:
        """Callers of `give_back` and `end` hold their containers' locks."""
        self._node = access.node
        self._worker = access.worker
        self._locks = access.locks
        self._pending_adds = access.pending_adds
        self._device_specs = access.device_specs
        self._plugins = plugins

    async def delete(self, attachment: Attachment, now: CalledPlugins | None = None) -> None:
        """DEL: take back what the attachment holds; nothing is success as well.

        So are rates that cannot be reset while the link is down: the pod has nothing any more, and must not
        stay for them. `reconcile` sees to them; until then nobody else gets these VFs.
        An ADD of the attachment that is under way is cancelled, and has ended when this returns.
        """
        self._pending_adds.cancel(attachment)
        async with self._locks.alone(attachment.container):
            receipt = self._node.ledger.receipts.get(attachment)
            if receipt is None:
                return
            with _rates_may_stay():
                await self.end(receipt, now)

    async def collect(self, conf: NetConf, plugins: CalledPlugins) -> None:
        """GC: end every attachment of this network that the runtime does not hold valid; leases likewise.

        So is what is over whatever the runtime says. Without a list nothing is known to be over. Rates may
        stay, as with DEL.
        """
        if conf.attachments_to_keep is None:
            return
        await self.reconcile()
        valid = {Attachment(conf.name, each.container_id, each.ifname) for each in conf.attachments_to_keep}
        problems = []
        for attachment, receipt in dict(self._node.ledger.receipts).items():
            if receipt.network != conf.name or attachment in valid or receipt.phase is Phase.PREPARED:
                continue
            try:
                with _rates_may_stay():
                    await self.end_if(attachment, lambda held: held.phase is not Phase.PREPARED, plugins)
            except K8sRdmaError as error:
                problems.append(error)
        try:
            await self._collect_leases(conf.name, valid, plugins)
        except K8sRdmaError as error:
            problems.append(error)
        if problems:
            raise together(problems)

    async def reconcile(self) -> bool:
        """End what no call will: cut short, its sandbox vanished, or its DEL left to us; whether any was.

        What is being worked on is left alone; what fails stays for the next time, and is logged.
        """
        unfinished = await self._worker.run(self._node.unfinished)
        waiting = iter([each for each in unfinished if not self._locks.busy(each.attachment.container)])
        ended: list[bool] = []

        async def some() -> None:
            ended.extend([await self._reconcile(receipt) for receipt in waiting])

        async with asyncio.TaskGroup() as tasks:
            for _ in range(RECONCILED_AT_ONCE):
                tasks.create_task(some())
        return any(ended)

    async def _reconcile(self, receipt: Receipt) -> bool:
        attachment = receipt.attachment
        left = await self._worker.run(self._node.deferred_deletes.read, attachment)
        now = plugins_of_now(left.stdin, left.call) if left else None
        try:
            ended = await self.end_if(attachment, self._node.is_unfinished, now)
        except K8sRdmaError as error:
            container = attachment.container
            _log.warning("reconcile_failed", container=container, error=str(error), details=error.details)
            return False
        if ended and left:
            _log.info("left_deletion_done", container=attachment.container, ifname=attachment.ifname)
        return ended

    async def end_if(
        self,
        attachment: Attachment,
        ended: Callable[[Receipt], bool],
        now: CalledPlugins | None = None,
    ) -> bool:
        """End an attachment when its turn has come, if `ended` holds of it then; whether it was."""
        async with self._locks.alone(attachment.container):
            receipt = self._node.ledger.receipts.get(attachment)
            if receipt is None or not await self._worker.run(ended, receipt):
                return False
            await self.end(receipt, now)
            return True

    async def end(self, receipt: Receipt, now: CalledPlugins | None = None) -> None:
        """Give everything back, then drop the receipt; it stays if anything of this failed."""
        await self.give_back(receipt, now)
        await self._worker.run(self._node.forget, receipt.attachment)

    async def give_back(self, receipt: Receipt, now: CalledPlugins | None = None) -> None:
        """VFs home, then their files and addresses; and the delegate's DEL, whatever became of that.

        Addresses stay while a VF does not come home, as the pod may still have them on it. One K8sRdmaError
        tells of all that failed; RatesLeftError when that is only rates.
        """
        problems: list[K8sRdmaError] = []
        try:
            await self._give_vfs_back(receipt, now)
        except K8sRdmaError as error:
            problems.append(error)
        try:
            await self._end_delegate(receipt, now)
        except K8sRdmaError as error:
            problems.append(error)
        if [type(problem) for problem in problems] == [RatesLeftError]:
            await self._worker.run(self._node.keep_for_rates, receipt.attachment)
        if problems:
            raise together(problems)

    async def _end_delegate(self, receipt: Receipt, now: CalledPlugins | None) -> None:
        """Its DEL; without a namespace when that is gone, as another one may be found by its path now."""
        if receipt.delegate is None:
            return
        target = target_of(receipt)
        if await self._worker.run(self._node.orphaned, receipt):
            target = replace(target, netns="")
        other = now.delegate if now and target.ifname in receipt.unanswered else receipt.delegate
        await delete_by(receipt.delegate, other, lambda plugin: self._plugins.delegate.delete(plugin, target))

    async def _give_vfs_back(self, receipt: Receipt, now: CalledPlugins | None) -> None:
        rates_left = None
        try:
            await self._worker.run(self._node.detach, receipt)
        except RatesLeftError as error:
            rates_left = error  # the addresses are nobody's all the same
        await self._worker.run(lambda: self._device_specs.remove(receipt, self._node.ledger))
        await self._plugins.ipam.delete(receipt, now)
        if rates_left is not None:
            raise rates_left

    async def _collect_leases(self, network: str, valid: set[Attachment], plugins: CalledPlugins) -> None:
        """What is held here is valid, whatever the list says: the ADD of some may still be under way.

        Receipts tell where their leases are; beside those, only what is ours alone is collected.
        """
        held = self._node.ledger.receipts
        recorded = [
            each for receipt in held.values() if receipt.network == network for each in receipt.all_ipams
        ]
        ipams = {(each.plugin, network_of(each.netconf)): each for each in (*recorded, *plugins.all_ipams)}
        await self._plugins.ipam.collect(ipams.values(), held.values())
        if plugins.delegate is not None:
            theirs = valid | {key for key, receipt in held.items() if receipt.delegate is not None}
            await self._plugins.delegate.collect(
                plugins.delegate, sorted((each.container, each.ifname) for each in theirs)
            )


@contextmanager
def _rates_may_stay() -> Iterator[None]:
    try:
        yield
    except RatesLeftError as error:
        _log.warning("rates_left", error=str(error), details=error.details)


def together(problems: Sequence[K8sRdmaError]) -> K8sRdmaError:
    """One error that tells of all; of several kinds of failure the first is the reason."""
    if len(problems) == 1:
        return problems[0]
    details = "; ".join(filter(None, (problem.details for problem in problems)))
    return K8sRdmaError("; ".join(map(str, problems)), reason=problems[0].reason, details=details)
