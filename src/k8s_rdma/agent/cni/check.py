"""CNI CHECK compares an attachment with the result of its ADD; STATUS tells whether an ADD could succeed.

Source: CNI specification 1.1.0, section 2 "CHECK": the plugin checks the interfaces that it made and their
part of `prevResult`, and calls CHECK of the plugins that it called. containerd calls STATUS every few
seconds, and the answer makes the node Ready or not: it uses the last observation, and does not query the
kernel.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from k8s_rdma.agent.cni.add_call import pod_of
from k8s_rdma.agent.cni.grant import Grant, read_grant, resolve
from k8s_rdma.agent.cni.kubelet_devices import NOTHING_HELD, HeldDevices
from k8s_rdma.agent.cni.networks import interfaces_of_network, select_network
from k8s_rdma.agent.plugins.called_plugins import called_plugins
from k8s_rdma.agent.plugins.execution import target_of
from k8s_rdma.core.ledger import AllocatedInterface, Attachment, Phase, Receipt
from k8s_rdma.core.step import VfRate
from k8s_rdma.errors import K8sRdmaError, KernelError, Reason
from k8s_rdma.wire.cni_request import CniEnvironment, NetConf, decode_netconf
from k8s_rdma.wire.cni_result import without_interfaces
from k8s_rdma.wire.previous_result import SUBJECT, InterfaceInPod, addresses_of, interfaces_in_pod

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from k8s_rdma.agent.cni.add import PodSources
    from k8s_rdma.agent.cni.node_access import NodeAccess
    from k8s_rdma.agent.node import Node
    from k8s_rdma.agent.plugins.ipam import CniPlugins
    from k8s_rdma.core.kernel import Hardware, PodInterface

_log = structlog.get_logger()

RECHECK_PAUSES_S = (0.0, 0.05, 0.1)
"""Pauses before repeated checks. A single check may meet a namespace's end, or another pod's VF while it
moves, and the runtime would end the pod."""


@dataclass(frozen=True, slots=True)
class Findings:
    """One check's findings: differences from the ADD, and parts that could not be read; a clause each."""

    altered: tuple[str, ...]
    unreadable: tuple[str, ...]


