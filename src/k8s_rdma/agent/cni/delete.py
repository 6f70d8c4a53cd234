"""The end of attachments: by DEL, by GC, or by the reconciler if no call ends them."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from k8s_rdma.agent.plugins.called_plugins import CalledPlugins, called_plugins, delete_by, plugins_of_now
from k8s_rdma.agent.plugins.execution import target_of
from k8s_rdma.agent.release import RatesLeftError
from k8s_rdma.core.ledger import Attachment, Phase, Receipt
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.wire.cni_request import CniEnvironment, decode_netconf
from k8s_rdma.wire.plugin_config import network_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from k8s_rdma.agent.cni.node_access import NodeAccess
    from k8s_rdma.agent.plugins.ipam import CniPlugins

_log = structlog.get_logger()

RECONCILED_AT_ONCE = 16
"""Attachments that are ended in parallel. After a reboot these are all earlier ones; a plugin may wait in
vain for a server for each, and no call is served until all have been tried."""


class DeleteCommand:
    """Ends attachments by their receipts, not by the current configuration.

    Its methods take as `now` the plugins of a call's configuration. They are tried if the recorded plugin
    failed on ADD and fails on DEL.
    """

    def __init__(self, access: NodeAccess, plugins: CniPlugins) -> None:
        """Start without failures. Callers of `give_back` and `end` hold their containers' locks."""
        self._node = access.node
        self._worker = access.worker
        self._locks = access.locks
        self._pending_adds = access.pending_adds
        self._device_specs = access.device_specs
        self._plugins = plugins
        self._failures: dict[Attachment, tuple[str, str]] = {}

    async def delete(self, call: CniEnvironment, network: str, stdin: bytes = b"") -> None:
        """Handle DEL: release the attachment's VFs and addresses; one without either is a success as well.

        So are rates that cannot be reset while the link is down: the pod has lost its VFs, and must not stay
        for the rates. `reconcile` resets them; until then no other pod gets these VFs. An ADD of the
        attachment that is under way is cancelled, and has ended when this returns.
        """
        attachment, now = Attachment(network, call.container_id, call.ifname), plugins_of_now(stdin, call)
        self._pending_adds.cancel(attachment)
        async with self._locks.alone(attachment.container):
            receipt = self._node.ledger.receipts.get(attachment)
            if receipt is None:
                return
            with _rates_may_stay():
                await self.end(receipt, now)

    async def collect(self, call: CniEnvironment, stdin: bytes) -> None:
        """Handle GC: end every attachment and lease of this network that the runtime does not list as valid.

        An ADD under way when the call comes is left alone, because the list may be older than its end.
        Attachments that `reconcile` ends are ended as well. Without a list no attachment is. Rates may stay,
        as with DEL. GC does not say whether other plugins ran before this one on ADD. If none did, leases are
        kept under the network's own name, which receipts record; to guess that name would free other plugins'
        leases.
        """
        conf = decode_netconf(stdin, strict=False)
        plugins = called_plugins(stdin, conf, call, chained=True)
        if conf.attachments_to_keep is None:
            return
        valid = {
            Attachment(conf.name, kept_attachment.container_id, kept_attachment.ifname)
            for kept_attachment in conf.attachments_to_keep
        }
        unlisted = [
            attachment
            for attachment, receipt in dict(self._node.ledger.receipts).items()
            if attachment not in valid and receipt.network == conf.name
            if receipt.phase is not Phase.PREPARED
        ]
        await self.reconcile()
        problems = []
        for attachment in unlisted:
            try:
                with _rates_may_stay():
                    await self.end_if(
                        attachment, lambda kept_receipt: kept_receipt.phase is not Phase.PREPARED, plugins
                    )
            except K8sRdmaError as error:
                problems.append(error)
        try:
            await self._collect_leases(conf.name, valid, plugins)
        except K8sRdmaError as error:
            problems.append(error)
        if problems:
            raise together(problems)

    async def reconcile(self) -> bool:
        """End interrupted and orphaned attachments and deferred DELs. Returns whether any was ended.

        A container whose lock is taken is left alone; a failure is logged once, and tried again each time.
        """
        unfinished = await self._worker.run(self._node.unfinished)
        for attachment in self._failures.keys() - self._node.ledger.receipts.keys():
            del self._failures[attachment]
        free = [candidate for candidate in unfinished if not self._locks.busy(candidate.attachment.container)]
        waiting = iter(free)
        ended: list[bool] = []

        async def reconcile_waiting() -> None:
            ended.extend([await self._reconcile(receipt) for receipt in waiting])

        async with asyncio.TaskGroup() as tasks:
            for _ in free[:RECONCILED_AT_ONCE]:
                tasks.create_task(reconcile_waiting())
        return any(ended)

    async def _reconcile(self, receipt: Receipt) -> bool:
        attachment = receipt.attachment
        deferred = await self._worker.run(self._node.ledger_store.deferred_deletes.read, attachment)
        now = plugins_of_now(deferred.stdin, deferred.call) if deferred else None
        try:
            ended = await self.end_if(attachment, self._node.is_unfinished, now)
        except K8sRdmaError as error:
            failure = str(error), error.details
            if self._failures.get(attachment) != failure:
                container = attachment.container
                _log.warning("reconcile_failed", container=container, error=failure[0], details=failure[1])
            self._failures[attachment] = failure
            return False
        if ended and deferred:
            _log.info("left_deletion_done", container=attachment.container, ifname=attachment.ifname)
        return ended

    async def end_if(
        self,
        attachment: Attachment,
        ended: Callable[[Receipt], bool],
        now: CalledPlugins | None = None,
    ) -> bool:
        """End an attachment under its lock, if `ended` is true of it then. Returns whether it was ended."""
        async with self._locks.alone(attachment.container):
            receipt = self._node.ledger.receipts.get(attachment)
            if receipt is None or not await self._worker.run(ended, receipt):
                return False
            await self.end(receipt, now)
            return True

    async def end(self, receipt: Receipt, now: CalledPlugins | None = None) -> None:
        """Release everything, then drop the receipt; it stays if anything failed."""
        await self.give_back(receipt, now)
        await self._worker.run(self._node.forget, receipt.attachment)

    async def give_back(self, receipt: Receipt, now: CalledPlugins | None = None) -> None:
        """Release VFs, then their files and addresses; and call the delegate's DEL, even after a failure.

        Addresses stay leased until the VF is back on the host, as the pod may still use them. One
        K8sRdmaError names all failures; RatesLeftError when only rates are left.
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
        """Call the delegate's DEL; without a namespace that is gone, since its path may lead to another."""
        if receipt.delegate is None:
            return
        target = target_of(receipt)
        if await self._worker.run(self._node.orphaned, receipt):
            target = replace(target, netns="")
        delegate = now.delegate if now and target.ifname in receipt.unanswered else receipt.delegate
        await delete_by(
            receipt.delegate, delegate, lambda plugin: self._plugins.delegate.delete(plugin, target)
        )

    async def _give_vfs_back(self, receipt: Receipt, now: CalledPlugins | None) -> None:
        rates_left = await self._worker.run(self._detach, receipt)
        await self._plugins.ipam.delete(receipt, now)
        if rates_left is not None:
            raise rates_left

    def _detach(self, receipt: Receipt) -> RatesLeftError | None:
        """Bring the VFs home, and remove their files. Return the error if only rates are left.

        Then the addresses are free all the same.
        """
        rates_left = None
        try:
            self._node.detach(receipt)
        except RatesLeftError as error:
            rates_left = error
        self._device_specs.remove(receipt, self._node.ledger)
        return rates_left

    async def _collect_leases(self, network: str, valid: set[Attachment], plugins: CalledPlugins) -> None:
        """Have plugins free leases. Receipts of ours count as valid: their ADD may still be under way.

        Receipts name the plugins of their leases; beside those, only networks that are ours alone are
        collected.
        """
        receipts = self._node.ledger.receipts
        recorded = [
            ipam for receipt in receipts.values() if receipt.network == network for ipam in receipt.all_ipams
        ]
        ipams = {(ipam.plugin, network_of(ipam.netconf)): ipam for ipam in (*recorded, *plugins.all_ipams)}
        await self._plugins.ipam.collect(ipams.values(), receipts.values())
        if plugins.delegate is not None:
            theirs = valid | {key for key, receipt in receipts.items() if receipt.delegate is not None}
            await self._plugins.delegate.collect(
                plugins.delegate, sorted((ipam.container, ipam.ifname) for ipam in theirs)
            )


@contextmanager
def _rates_may_stay() -> Iterator[None]:
    try:
        yield
    except RatesLeftError as error:
        _log.warning("rates_left", error=str(error), details=error.details)


def together(problems: Sequence[K8sRdmaError]) -> K8sRdmaError:
    """Combine errors into one, with the reason of the first."""
    if len(problems) == 1:
        return problems[0]
    details = "; ".join(filter(None, (problem.details for problem in problems)))
    return K8sRdmaError("; ".join(map(str, problems)), reason=problems[0].reason, details=details)
