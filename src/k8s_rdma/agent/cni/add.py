"""CNI ADD: places, programs, configures and announces the interfaces of one attachment of a pod.

The VFs of the pod's stale sandboxes and interrupted ADDs are released first. The kernel does duplicate
address detection (RFC 4862); an ADD waits for it once for all interfaces of the pod, only where there are
IPv6 addresses and a link, and holds up no other pod.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import structlog

from k8s_rdma.agent.cluster.api_cluster import PodCluster
from k8s_rdma.agent.cluster.held_addresses import AddressRegistry, SingleNodeAddresses
from k8s_rdma.agent.cni.add_call import AddCall, pod_of
from k8s_rdma.agent.cni.grant import Grant, Policy, read_grant, resolve, slots_of_pod
from k8s_rdma.agent.cni.kubelet_devices import NOTHING_HELD, HeldDevices, PodDeviceLookup
from k8s_rdma.agent.cni.networks import interfaces_of_network, select_network, unknown_networks
from k8s_rdma.agent.ledger_store import PendingMarker, UnendedPodError
from k8s_rdma.agent.node import Node, UngivenError, rejected
from k8s_rdma.agent.pending_calls import WaitingCalls
from k8s_rdma.agent.plugins.called_plugins import CalledPlugins, called_plugins
from k8s_rdma.agent.plugins.execution import target_of
from k8s_rdma.agent.plugins.ipam import CniPlugins, addressing
from k8s_rdma.core.ledger import AllocatedInterface, Attachment, Pod, Receipt
from k8s_rdma.core.macs import addresses_of
from k8s_rdma.core.namespace_policy import NamespacePolicies
from k8s_rdma.core.placement import Rejection
from k8s_rdma.core.types import VfDriver
from k8s_rdma.core.vf_failures import FailedTry, to_avoid
from k8s_rdma.errors import K8sRdmaError, KernelError, Reason
from k8s_rdma.wire.annotation import request_name
from k8s_rdma.wire.annotation_keys import unknown_keys
from k8s_rdma.wire.claims import LONGEST_WAIT_S
from k8s_rdma.wire.cni_request import CniEnvironment, NetConf, decode_netconf, meaningless_keys, refuse
from k8s_rdma.wire.cni_result import ResultInterface, check_version, encode_result
from k8s_rdma.wire.ipam_result import IpamResult

if TYPE_CHECKING:
    from k8s_rdma.agent.cni.delete import DeleteCommand
    from k8s_rdma.agent.cni.node_access import NodeAccess
    from k8s_rdma.agent.sandbox import Sandbox
    from k8s_rdma.agent.worker import Worker
    from k8s_rdma.core.devices.pod_devices import SlotInUse
    from k8s_rdma.core.kernel import PodInterface
    from k8s_rdma.core.namespace_policy import NamespacePolicy
    from k8s_rdma.core.plan import Addressing
    from k8s_rdma.core.step import NetnsRef


_log = structlog.get_logger()

T = TypeVar("T")

FIRST_DETECTION_DELAY_S = 0.11
"""The time after which any station with the same address has objected, if the kernel probed at once
(`linux.pod_interface`)."""

DETECTION_POLL_INTERVAL_S = 0.05

HANDOVER_POLL_S, MOST_WAITING = 0.2, 64
"""The interval at which an ADD looks for a claim that another pod still has, and how many do so at a time."""

RETRY_WITHIN_S = 20.0
"""The time within which an ADD begins another try with other VFs: the executable waits for 60 s."""

DEADLINE_S = 3.0
"""The kernel may probe a second later (`rtr_solicit_delay`), and more than once (`dad_transmits`)."""


class AddCommand:
    """Makes attachments; after any failure it undoes everything before it raises the error.

    Changes that could not be undone stay in the ledger for the DEL that follows.
    """

    def __init__(
        self,
        *,
        access: NodeAccess,
        plugins: CniPlugins,
        pods: PodSources,
        delete_command: DeleteCommand,
        on_prepared: Callable[[], Awaitable[None]],
    ) -> None:
        """on_prepared: awaited after a receipt is on disk, before anything moves to the pod."""
        self._node = access.node
        self._worker = access.worker
        self._locks = access.locks
        self._pending_adds = access.pending_adds
        self._device_specs = access.device_specs
        self._plugins = plugins
        self._pod_devices = pods.devices
        self._cluster = pods.cluster
        self._addresses = pods.addresses
        self._policy = pods.policy
        self._delete_command = delete_command
        self._stale_sandboxes = StaleSandboxes(access, delete_command)
        self._on_prepared = on_prepared
        self._waiting = WaitingCalls(MOST_WAITING)
        self._named_keys: set[tuple[str, tuple[str, ...]]] = set()

    async def add(
        self,
        env: CniEnvironment,
        netns: NetnsRef,
        stdin: bytes,
        still_waiting: Callable[[], bool] = lambda: True,
    ) -> AddResult | None:
        """Give the pod its interfaces; None if it does not need any.

        still_waiting: checked when the call gets its lock, and at the end: no step is begun for a caller that
            has given up, and a finished attachment is undone. The same holds once a DEL of the attachment has
            come.
        """
        conf = decode_netconf(stdin)
        check_version(conf.cni_version)
        self._name_meaningless_keys(conf, stdin)
        plugins = called_plugins(stdin, conf, env, chained=conf.chained)
        if conf.chained and plugins.delegate is not None:
            refuse(
                "delegate",
                "another plugin ran before this one (prevResult) and already gives pods their interface",
            )
        pod = pod_of(env)
        attachment = Attachment(conf.name, env.container_id, env.ifname)
        with self._pending_adds.register(attachment, still_waiting) as pending:
            annotations = await self._annotations(conf, env, pod)
            if env.pod_name is not None and env.pod_uid is None and request_name(annotations) in annotations:
                pod = await self._cluster.identified(pod)
            call = MarkedCall(
                env=env,
                netns=netns,
                conf=conf,
                plugins=plugins,
                pod=pod,
                annotations=annotations,
                still_waiting=pending.still_waiting,
                marker=PendingMarker(self._node.ledger_store, env.container_id),
            )
            if unknown := unknown_keys(call.annotations):
                self._cluster.annotation_ignored(pod, "; ".join(unknown))
            try:
                return await self._add(call)
            except K8sRdmaError as error:
                if error.reason is not Reason.AGENT_UNREACHABLE:
                    self._cluster.refused(pod, error)
                raise
            finally:
                if call.marker.is_pending:
                    await self._worker.run(call.marker.end)

    def _name_meaningless_keys(self, conf: NetConf, stdin: bytes) -> None:
        """Log the keys of a network configuration that have no effect here, once for each network."""
        keys = meaningless_keys(stdin)
        if keys and (conf.name, keys) not in self._named_keys:
            self._named_keys.add((conf.name, keys))
            _log.warning("netconf_keys_meaningless", network=conf.name, keys=list(keys))

    async def _annotations(self, conf: NetConf, env: CniEnvironment, pod: Pod) -> Mapping[str, str]:
        if conf.pod_annotations is not None:
            return conf.pod_annotations
        if env.pod_name is None:
            return {}  # not Kubernetes': there is no pod that could ask for anything
        return await self._cluster.annotations(pod)

    async def _add(self, call: MarkedCall) -> AddResult | None:
        policies = self._policy.policies()
        requested = self._requested(call, policies)
        devices = await self._devices_of(call, requested)
        begin = partial(self._begin, call, requested, devices, policies.policy_for(call.pod.namespace))
        grant, slots = await self._once_handed_over(call, begin)
        if not call.marker.is_pending:
            call.allow_nothing()
            return None
        _require_waiting(call)
        async with self._locks.alone(call.env.container_id):
            entries = self._entries_of_network(call, grant)
            part = grant.part(entries).with_defaults(call.conf.vlan, call.conf.driver)
            sandbox = replace(
                call.sandbox(part.request, entries, slots, part.claimed), devices=part.devices, gpus=part.gpus
            )
            if not part.request and sandbox.delegate is None:
                call.allow_nothing()
                return None
            self._require(sandbox, part)
            limited = LimitedPod(
                pod=call.pod,
                annotated=grant.annotated,
                policies=policies,
                by_annotation=bool(requested.request),
            )
            return await self._give(call, sandbox, part, limited)

    def _requested(self, call: AddCall, policies: NamespacePolicies) -> Grant:
        """Return the part of the pod's grant by annotation, with the latest rates, on permitted PFs."""
        requested = read_grant(call.annotations, uid=call.pod.uid, node=self._node.name, policy=self._policy)
        if requested.ignored:
            _log.warning("placement_ignored", pod=call.pod.full_name, why=requested.ignored)
        placed, receipts = (
            self._cluster.placements().get(call.pod.uid),
            self._node.ledger.of_pod(call.pod.uid),
        )
        return requested.latest(placed, receipts).permitted(policies, call.pod.namespace)

    async def _once_handed_over(self, call: AddCall, begin: Callable[[], T]) -> T:
        """Begin on the node; wait for the end of a pod deleted by force that still has a claim of this one.

        The runtime would try the sandbox again only after 10 to 15 s.
        """
        deadline_s = time.monotonic() + LONGEST_WAIT_S
        while True:
            try:
                return await self._worker.run(begin)
            except UnendedPodError:
                if self._waiting.full or time.monotonic() >= deadline_s or not call.still_waiting():
                    raise
            with self._waiting.waiting():
                await asyncio.sleep(HANDOVER_POLL_S)

    def _begin(
        self, call: MarkedCall, requested: Grant, devices: HeldDevices, policy: NamespacePolicy
    ) -> tuple[Grant, tuple[SlotInUse, ...]]:
        """Return the pod's grant with its claims, and its slots; mark the container if it is to get anything.

        The executable passes on DELs of marked containers alone. A DEL that came before the marker followed a
        caller that had ended, which is checked after it.
        """
        claims = self._node.ledger_store.prepared_for(call.pod.uid)
        grant = resolve(requested, devices=devices, claims=claims, hardware=self._node.hardware)
        slots = slots_of_pod(devices.slots, call.annotations, policy, self._policy.memlock)
        if grant.request or call.plugins.delegate is not None:
            call.marker.begin()
        return grant, slots

    async def _devices_of(self, call: AddCall, requested: Grant) -> HeldDevices:
        if call.env.pod_name is None:
            return NOTHING_HELD  # not Kubernetes': kubelet does not know it
        return await self._pod_devices.devices_of(
            call.pod,
            required=bool(requested.request),
            near_gpus=requested.request.shape.near_gpus,
        )

    def _entries_of_network(self, call: AddCall, grant: Grant) -> tuple[int, ...]:
        receipts = (
            receipt
            for receipt in self._node.ledger.of_container(call.env.container_id)
            if receipt.attachment != call.attachment
        )
        own, annotations = call.conf.own_networks, call.annotations
        taken_entries = {interface.entry for receipt in receipts for interface in receipt.interfaces}
        part = interfaces_of_network(grant.request, own=own, attached=taken_entries, annotations=annotations)
        part = select_network(grant, part, call.conf, self._node.hardware, self._node.ledger)
        for index, network in unknown_networks(grant.request, own=own, annotations=annotations).items():
            _log.warning("network_not_seen", interface=index, network=network, attachment=call.conf.name)
        return part

    def _require(self, sandbox: Sandbox, part: Grant) -> None:
        """Raise K8sRdmaError for a plugin that is missing here, or the name of the delegate's interface."""
        ipams = dict(sandbox.ipams)
        netdevs = [
            interface for interface in part.request.interfaces if interface.options.driver is VfDriver.KERNEL
        ]
        networks = {interface.options.network for interface in netdevs}
        self._plugins.ipam.require(filter(None, {ipams.get(network, sandbox.ipam) for network in networks}))
        if sandbox.delegate is None:
            return
        self._plugins.delegate.require(sandbox.delegate)
        if sandbox.attachment.ifname in sandbox.ifnames:
            refuse(
                "interfaceNames", f"{sandbox.attachment.ifname} is what the delegate's interface is called"
            )

    async def _give(self, call: MarkedCall, sandbox: Sandbox, part: Grant, limited: LimitedPod) -> AddResult:
        """Choose VFs and attach them, or others if some cannot be given (`core.vf_failures`)."""
        deadline_s = time.monotonic() + RETRY_WITHIN_S
        tries: list[FailedTry] = []
        added: AddResult | None = None
        receipt = await self._prepare(call, sandbox, part, limited)
        choose = partial(self._prepare_node, part=part, limited=limited)
        try:
            while added is None:
                try:
                    added = await self._attach(call, receipt)
                except UngivenError as error:
                    tries.append(error.failed)
                    again = time.monotonic() < deadline_s and call.still_waiting()
                    successor = await self._successor(error, sandbox, choose, tries if again else ())
                    if successor is None:
                        raise
                    _log.warning("vf_not_given", vfs=sorted(error.failed.vfs), error=error.message)
                    receipt = successor
        finally:
            if tries or self._node.failures:
                await self._note_tries(tries, added.receipt.interfaces if added else (), sandbox.pod)
        self._log_attached(added, part, tries)
        return added

    async def _note_tries(
        self, tries: Sequence[FailedTry], interfaces: Sequence[AllocatedInterface], pod: Pod
    ) -> None:
        for vf in await self._worker.run(self._node.note_tries, tries, interfaces, pod.uid):
            _log.warning("vf_set_aside", pf=vf.pf, vf=vf.index)

    async def _successor(
        self,
        error: UngivenError,
        sandbox: Sandbox,
        choose: Callable[[Sandbox, Collection[Attachment]], Receipt | Rejection],
        tries: Sequence[FailedTry],
    ) -> Receipt | None:
        """Record other VFs in place of released ones; without others drop the receipt, and return None.

        choose: as `_prepare_node`. tries: those until now; empty if no other VFs are to be tried. A receipt
        whose VFs are not home stays.
        """
        if not error.undone:
            return None
        if tries:
            await self._worker.run(self._node.refresh)
        for avoided in to_avoid(tries, self._node.hardware):
            alternative, inherited = replace(sandbox, avoided=avoided), (sandbox.attachment,)
            try:
                found = await self._worker.run(choose, alternative, inherited)
            except K8sRdmaError as failure:
                _log.warning("other_vfs_not_tried", error=failure.message)
                break
            if not isinstance(found, Rejection):
                return found
        await self._worker.run(self._node.forget, sandbox.attachment)
        return None

    async def _prepare(self, call: AddCall, sandbox: Sandbox, part: Grant, limited: LimitedPod) -> Receipt:
        """Choose VFs and record them on disk, in place of the pod's VFs in sandboxes that no longer exist."""
        if part.annotated and part.promised is None:
            await self._cluster.wait_listed()
        async with AsyncExitStack() as locks:
            inherited = await self._stale_sandboxes.end(sandbox, locks, call.plugins)
            _require_waiting(call)
            self._node.placements = self._cluster.placements()
            own = part.request.interfaces[: part.annotated]
            await locks.enter_async_context(self._addresses.holding(addresses_of(own), by_claim=False))
            choose = partial(self._prepare_node, part=part, limited=limited)
            receipt = await self._worker.run(choose, sandbox, inherited)
        if isinstance(receipt, Rejection):
            raise rejected(receipt, sandbox.pod)
        return receipt

    def _prepare_node(
        self, sandbox: Sandbox, inherited: Collection[Attachment], *, part: Grant, limited: LimitedPod
    ) -> Receipt | Rejection:
        """Choose and record; first remove CDI files by which the pod's slots name another pod's devices."""
        limited.require(len(self._node.ledger.prepared_for(sandbox.pod.uid)))
        self._device_specs.clear(sandbox.slots, sandbox.attachment.container, self._node.ledger)
        return self._node.prepare(sandbox, part.request, part.promised, inherited=inherited)

    async def _attach(self, call: MarkedCall, receipt: Receipt) -> AddResult:
        answered: set[str] = set()
        try:
            await self._on_prepared()
            prev_result = bytes(call.conf.prev_result)
            if receipt.delegate is not None:
                prev_result = await self._plugins.delegate.add(receipt.delegate, target_of(receipt))
                answered.add(receipt.attachment.ifname)
            moved = self._plugins.ipam.has_calls(receipt)  # they may lease through the interfaces
            if moved:
                await self._worker.run(self._node.move_to_pod, receipt)
            addresses = await self._plugins.ipam.add(receipt, answered)
            interfaces = result_interfaces(receipt, addresses)
            result = encode_result(interfaces, call.conf.cni_version, prev_result)
            complete = partial(self._complete, call, receipt, addressing(addresses), moved=moved)
            receipt = await self._worker.run(complete)
            leased = {ifname: result.addresses for ifname, result in addresses.items()}
            await wait_for_address_detection(receipt, leased, node=self._node, worker=self._worker)
            _require_waiting(call)
        except BaseException as failure:
            ifnames = (receipt.attachment.ifname, *(interface.ifname for interface in receipt.interfaces))
            unanswered = tuple(name for name in ifnames if name not in answered)
            await self._undo(failure, replace(receipt, unanswered=unanswered))
            raise
        return AddResult(receipt=receipt, addresses=addresses, result=result)

    def _complete(
        self, call: MarkedCall, receipt: Receipt, addressing: Mapping[str, Addressing], *, moved: bool
    ) -> Receipt:
        """Bring the interfaces up, and write their CDI files; return the receipt as it is from here on.

        moved: whether they are in the pod; else they are moved first.
        """
        if not moved:
            self._node.move_to_pod(receipt)
        attached = self._node.attach(receipt, addressing)
        self._device_specs.write(attached, self._node.ledger)
        call.marker.end()
        return attached

    async def _undo(self, failure: BaseException, receipt: Receipt) -> None:
        """Release everything; the receipt stays after an UngivenError, so that no other pod gets its room."""
        try:
            if isinstance(failure, UngivenError):
                await self._delete_command.give_back(receipt)
                failure.undone = True
            else:
                await self._delete_command.end(receipt)
        except K8sRdmaError as error:
            failure.add_note(f"undoing it failed as well: {error}; {error.details}")

    def _log_attached(self, added: AddResult, part: Grant, tries: Sequence[FailedTry]) -> None:
        receipt = added.receipt
        if not receipt.interfaces:
            return
        self._cluster.attached(receipt, added.addresses)
        if part.ignored:
            self._cluster.placed_anew(receipt.pod, part.ignored)
        elif part.promised is not None and not part.devices:
            promised = [placed.pf for placed in part.promised.interfaces]
            pfs = [interface.vf.pf for interface in receipt.interfaces]
            if promised != pfs:
                failed = f"could not be given ({tries[-1].why})" if tries else "had no room"
                why = f"PF {', '.join(promised)} was promised and {failed}; given {', '.join(pfs)}"
                self._cluster.placed_anew(receipt.pod, why)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedCall(AddCall):
    """The call of an ADD that is under way. marker: of its container."""

    marker: PendingMarker


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedPod:
    """A pod whose interfaces by annotation and by claims count together.

    annotated: the number of those by annotation or exclusive devices. by_annotation: whether any are by
        annotation; claims alone were counted when they were prepared, and that stands.
    """

    pod: Pod
    annotated: int
    by_annotation: bool
    policies: NamespacePolicies

    def require(self, claimed: int) -> None:
        """Raise MalformedError (`NOT_ALLOWED`) for more interfaces than the namespace's pods may have.

        claimed: the number of interfaces that the pod has by claims now.
        """
        if self.by_annotation or (self.annotated and claimed):
            self.policies.permit_number(self.pod.namespace, self.annotated + claimed)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSources:
    """The sources of a pod's request: its cluster, kubelet, and the policy for both.

    devices: looks up devices of the device plugin's resources that kubelet allocated to pods.
    addresses: holds the MACs and GUIDs that pods ask for, in the cluster.
    """

    policy: Policy
    cluster: PodCluster
    devices: PodDeviceLookup = field(default_factory=PodDeviceLookup)
    addresses: AddressRegistry = field(default_factory=SingleNodeAddresses)


