"""The CNI verbs as calls of the CNI executable, and their answers.

Source: CNI specification 1.1.0, section 2. Calls for one container run one after the other; those of
different containers meet only at the worker. containerd calls STATUS every few seconds, and the answer makes
the node Ready or not: it uses the last observation, and does not query the kernel.

Caps that software enforces are checked at intervals; those that did not hold are restored and reported.
"""

from __future__ import annotations

import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog

from k8s_rdma.agent.cni.add import AddCommand, AddResult, PodSources
from k8s_rdma.agent.cni.check import CheckCommand
from k8s_rdma.agent.cni.delete import DeleteCommand
from k8s_rdma.agent.plugins.runner import CalledPlugins, called_plugins, plugins_of_now
from k8s_rdma.core.ledger import Attachment, Receipt
from k8s_rdma.core.software_caps import software_capped
from k8s_rdma.errors import K8sRdmaError, Reason
from k8s_rdma.wire.cni_request import CniEnvironment, decode_netconf, decode_network, parse_environment
from k8s_rdma.wire.cni_result import encode_error, encode_result
from k8s_rdma.wire.frame import Reply, Request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from k8s_rdma.agent.cluster.cluster import Cluster
    from k8s_rdma.agent.cni.node_access import NodeAccess
    from k8s_rdma.agent.node import CapFinding, Node
    from k8s_rdma.agent.plugins.ipam import CniPlugins
    from k8s_rdma.agent.report import Reporter
    from k8s_rdma.agent.worker import Worker
    from k8s_rdma.core.step import NetnsRef
    from k8s_rdma.linux.netns import Namespaces

_log = structlog.get_logger()
SLOW_S = 0.5

REST_FACTOR = 10
"""After a check of a pod that took longer than `SLOW_S`, the next one comes `REST_FACTOR` times as long after
it: the pod decides how many links it has (10,000 take more than a second), and one worker serves all."""

_Key = tuple["Attachment", str]
"""The key of an interface: its attachment and its name."""


class _Times(dict[_Key, int]):
    """Counters of events by interface."""

    def count(self, key: _Key) -> tuple[int, bool]:
        """Count an event; return its number, and whether that is a power of two."""
        times = self[key] = self.get(key, 0) + 1
        return times, times & (times - 1) == 0


class Service:
    """Answers the CNI executable, and publishes what its calls changed."""

    def __init__(self, *, node: Node, verbs: Verbs, namespaces: Namespaces, reporter: Reporter) -> None:
        """Do nothing until the first call."""
        self._node = node
        self._verbs = verbs
        self._namespaces = namespaces
        self._reporter = reporter

    async def call(self, request: Request, netns: int | None, still_waiting: Callable[[], bool]) -> Reply:
        """Answer one call of the CNI executable. A failure is an answer, too.

        still_waiting: reports whether the caller still waits for the answer.
        """
        started = time.monotonic()
        with structlog.contextvars.bound_contextvars(**_log_fields(request.env)):
            previous = self._node.ledger, self._node.hardware
            try:
                reply = Reply(exit_status=0, stdout=await self._perform(request, netns, still_waiting))
                if request.env.get("CNI_COMMAND") != "STATUS":  # containerd asks every 5 s
                    _log.info("cni_call", duration_ms=_elapsed_ms(started))
            except K8sRdmaError as error:
                reply = self._failure(request, error)
                _log.warning(
                    "cni_call_refused",
                    reason=error.reason,
                    error=str(error),
                    details=error.details,
                    duration_ms=_elapsed_ms(started),
                )
            except Exception as error:
                _log.exception("cni_call_failed", duration_ms=_elapsed_ms(started))
                fault = K8sRdmaError(
                    f"the agent has a fault: {error!r}; its log has more", reason=Reason.INTERNAL
                )
                reply = self._failure(request, fault)
            if previous != (self._node.ledger, self._node.hardware):
                await self._reporter.publish()
            return reply

    async def _perform(self, request: Request, netns: int | None, still_waiting: Callable[[], bool]) -> bytes:
        call, stdin = parse_environment(request.env), request.stdin
        with self._open_namespace(call, netns) as sandbox:
            match call.command:
                case "ADD":
                    return await self._add(call, stdin, sandbox, still_waiting)
                case "DEL":
                    network, _ = decode_network(stdin)
                    await self._verbs.delete(call, network, stdin)
                case "CHECK":
                    await self._verbs.check(call, stdin)
                case "GC":
                    await self._verbs.collect(call, stdin)
                case "STATUS":
                    await self._verbs.status(call, stdin)
        return b""

    async def _add(
        self, call: CniEnvironment, stdin: bytes, sandbox: NetnsRef | None, still_waiting: Callable[[], bool]
    ) -> bytes:
        if sandbox is None:
            msg = f"CNI_NETNS {call.netns}: the executable could not open it"
            raise K8sRdmaError(msg, reason=Reason.INVALID_ENVIRONMENT)
        if self._namespaces.is_own(sandbox):
            msg = f"CNI_NETNS {call.netns}: is the node's own network namespace, not one of a container"
            raise K8sRdmaError(msg, reason=Reason.INVALID_ENVIRONMENT)
        result = await self._verbs.add(call, sandbox, stdin, still_waiting)
        if result is not None:
            return result.result
        netconf = decode_netconf(stdin)
        return encode_result([], netconf.cni_version, netconf.prev_result)

    @contextmanager
    def _open_namespace(self, call: CniEnvironment, netns: int | None) -> Iterator[NetnsRef | None]:
        """Let the kernel reach the sandbox by the call's descriptor, until the block ends."""
        if netns is None:
            yield None
            return
        sandbox = self._namespaces.hold(netns, call.netns or "")
        try:
            yield sandbox
        finally:
            self._namespaces.release(sandbox)

    def _failure(self, request: Request, error: K8sRdmaError) -> Reply:
        try:
            _, version = decode_network(request.stdin)
        except K8sRdmaError:
            version = "1.0.0"
        return Reply(exit_status=1, stdout=encode_error(error, version))


