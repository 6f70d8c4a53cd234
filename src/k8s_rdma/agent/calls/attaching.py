"""ADD: what a pod asks for, given to it by one of its attachments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import structlog

from k8s_rdma.agent.calls.add_call import AddCall, pod_of
from k8s_rdma.agent.calls.held_devices import NOTHING_HELD
from k8s_rdma.agent.calls.pool_pods import of_devices, of_network
from k8s_rdma.agent.calls.predecessors import Predecessors
from k8s_rdma.agent.calls.results import result_interfaces
from k8s_rdma.agent.calls.settling import settle
from k8s_rdma.agent.calls.share import doubtful, share
from k8s_rdma.agent.calls.wanted import wanted
from k8s_rdma.agent.plugins.called import called_plugins
from k8s_rdma.agent.plugins.ipam import addressing
from k8s_rdma.agent.plugins.runner import target_of
from k8s_rdma.agent.sandbox import Sandbox, rejected
from k8s_rdma.core.ledger import Attachment, Pod, Receipt
from k8s_rdma.core.options import VfDriver
from k8s_rdma.core.placement import Rejection
from k8s_rdma.errors import K8sRdmaError, Reason
from k8s_rdma.wire.cni_result import check_version, encode_result
from k8s_rdma.wire.ipam_result import IpamResult
from k8s_rdma.wire.netconf import NetConf, decode_netconf, refuse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Collection

    from k8s_rdma.agent.calls.ending import Ending
    from k8s_rdma.agent.calls.held_devices import HeldDevices
    from k8s_rdma.agent.calls.means import Means
    from k8s_rdma.agent.calls.wanted import Policy, Wanted
    from k8s_rdma.core.step import NetnsRef
    from k8s_rdma.wire.cni_environment import CniEnvironment

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What an attachment gave its pod. result: what the runtime is told, in the version that it asked for."""

    receipt: Receipt
    addresses: Mapping[str, IpamResult]
    result: bytes