class StaleSandboxes:
    """Ends stale sandboxes of a pod for an ADD, which holds its own container's lock."""

    def __init__(self, access: NodeAccess, delete_command: DeleteCommand) -> None:
        """delete_command: ends each attachment of theirs."""
        self._node = access.node
        self._worker = access.worker
        self._locks = access.locks
        self._delete_command = delete_command

    async def end(
        self, sandbox: Sandbox, locks: AsyncExitStack, now: CalledPlugins
    ) -> tuple[Attachment, ...]:
        """Release what the pod has in sandboxes that no longer exist, and what an interrupted ADD left here.

        `Node.prepare` refuses VFs that the pod has in living sandboxes. Returns the attachments that the new
        receipt replaces, so that no other pod gets their VFs; `locks` keeps their containers until then.
        now: as in `DeleteCommand`.
        """
        await self._end_cut_short(sandbox.attachment, now)
        inherited = []
        for receipt in self._node.ledger.of_pod(sandbox.pod.uid):
            elsewhere = receipt.attachment.container != sandbox.attachment.container
            if elsewhere and await self._worker.run(self._node.is_unfinished, receipt):
                inherited.append(receipt)
        older = {receipt.attachment.container for receipt in inherited}
        free = {container for container in older if not self._locks.busy(container)}
        for container in free:
            await locks.enter_async_context(self._locks.alone(container))
        ended = (receipt.attachment for receipt in inherited if receipt.attachment.container in free)
        return await self._give_back(ended, now)

    async def _end_cut_short(self, attachment: Attachment, now: CalledPlugins) -> None:
        """End an interrupted attachment; K8sRdmaError (`ALREADY_ATTACHED`) for a complete one, of any pod."""
        receipt = self._node.ledger.receipts.get(attachment)
        if receipt is None:
            return
        if not await self._worker.run(self._node.is_unfinished, receipt):
            msg = f"container {attachment.container} already has its interfaces"
            raise K8sRdmaError(msg, reason=Reason.ALREADY_ATTACHED)
        await self._delete_command.end(receipt, now)

    async def _give_back(
        self, attachments: Iterable[Attachment], now: CalledPlugins
    ) -> tuple[Attachment, ...]:
        """Release attachments that are still in the ledger, and return these."""
        stale = tuple(candidate for candidate in attachments if candidate in self._node.ledger.receipts)
        for attachment in stale:
            await self._delete_command.give_back(self._node.ledger.receipts[attachment], now)
        return stale