class Verbs:
    """Performs ADD, DEL, CHECK, STATUS and GC on one node, and the reconciliation between calls."""

    def __init__(
        self,
        *,
        access: NodeAccess,
        plugins: CniPlugins,
        pods: PodSources,
        on_claim: Callable[[], Awaitable[None]],
    ) -> None:
        """on_claim: awaited after a claim is on disk, before anything moves to the pod."""
        self._access = access
        self._plugins = plugins
        self._delete_command = DeleteCommand(access, plugins)
        self._add_command = AddCommand(
            access=access,
            plugins=plugins,
            pods=pods,
            delete_command=self._delete_command,
            on_claim=on_claim,
        )
        self._check_command = CheckCommand(access, plugins, pods.policy)
        self._caps = SoftwareCaps(access.node, access.worker, pods.cluster)

    async def add(
        self,
        call: CniEnvironment,
        netns: NetnsRef,
        stdin: bytes,
        still_waiting: Callable[[], bool] = lambda: True,
    ) -> AddResult | None:
        """See `AddCommand.add`."""
        return await self._add_command.add(call, netns, stdin, still_waiting)

    async def delete(self, call: CniEnvironment, network: str, stdin: bytes = b"") -> None:
        """See `DeleteCommand.delete`."""
        attachment = Attachment(network, call.container_id, call.ifname)
        await self._delete_command.delete(attachment, plugins_of_now(stdin, call))

    async def check(self, call: CniEnvironment, stdin: bytes) -> None:
        """See `CheckCommand.check`."""
        await self._check_command.check(call, stdin)

    async def collect(self, call: CniEnvironment, stdin: bytes) -> None:
        """See `DeleteCommand.collect`.

        GC does not say whether other plugins ran before this one on ADD. If none did, leases are kept under
        the network's own name, which receipts record; to guess that name would free other plugins' leases.
        """
        conf = decode_netconf(stdin, strict=False)
        await self._delete_command.collect(conf, called_plugins(stdin, conf, call, chained=True))

    async def status(self, call: CniEnvironment, stdin: bytes) -> None:
        """See `require_ready`."""
        conf = decode_netconf(stdin)
        plugins = called_plugins(stdin, conf, call, chained=True)
        await require_ready(self._access, self._plugins, plugins)

    async def reconcile(self) -> bool:
        """See `DeleteCommand.reconcile`."""
        return await self._delete_command.reconcile()

    async def restore_caps(self) -> bool:
        """See `SoftwareCaps.restore`."""
        return await self._caps.restore()

    async def idle(self) -> None:
        """Wait until no attachment is being made or ended: for work that would delay them."""
        await self._access.locks.idle()


async def require_ready(access: NodeAccess, cni_plugins: CniPlugins, plugins: CalledPlugins) -> None:
    """Raise K8sRdmaError (`NOT_READY`) when ledger, hardware or another plugin let no ADD succeed."""
    try:
        await access.worker.run(access.node.require_ledger)
        _require_hardware(access.node, delegates=plugins.delegate is not None)
        cni_plugins.ipam.require(plugins.all_ipams)
        if plugins.delegate is not None:
            await cni_plugins.delegate.status(plugins.delegate)
    except K8sRdmaError as error:
        raise K8sRdmaError(error.message, reason=Reason.NOT_READY, details=error.details) from error


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
    hidden = "; ".join(f"{item.subject}: {item.why}" for item in node.hardware.unreadable)
    finding = f"none of PFs {', '.join(pf.name for pf in pfs)} has VFs" if pfs else "there is no SR-IOV PF"
    msg = f"node {node.name}: {finding}; has k8s-rdma init ended well here?"
    raise K8sRdmaError(msg, details=hidden)