class CheckCommand:
    """Checks attachments and the node, without a change."""

    def __init__(self, access: NodeAccess, plugins: CniPlugins, pods: PodSources) -> None:
        """pods: the same as for ADD."""
        self._node = access.node
        self._worker = access.worker
        self._locks = access.locks
        self._device_specs = access.device_specs
        self._plugins = plugins
        self._pods = pods

    async def check(self, call: CniEnvironment, stdin: bytes) -> None:
        """Raise K8sRdmaError: `ALTERED` for differences, `UNKNOWN_CONTAINER` for a missing attachment.

        Failures of other plugins are passed on as they are.
        """
        conf = decode_netconf(stdin, strict=False)
        attachment = Attachment(conf.name, call.container_id, call.ifname)
        async with self._locks.alone(call.container_id):
            receipt = self._node.ledger.receipts.get(attachment)
            if receipt is None:
                await self._require_none_wanted(conf, call)
                return
            if receipt.phase is not Phase.ATTACHED or await self._worker.run(self._node.orphaned, receipt):
                msg = f"container {call.container_id}: its sandbox is gone, or its interfaces are released"
                raise K8sRdmaError(msg, reason=Reason.UNKNOWN_CONTAINER)
            await self._require_unaltered(receipt, conf)
            await self._check_delegates(receipt, conf)

    async def require_ready(self, call: CniEnvironment, stdin: bytes) -> None:
        """Raise K8sRdmaError (`NOT_READY`) when ledger, hardware or another plugin let no ADD succeed."""
        conf = decode_netconf(stdin)
        plugins = called_plugins(stdin, conf, call, chained=True)
        try:
            await self._worker.run(self._node.ledger_store.require_writable)
            _require_hardware(self._node, delegates=plugins.delegate is not None)
            self._plugins.ipam.require(plugins.all_ipams)
            if plugins.delegate is not None:
                await self._plugins.delegate.status(plugins.delegate)
        except K8sRdmaError as error:
            raise K8sRdmaError(error.message, reason=Reason.NOT_READY, details=error.details) from error

    async def _require_none_wanted(self, conf: NetConf, call: CniEnvironment) -> None:
        """Raise K8sRdmaError if the pod is to have interfaces of this network, and is without.

        It may ask by annotation, hold exclusive devices, or have interfaces by claims, as on ADD.
        """
        annotations = await self._annotations(conf, call)
        uid = pod_of(call).uid
        requested = read_grant(annotations, uid=uid, node=self._node.name, policy=self._pods.policy)
        devices = await self._devices(call, requested)
        claims = self._node.ledger.prepared_for(uid)
        grant = resolve(requested, devices=devices, claims=claims, hardware=self._node.hardware)
        receipts = self._node.ledger.of_container(call.container_id)
        taken_entries = {interface.entry for receipt in receipts for interface in receipt.interfaces}
        part = interfaces_of_network(
            grant.request, own=conf.own_networks, attached=taken_entries, annotations=annotations
        )
        if devices is not None:
            part = select_network(grant, part, conf, self._node.hardware, self._node.ledger)
        if part:
            msg = f"container {call.container_id}: it requests interfaces of network {conf.name} and has none"
            raise K8sRdmaError(msg, reason=Reason.UNKNOWN_CONTAINER)

    async def _annotations(self, conf: NetConf, call: CniEnvironment) -> Mapping[str, str]:
        """Return the pod's annotations; empty, with a warning, if they cannot be read now."""
        if conf.pod_annotations is not None or call.pod_name is None:
            return conf.pod_annotations or {}
        try:
            return await self._pods.cluster.annotations(pod_of(call))
        except K8sRdmaError as error:
            _log.warning("check_incomplete", unreadable=[error.message])
            return {}

    async def _devices(self, call: CniEnvironment, requested: Grant) -> HeldDevices | None:
        """Return the pod's devices; None, with a warning, if kubelet does not list them now."""
        if call.pod_name is None:
            return NOTHING_HELD
        try:
            return await self._pods.devices.devices_of(
                pod_of(call), required=bool(requested.request), near_gpus=requested.request.shape.near_gpus
            )
        except K8sRdmaError as error:
            if error.reason is not Reason.KUBELET_FAILURE:
                raise
            _log.warning("check_incomplete", unreadable=[error.message])
            return None

    async def _require_unaltered(self, receipt: Receipt, conf: NetConf) -> None:
        """Raise K8sRdmaError for differences that several checks in a row found.

        Parts that the last check could not read are logged; they are not the pod's fault.
        """
        reported = interfaces_in_pod(conf.prev_result)
        findings = await self._worker.run(self._findings, receipt, reported)
        for pause_s in RECHECK_PAUSES_S:
            if not findings.altered and not findings.unreadable:
                return
            await asyncio.sleep(pause_s)
            findings = await self._worker.run(self._findings, receipt, reported)
        if findings.altered:
            first, *further = findings.altered
            msg = f"container {receipt.attachment.container}: {first}"
            raise K8sRdmaError(msg, reason=Reason.ALTERED, details="; ".join(further))
        if findings.unreadable:
            _log.warning("check_incomplete", unreadable=list(findings.unreadable))

    def _findings(self, receipt: Receipt, reported: Mapping[str, InterfaceInPod]) -> Findings:
        """Check once against the current kernel state; an earlier observation does not count."""
        altered: list[str] = []
        unreadable: list[str] = []
        try:
            altered += _wrong_in_pod(receipt, self._node.inspect_pod(receipt), reported)
        except KernelError as error:
            unreadable.append(str(error))
        self._node.refresh()
        hardware = self._node.hardware
        if self._node.scanner.error:
            unreadable.append(self._node.scanner.error)
        else:
            unreadable += (f"{item.subject}: {item.why}" for item in hardware.unreadable)
            altered += _wrong_on_pf(receipt, hardware)
        altered += self._device_specs.wrong(receipt, self._node.ledger)
        return Findings(tuple(altered), tuple(unreadable))

    async def _check_delegates(self, receipt: Receipt, conf: NetConf) -> None:
        ours = {interface.ifname for interface in receipt.interfaces}
        await self._plugins.ipam.check(receipt, addresses_of(conf.prev_result, ours))
        if receipt.delegate is not None:
            theirs = without_interfaces(bytes(conf.prev_result), ours, SUBJECT) if conf.prev_result else b""
            await self._plugins.delegate.check(receipt.delegate, target_of(receipt), theirs)