def result_interfaces(receipt: Receipt, addresses: Mapping[str, IpamResult]) -> list[ResultInterface]:
    """List the attachment's interfaces for its result; a PCI function is not in the sandbox."""
    return [
        ResultInterface(
            name=interface.ifname,
            mac=interface.mac,
            sandbox=receipt.netns.path if interface.is_netdev else "",
            mtu=(interface.options.mtu or interface.home.mtu) if interface.is_netdev else 0,
            pci=interface.pci,
            ipam=addresses.get(interface.ifname, IpamResult()),
        )
        for interface in receipt.interfaces
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressDetection:
    """Addresses, each with its interface's name: `fd00::1/64 of rdma0`; see `core.kernel.PodInterface`."""

    duplicates: tuple[str, ...] = ()
    unusable: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()


def address_detection(
    addresses: Mapping[str, Collection[str]], found: Mapping[str, PodInterface]
) -> AddressDetection:
    """Sort addresses by the state of their duplicate address detection.

    The kernel cannot probe while an interface has no link; it does so when there is one.
    """
    duplicates, unusable, unverified = [], [], []
    for ifname, address in addresses.items():
        detected = found.get(ifname)
        if detected is None:
            continue
        ours = set(address)
        duplicates += [f"{duplicate} of {ifname}" for duplicate in sorted(ours & detected.duplicates)]
        if detected.carrier:
            unusable += [f"{duplicate} of {ifname}" for duplicate in sorted(ours & detected.unusable)]
            unverified += [f"{duplicate} of {ifname}" for duplicate in sorted(ours & detected.unverified)]
    return AddressDetection(
        duplicates=tuple(duplicates), unusable=tuple(unusable), unverified=tuple(unverified)
    )


async def wait_for_address_detection(
    receipt: Receipt,
    addresses: Mapping[str, tuple[str, ...]],
    *,
    node: Node,
    worker: Worker,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Wait until no other station objects to these addresses (CIDR form, by interface), then announce them.

    K8sRdmaError (`IPAM_FAILURE`) names addresses that another station has, or that are not usable in time.
    """
    ipv6_interfaces = {
        ifname: address
        for ifname, address in addresses.items()
        if any(":" in interface_address for interface_address in address)
    }
    if ipv6_interfaces:
        await _verify(receipt, ipv6_interfaces, node, worker, pause)
    if any(addresses.values()):
        await worker.run(node.announce, receipt, addresses)


async def _verify(
    receipt: Receipt,
    addresses: Mapping[str, tuple[str, ...]],
    node: Node,
    worker: Worker,
    pause: Callable[[float], Awaitable[None]],
) -> None:
    await pause(FIRST_DETECTION_DELAY_S)
    for _ in range(round((DEADLINE_S - FIRST_DETECTION_DELAY_S) / DETECTION_POLL_INTERVAL_S)):
        now = address_detection(addresses, await worker.run(node.inspect_pod, receipt))
        if now.duplicates:
            raise _unsettled(receipt, now.duplicates, "in use by another station of its network")
        if not (now.unusable or now.unverified):
            return
        await pause(DETECTION_POLL_INTERVAL_S)
    if now.unusable:
        why = f"duplicate address detection has not ended within {DEADLINE_S:g} s"
        raise _unsettled(receipt, now.unusable, why)


def _unsettled(receipt: Receipt, interfaces: tuple[str, ...], why: str) -> KernelError:
    msg = f"container {receipt.attachment.container}: address {', '.join(interfaces)}: {why}"
    return KernelError(msg, reason=Reason.IPAM_FAILURE)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddResult:
    """The outcome of an ADD. result: the CNI result for the runtime, in the version that it asked for."""

    receipt: Receipt
    addresses: Mapping[str, IpamResult]
    result: bytes


def _require_waiting(call: AddCall) -> None:
    """Raise K8sRdmaError if no caller waits for the answer: no DEL may ever come for it."""
    if not call.still_waiting():
        msg = f"container {call.env.container_id}: the runtime no longer waits for its ADD"
        raise K8sRdmaError(msg, reason=Reason.AGENT_UNREACHABLE)