class SoftwareCaps:
    """Restores caps that software enforces, and reports each that did not hold: in the log and to its pod.

    A cap that cannot be restored is reported once until its failure changes. Repeated losses and restorations
    are logged for the 1st, 2nd, 4th, 8th time and so on, and so is the end of each logged loss.
    """

    def __init__(
        self, node: Node, worker: Worker, cluster: Cluster, now: Callable[[], float] = time.monotonic
    ) -> None:
        """Check nothing yet. now: in seconds; called from several threads."""
        self._now = now
        self._node = node
        self._worker = worker
        self._cluster = cluster
        self._failed_since = _Times()
        self._restored = _Times()
        self._failing: dict[_Key, str] = {}
        self._logged_lost: set[_Key] = set()
        self._retry_at: dict[Attachment, float] = {}

    async def restore(self) -> bool:
        """Restore the caps of all complete attachments. Returns whether the failing caps changed."""
        failures = self._node.caps.failures
        receipts = dict(self._node.ledger.receipts)
        self._forget_all_but(receipts)
        for attachment, receipt in receipts.items():
            if software_capped(receipt) and self._now() >= self._retry_at.get(attachment, 0):
                findings = await self._worker.run(self._inspect, attachment)
                if findings is not None:
                    self._record(receipt, {finding.ifname: finding for finding in findings})
        return self._node.caps.failures != failures

    def _inspect(self, attachment: Attachment) -> tuple[CapFinding, ...] | None:
        """Restore an attachment's caps, timed on the worker's thread: the wait for it does not count."""
        begun = self._now()
        try:
            return self._node.restore_caps(attachment)
        finally:
            ended = self._now()
            if ended - begun > SLOW_S:
                self._retry_at[attachment] = ended + REST_FACTOR * (ended - begun)

    def _record(self, receipt: Receipt, findings: Mapping[str, CapFinding]) -> None:
        for interface in software_capped(receipt):
            key, finding = (receipt.attachment, interface.ifname), findings.get(interface.ifname)
            failed_before = self._failing.pop(key, "")
            if finding is None:
                if key in self._logged_lost:
                    _log.info("cap_holds", pod=_named(receipt), interface=interface.ifname)
                    self._logged_lost.remove(key)
            elif finding.failure:
                self._failing[key] = finding.failure
                if finding.failure != failed_before:
                    self._record_lost(receipt, finding)
            else:
                self._tell_restored(receipt, finding)

    def _tell_restored(self, receipt: Receipt, finding: CapFinding) -> None:
        key = receipt.attachment, finding.ifname
        times, seldom = self._restored.count(key)
        if seldom or key in self._logged_lost:
            _log.warning("cap_restored", **_cap_fields(receipt, finding), times=times)
        self._logged_lost.discard(key)
        message = f"{finding.found}: its cap of {finding.mbps} Mb/s was put back"
        self._cluster.cap_altered(receipt.pod, message, restored=True)

    def _record_lost(self, receipt: Receipt, finding: CapFinding) -> None:
        key = receipt.attachment, finding.ifname
        times, seldom = self._failed_since.count(key)
        if seldom:
            _log.warning("cap_lost", **_cap_fields(receipt, finding), error=finding.failure, times=times)
            self._logged_lost.add(key)
        message = f"interface {finding.ifname} is not limited to {finding.mbps} Mb/s: {finding.failure}"
        self._cluster.cap_altered(receipt.pod, message, restored=False)

    def _forget_all_but(self, receipts: Mapping[Attachment, Receipt]) -> None:
        for times in (self._failed_since, self._restored, self._failing):
            for key in [key for key in times if key[0] not in receipts]:
                times.pop(key)
        self._logged_lost = {key for key in self._logged_lost if key[0] in receipts}
        for attachment in self._retry_at.keys() - receipts.keys():
            self._retry_at.pop(attachment)


def _cap_fields(receipt: Receipt, finding: CapFinding) -> dict[str, object]:
    return {
        "pod": _named(receipt),
        "interface": finding.ifname,
        "pf": finding.vf.pf,
        "vf": finding.vf.index,
        "cap_mbps": finding.mbps,
        "found": finding.found,
    }


def _named(receipt: Receipt) -> str:
    return f"{receipt.pod.namespace}/{receipt.pod.name}"


def _log_fields(env: Mapping[str, str]) -> dict[str, str]:
    """Collect the log fields of a call, which may be malformed."""
    fields = {
        "operation": uuid.uuid4().hex[:8],
        "command": env.get("CNI_COMMAND", ""),
        "container": env.get("CNI_CONTAINERID", ""),
    }
    args = dict(pair.partition("=")[::2] for pair in env.get("CNI_ARGS", "").split(";"))
    name = args.get("K8S_POD_NAME")
    return fields | {"pod": f"{args.get('K8S_POD_NAMESPACE', '')}/{name}"} if name else fields


def _elapsed_ms(started: float) -> float:
    return round((time.monotonic() - started) * 1e3, 3)