def _require_hardware(node: Node, *, delegates: bool) -> None:
    """Raise K8sRdmaError unless the node can give pods VFs.

    delegates: pods get an interface without a VF, so that a node without such cards is ready, too.
    """
    if node.scanner.error:
        msg = f"node {node.name}: its hardware cannot be looked at: {node.scanner.error}"
        raise K8sRdmaError(msg)
    pfs = node.hardware.pfs
    if any(pf.vfs for pf in pfs) or (delegates and not pfs and not node.hardware.unreadable):
        return
    unreadable = (f"{item.subject}: {item.why}" for item in node.hardware.unreadable)
    hidden = "; ".join((*unreadable, *node.hardware.problems))
    finding = f"none of PFs {', '.join(pf.name for pf in pfs)} has VFs" if pfs else "there is no SR-IOV PF"
    msg = f"node {node.name}: {finding}; has k8s-rdma init ended well here?"
    raise K8sRdmaError(msg, details=hidden)


def _wrong_in_pod(
    receipt: Receipt, observed: Mapping[str, PodInterface], expected: Mapping[str, InterfaceInPod]
) -> Iterator[str]:
    """Describe how interfaces in the pod differ from their receipt, a clause each."""
    for interface in receipt.interfaces:
        if not interface.is_netdev:
            continue
        name, now = interface.ifname, observed.get(interface.ifname)
        if now is None:
            yield f"interface {name} is not in the pod"
            continue
        yield from _wrong_netdev(interface, now)
        leased = expected[name].addresses if name in expected else frozenset()
        if missing := leased - now.addresses:
            yield f"interface {name} has lost {', '.join(sorted(missing))}"
        if shared := leased & now.duplicates:
            yield f"interface {name} has {', '.join(sorted(shared))}, and so has another station there"


def _wrong_netdev(interface: AllocatedInterface, now: PodInterface) -> Iterator[str]:
    """Describe how an interface in the pod differs from the one that the pod was given, addresses aside."""
    name = interface.ifname
    if now.mac != interface.mac:
        yield f"interface {name} has MAC {now.mac}, was given {interface.mac}"
    if not now.is_up:
        yield f"interface {name} is down"
    mtu = interface.options.mtu  # another one is that of a plugin behind ours, such as `tuning`
    if mtu and now.mtu != mtu:
        yield f"interface {name} has MTU {now.mtu}, was given {mtu}"
    if now.xdp:
        yield f"interface {name} has XDP program {now.xdp}, was given without one"
    cap = interface.software_max_tx_rate_mbps
    if cap and now.max_tx_rate_mbps != cap:
        limit = f"limited to {now.max_tx_rate_mbps} Mb/s" if now.max_tx_rate_mbps else "not limited"
        yield f"interface {name} is {limit} by software, was given {cap} Mb/s"


def _wrong_on_pf(receipt: Receipt, hardware: Hardware) -> Iterator[str]:
    """Describe how VFs differ from their receipt on the PF, a clause each.

    A PF that was not observed counts as gone only if everything could be read.
    """
    vfs = {(pf.pci, vf.index): vf for pf in hardware.pfs for vf in pf.vfs}
    observed = {pf.pci for pf in hardware.pfs}
    for interface in receipt.interfaces:
        if hardware.unreadable and interface.vf.pf not in observed:
            continue
        vf = vfs.get((interface.vf.pf, interface.vf.index))
        subject = f"VF {interface.vf.index} of PF {interface.vf.pf} ({interface.ifname})"
        if vf is None:
            yield f"{subject} is not there"
            continue
        now = VfRate(vf.index, vf.min_tx_rate_mbps, vf.max_tx_rate_mbps)
        if now != interface.rate():
            yield f"{subject} has {_describe_rate(now)}, was given {_describe_rate(interface.rate())}"
        driver = interface.options.driver
        if not interface.is_netdev and vf.driver != driver:
            yield f"{subject} is driven by {vf.driver or 'nothing'}, was given to {driver}"


def _describe_rate(rate: VfRate) -> str:
    return f"min {rate.min_tx_rate_mbps}, max {rate.max_tx_rate_mbps} Mb/s"