class Attaching:
    """Makes attachments; whatever fails, everything is undone before the error goes out.

    What could not be undone stays in the ledger for the DEL that follows.
    """

    def __init__(
        self, means: Means, ending: Ending, policy: Policy, claimed: Callable[[], Awaitable[None]]
    ) -> None:
        """claimed: awaited after a claim is on disk, before the pod gets anything of it."""
        self._node = means.node
        self._worker = means.worker
        self._turns = means.turns
        self._pending_adds = means.pending_adds
        self._ipam = means.ipam
        self._delegate = means.delegate
        self._devices = means.devices
        self._holdings = means.holdings
        self._cluster = means.cluster
        self._ending = ending
        self._predecessors = Predecessors(means, ending)
        self._policy = policy
        self._claimed = claimed

    async def add(
        self, env: CniEnvironment, netns: NetnsRef, stdin: bytes, still_waiting: Callable[[], bool]
    ) -> Given | None:
        """Give the pod its interfaces; None when nothing was given, and nothing need be.

        still_waiting: asked when its turn has come, and at the end: nothing is begun for a caller that has
            given up, and what was given is taken back. The same holds once a DEL of the attachment has come.
        """
        conf = decode_netconf(stdin)
        check_version(conf.cni_version)
        plugins = called_plugins(stdin, conf, env, beside_others=conf.chained)
        if conf.chained and plugins.delegate is not None:
            refuse(
                "delegate", "another plugin ran before this one (prevResult) and gives pods their interface"
            )
        pod = pod_of(env)
        with self._pending_adds.register(Attachment(conf.name, env.container_id, env.ifname)) as pending:
            call = AddCall(
                env=env,
                netns=netns,
                conf=conf,
                plugins=plugins,
                pod=pod,
                annotations=await self._annotations(conf, env, pod),
                still_waiting=lambda: not pending.cancelled and still_waiting(),
            )
            try:
                return await self._add(call)
            except K8sRdmaError as error:
                if error.reason is not Reason.AGENT_UNREACHABLE:
                    self._cluster.refused(pod, error)
                raise

    async def _annotations(self, conf: NetConf, env: CniEnvironment, pod: Pod) -> Mapping[str, str]:
        if conf.pod_annotations is not None:
            return conf.pod_annotations
        if env.pod_name is None:
            return {}  # not Kubernetes': there is no pod that could ask for anything
        return await self._cluster.annotations(pod)

    async def _add(self, call: AddCall) -> Given | None:
        wants = wanted(call.annotations, uid=call.pod.uid, node=self._node.name, policy=self._policy)
        wants = wants.permitted(self._policy.policies(), call.pod.namespace)
        if wants.ignored:
            _log.warning("placement_ignored", pod=f"{call.pod.namespace}/{call.pod.name}", why=wants.ignored)
        held = await self._held(call, wants)
        wants = of_devices(wants, held.exclusive, self._node.hardware)
        if not wants.request and call.plugins.delegate is None:
            call.allow_nothing()
            return None
        async with self._marked(call), self._turns.alone(call.env.container_id):
            entries = self._share(call, wants)
            part = wants.part(entries).with_defaults(call.conf.vlan, call.conf.driver)
            sandbox = replace(call.sandbox(part.request, entries, held.slots), devices=part.devices)
            if not part.request and sandbox.delegate is None:
                call.allow_nothing()
                return None
            self._require(sandbox, part)
            receipt = await self._claim(call, sandbox, part)
            return await self._attach(call, receipt, part)

    @asynccontextmanager
    async def _marked(self, call: AddCall) -> AsyncIterator[None]:
        """Have DELs of the container come to us while its ADD is under way; without a marker none does.

        A DEL that came before the marker followed a caller that was ended, which is seen after it.
        """
        container = call.env.container_id
        await self._worker.run(self._node.begin_add, container)
        try:
            _require_waiting(call)
            yield
        finally:
            await self._worker.run(self._node.end_add, container)

    async def _held(self, call: AddCall, wants: Wanted) -> HeldDevices:
        if call.env.pod_name is None:
            return NOTHING_HELD  # not Kubernetes': kubelet knows nothing of it
        return await self._holdings.of(call.pod, asks=bool(wants.request))

    def _share(self, call: AddCall, wants: Wanted) -> tuple[int, ...]:
        others = (
            receipt
            for receipt in self._node.ledger.of_container(call.env.container_id)
            if receipt.attachment != call.attachment
        )
        own, annotations = call.conf.own_networks, call.annotations
        taken = {interface.entry for receipt in others for interface in receipt.interfaces}
        part = share(wants.request, own=own, taken=taken, annotations=annotations)
        part = of_network(wants, part, call.conf, self._node.hardware, self._node.ledger)
        for index, network in doubtful(wants.request, own=own, annotations=annotations).items():
            _log.warning("network_not_seen", interface=index, network=network, attachment=call.conf.name)
        return part

    def _require(self, sandbox: Sandbox, part: Wanted) -> None:
        """K8sRdmaError for a plugin that is not on this node, or a name that the delegate's interface has."""
        ipams = dict(sandbox.ipams)
        netdevs = [each for each in part.request.interfaces if each.options.driver is VfDriver.KERNEL]
        networks = {each.options.network for each in netdevs}
        self._ipam.require(filter(None, {ipams.get(network, sandbox.ipam) for network in networks}))
        if sandbox.delegate is None:
            return
        self._delegate.require(sandbox.delegate)
        if sandbox.attachment.ifname in sandbox.ifnames:
            refuse(
                "interfaceNames", f"{sandbox.attachment.ifname} is what the delegate's interface is called"
            )

    async def _claim(self, call: AddCall, sandbox: Sandbox, part: Wanted) -> Receipt:
        """Choose, and record it on disk, in place of what the pod held in sandboxes that are gone."""
        if part.request and part.promised is None:
            await self._cluster.claims_known()
        async with AsyncExitStack() as turns:
            inherited = await self._predecessors.end(sandbox, turns, call.plugins)
            _require_waiting(call)
            self._node.claims = self._cluster.claims()
            receipt = await self._worker.run(self._prepare, sandbox, part, inherited)
        if isinstance(receipt, Rejection):
            raise rejected(receipt, sandbox.pod)
        return receipt

    def _prepare(
        self, sandbox: Sandbox, part: Wanted, inherited: Collection[Attachment]
    ) -> Receipt | Rejection:
        """Choose and record; first nobody is told any more that its slots are another pod's devices."""
        self._devices.clear(sandbox.slots, sandbox.attachment.container, self._node.ledger)
        return self._node.prepare(sandbox, part.request, part.promised, inherited=inherited)

    async def _attach(self, call: AddCall, receipt: Receipt, part: Wanted) -> Given:
        answered: set[str] = set()
        try:
            await self._claimed()
            before = bytes(call.conf.prev_result)
            if receipt.delegate is not None:
                before = await self._delegate.add(receipt.delegate, target_of(receipt))
                answered.add(receipt.attachment.ifname)
            await self._worker.run(self._node.give, receipt)
            addresses = await self._ipam.add(receipt, answered)
            interfaces = result_interfaces(receipt, addresses)
            result = encode_result(interfaces, call.conf.cni_version, before)
            receipt = await self._worker.run(self._node.attach, receipt, addressing(addresses))
            given = {ifname: result.addresses for ifname, result in addresses.items()}
            await settle(receipt, given, node=self._node, worker=self._worker)
            await self._worker.run(lambda: self._devices.write(receipt, self._node.ledger))
            _require_waiting(call)
        except BaseException as failure:
            asked = (receipt.attachment.ifname, *(interface.ifname for interface in receipt.interfaces))
            unanswered = tuple(name for name in asked if name not in answered)
            try:
                await self._ending.end(replace(receipt, unanswered=unanswered))
            except K8sRdmaError as error:
                failure.add_note(f"taking it back failed as well: {error}; {error.details}")
            raise
        self._tell(receipt, part, addresses)
        return Given(receipt=receipt, addresses=addresses, result=result)

    def _tell(self, receipt: Receipt, part: Wanted, addresses: Mapping[str, IpamResult]) -> None:
        if not receipt.interfaces:
            return
        self._cluster.attached(receipt, addresses)
        if part.ignored:
            self._cluster.placed_anew(receipt.pod, part.ignored)
        elif part.promised is not None and not part.devices:
            promised = [placed.pf for placed in part.promised.interfaces]
            given = [interface.vf.pf for interface in receipt.interfaces]
            if promised != given:
                why = f"PF {', '.join(promised)} was promised and had no room; given {', '.join(given)}"
                self._cluster.placed_anew(receipt.pod, why)


def _require_waiting(call: AddCall) -> None:
    """K8sRdmaError where nobody takes the answer: no DEL may ever come for what it tells of."""
    if not call.still_waiting():
        msg = f"container {call.env.container_id}: the runtime no longer waits for its ADD"
        raise K8sRdmaError(msg, reason=Reason.AGENT_UNREACHABLE)
