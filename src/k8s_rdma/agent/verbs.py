"""The CNI verbs: what each call of the runtime does to the node.

Source: CNI specification 1.1.0, section 2. All calls for one container run one after the other; those of
different containers meet only at the worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from k8s_rdma.agent.ipam import addressing
from k8s_rdma.agent.node import Sandbox, held_elsewhere, rejected
from k8s_rdma.agent.release import RatesLeftError
from k8s_rdma.agent.turns import Turns
from k8s_rdma.agent.wanted import wanted
from k8s_rdma.core.ids import PodUid
from k8s_rdma.core.ledger import Attachment, DelegatedPlugin, Phase, Pod
from k8s_rdma.core.placement import Rejection
from k8s_rdma.errors import K8sRdmaError, Reason
from k8s_rdma.wire.netconf import POD_ANNOTATIONS, decode_netconf, ipam_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from k8s_rdma.agent.ipam import IpamPlugins
    from k8s_rdma.agent.node import Node
    from k8s_rdma.agent.wanted import Policy, Wanted
    from k8s_rdma.agent.worker import Worker
    from k8s_rdma.core.ledger import Receipt
    from k8s_rdma.core.step import NetnsRef
    from k8s_rdma.wire.cni_environment import CniEnvironment
    from k8s_rdma.wire.ipam_result import IpamResult
    from k8s_rdma.wire.netconf import NetConf

_log = structlog.get_logger()


class Verbs:
    """ADD, DEL, CHECK and GC on one node."""

    def __init__(
        self,
        *,
        node: Node,
        worker: Worker,
        ipam: IpamPlugins,
        policy: Policy,
        claimed: Callable[[], Awaitable[None]],
    ) -> None:
        """claimed: awaited after a claim is on disk, before the pod gets anything of it."""
        self._node = node
        self._worker = worker
        self._ipam = ipam
        self._policy = policy
        self._claimed = claimed
        self._turns = Turns()

    async def add(
        self,
        call: CniEnvironment,
        netns: NetnsRef,
        stdin: bytes,
        still_waiting: Callable[[], bool] = lambda: True,
    ) -> tuple[Receipt, Mapping[str, IpamResult]] | None:
        """Give the pod its interfaces; None when it asks for none.

        still_waiting: asked when its turn has come; nothing is begun for a caller that has given up.

        Whatever fails, everything is undone before the error goes out; what could not be undone stays in
        the ledger for the DEL that follows.
        """
        netconf = decode_netconf(stdin)
        pod = _pod(call)
        wants = self._wanted(netconf, pod)
        if not wants.request:
            return None
        sandbox = Sandbox(
            attachment=Attachment(netconf.name, call.container_id, call.ifname),
            pod=pod,
            netns=netns,
            ifnames=netconf.interface_names(len(wants.request.interfaces)),
            entries=tuple(range(len(wants.request.interfaces))),
            ipam=_ipam(stdin, call),
        )
        self._ipam.require([sandbox.ipam] if sandbox.ipam else [])
        async with self._turns.alone(call.container_id):
            await self._end_predecessors(sandbox)
            if not still_waiting():
                msg = f"container {call.container_id}: the runtime no longer waits for its ADD"
                raise K8sRdmaError(msg, reason=Reason.AGENT_UNREACHABLE)
            return await self._attach(sandbox, wants)

    async def delete(self, call: CniEnvironment, network: str) -> None:
        """Take back what the attachment holds; nothing is success as well.

        So are rates that cannot be reset while the link is down: the pod has nothing any more, and must not
        stay for them. `reconcile` sees to them; until then nobody else gets these VFs.
        """
        async with self._turns.alone(call.container_id):
            receipt = self._node.ledger.receipts.get(Attachment(network, call.container_id, call.ifname))
            if receipt is None:
                return
            try:
                await self._end(receipt)
            except RatesLeftError as error:
                _log.warning("rates_left", error=str(error), details=error.details)

    async def check(self, call: CniEnvironment, network: str) -> None:
        """K8sRdmaError when the attachment is not what its ADD made of it."""
        receipt = self._node.ledger.receipts.get(Attachment(network, call.container_id, call.ifname))
        if receipt is None:
            return  # a pod that asked for nothing
        if receipt.phase is not Phase.ATTACHED or await self._worker.run(self._node.orphaned, receipt):
            msg = f"container {call.container_id}: its sandbox is gone or its interfaces are being taken back"
            raise K8sRdmaError(msg, reason=Reason.UNKNOWN_CONTAINER)

    async def collect(self, netconf: NetConf) -> None:
        """GC: end every attachment of this network that the runtime does not hold valid."""
        if netconf.valid_attachments is None:
            return
        valid = {
            Attachment(netconf.name, each.container_id, each.ifname) for each in netconf.valid_attachments
        }
        problems = []
        for attachment, receipt in dict(self._node.ledger.receipts).items():
            if receipt.network != netconf.name or attachment in valid or receipt.phase is Phase.PREPARED:
                continue
            try:
                await self._end_if(attachment, lambda held: held.phase is not Phase.PREPARED)
            except K8sRdmaError as error:
                problems.append(error)
        if problems:
            raise _together(problems)

    async def reconcile(self) -> bool:
        """End what no call will end: attachments cut short, or whose sandbox vanished; whether any was.

        What is being worked on is left alone; what fails stays for the next time, and is logged.
        """
        ended = False
        for receipt in await self._worker.run(self._node.unfinished):
            container = receipt.attachment.container
            if self._turns.busy(container):
                continue
            try:
                ended |= await self._end_if(receipt.attachment, self._node.is_unfinished)
            except K8sRdmaError as error:
                _log.warning("reconcile_failed", container=container, error=str(error), details=error.details)
        return ended

    async def idle(self) -> None:
        """Wait until no attachment is being made or ended: for work that would only hold them up."""
        await self._turns.idle()

    def _wanted(self, netconf: NetConf, pod: Pod) -> Wanted:
        if netconf.pod_annotations is None:
            msg = (
                "the runtime delivered no pod annotations; set "
                f'"capabilities": {{"{POD_ANNOTATIONS}": true}} in the network configuration {netconf.name}'
            )
            raise K8sRdmaError(msg, reason=Reason.INVALID_NETCONF)
        wants = wanted(netconf.pod_annotations, uid=pod.uid, node=self._node.name, policy=self._policy)
        if wants.ignored:
            _log.warning("placement_ignored", pod=f"{pod.namespace}/{pod.name}", why=wants.ignored)
        return wants

    async def _attach(self, sandbox: Sandbox, wants: Wanted) -> tuple[Receipt, Mapping[str, IpamResult]]:
        receipt = await self._worker.run(self._node.prepare, sandbox, wants.request, wants.promised)
        if isinstance(receipt, Rejection):
            raise rejected(receipt, sandbox.pod)
        try:
            await self._claimed()
            results = await self._ipam.add(receipt)
            return await self._worker.run(self._node.attach, receipt, addressing(results)), results
        except BaseException as failure:
            try:
                await self._end(receipt)
            except K8sRdmaError as error:
                failure.add_note(f"taking it back failed as well: {error}; {error.details}")
            raise

    async def _end_predecessors(self, sandbox: Sandbox) -> None:
        """End what the pod held in sandboxes that are gone, and what an ADD cut short left in this one.

        What it holds elsewhere is left to `Node.prepare` to refuse.
        """
        for receipt in self._node.ledger.of_pod(sandbox.pod.uid):
            unfinished = await self._worker.run(self._node.is_unfinished, receipt)
            if receipt.attachment == sandbox.attachment:
                if not unfinished:
                    msg = f"container {receipt.attachment.container} has its interfaces already"
                    raise K8sRdmaError(msg, reason=Reason.ALREADY_ATTACHED)
                await self._end(receipt)
            elif receipt.attachment.container == sandbox.attachment.container:
                raise held_elsewhere(receipt)
            elif unfinished and not self._turns.busy(receipt.attachment.container):
                await self._end_if(receipt.attachment, self._node.is_unfinished)

    async def _end_if(self, attachment: Attachment, ended: Callable[[Receipt], bool]) -> bool:
        """End an attachment when its turn has come, if `ended` holds of it then; whether it was."""
        async with self._turns.alone(attachment.container):
            receipt = self._node.ledger.receipts.get(attachment)
            if receipt is None or not await self._worker.run(ended, receipt):
                return False
            await self._end(receipt)
            return True

    async def _end(self, receipt: Receipt) -> None:
        """VFs home, then addresses back, then the receipt gone; it stays if anything of this failed."""
        left = None
        try:
            await self._worker.run(self._node.detach, receipt)
        except RatesLeftError as error:
            left = error  # the addresses are nobody's all the same
        await self._ipam.delete(receipt)
        if left is not None:
            await self._worker.run(self._node.keep_for_rates, receipt.attachment)
            raise left
        await self._worker.run(self._node.forget, receipt.attachment)


def _together(problems: Sequence[K8sRdmaError]) -> K8sRdmaError:
    details = "; ".join(filter(None, (problem.details for problem in problems)))
    return K8sRdmaError("; ".join(map(str, problems)), reason=problems[0].reason, details=details)


def _pod(call: CniEnvironment) -> Pod:
    """The pod; without a UID (a runtime that is not Kubernetes') its container stands for it."""
    return Pod(
        namespace=call.pod_namespace or "",
        name=call.pod_name or call.container_id,
        uid=call.pod_uid or PodUid(f"container:{call.container_id}"),
    )


def _ipam(stdin: bytes, call: CniEnvironment) -> DelegatedPlugin | None:
    ipam = ipam_of(stdin)
    if ipam is None:
        return None
    return DelegatedPlugin(
        plugin=ipam.plugin, netconf=ipam.netconf, cni_path=call.path, cni_args=call.raw_args
    )
