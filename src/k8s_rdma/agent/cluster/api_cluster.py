"""The cluster as the agent uses it, and its implementation through the API server.

The agent also works without a cluster (`no_cluster`). A pod's start never waits for a write: writes are
queued, and lost rather than late. Only `annotations` can delay a pod's start: it is called where the runtime
passes none. An informer follows this node's pods and their placements.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Set
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, cast

import structlog

from k8s_rdma.agent.cluster.refusals import Outlook, Refusals
from k8s_rdma.core.ledger import Attachment, Pod, Receipt
from k8s_rdma.core.namespace_policy import NO_POLICIES, NamespacePolicies
from k8s_rdma.core.types import ContainerId, NodeName, PodUid
from k8s_rdma.errors import K8sRdmaError, MalformedError, Reason
from k8s_rdma.kube.api import MIRROR, NodePodsApi, PodView, about_pod
from k8s_rdma.kube.errors import ApiRefusedError
from k8s_rdma.kube.event_recorder import EventRecorder, EventSource, Outbox
from k8s_rdma.kube.informer import REAL_TIME, Changed, Deleted, Event, Listed, Time, follow, handle_item
from k8s_rdma.kube.promises import read_promise
from k8s_rdma.wire.claim_caps import CLAIM_CAPS_STATUS_ANNOTATION, CapsRequest
from k8s_rdma.wire.network_status import (
    NETWORK_STATUS_ANNOTATION,
    NetworkStatus,
    encode_network_status,
    network_status,
)
from k8s_rdma.wire.placement_keys import UNSIGNED, KeySource
from k8s_rdma.wire.resource_claim import UID

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterable

    from k8s_rdma.config.agent import AgentConfig
    from k8s_rdma.core.placement import Placement
    from k8s_rdma.kube.client import Client
    from k8s_rdma.wire.ipam_result import IpamResult


Consumers = Mapping[PodUid, frozenset[str]]
"""The unfinished pods of this node, each with its ResourceClaims, `namespace/name`."""

CapsRequests = Mapping[PodUid, CapsRequest]
"""The caps that unfinished pods of this node with ResourceClaims ask for."""

AFTER_FAULT_S = 30.0

_log = structlog.get_logger()

COMPONENT = "k8s-rdma-agent"
"""The component in the source of Events."""

ANNOTATIONS_S = 5.0
"""The longest wait of an ADD for a pod's annotations; the runtime's own deadline is minutes."""

FIRST_LIST_S = 2.0
"""The longest wait of ADDs without a placement for the first list of pods, once after a start."""

PATIENCE_S = 30.0
"""The time after which passing refusals are reported as well."""

_MOST_STATUSES = 512


class PodCluster(Protocol):
    """Knows this node's pods, and writes their events and status. Used on the agent's loop.

    takes_placements: whether placements are delivered, as there is no API server to follow them in.
    """

    takes_placements: bool

    async def annotations(self, pod: Pod) -> Mapping[str, str]:
        """Read a pod's annotations, if the runtime does not pass them.

        K8sRdmaError (`API_FAILURE`) when they cannot be read, or the pod of that name has another UID.
        """
        ...

    async def identified(self, pod: Pod) -> Pod:
        """Return the pod with its UID if the runtime does not pass it; as it is if it cannot be read."""
        ...

    def placements(self) -> Mapping[PodUid, Placement]:
        """Return the known placements of this node's bound, unfinished pods.

        The mapping never changes, so that other threads may read it.
        """
        ...

    async def wait_for_placements(self, previous: Mapping[PodUid, Placement]) -> Mapping[PodUid, Placement]:
        """Wait until the placements differ from the previous ones, and return them."""
        ...

    def deliver(self, text: bytes) -> None:
        """Take a later placement of a pod. K8sRdmaError says why it does not count."""
        ...

    async def wait_listed(self) -> None:
        """Wait a short while for the first list of placements; pods also start without."""
        ...

    def lasting_pods(self) -> Set[PodUid]:
        """Return the unfinished pods of this node whose deletion is not requested; others may end soon.

        Empty without a cluster, and before the first list.
        """
        ...

    async def wait_for_consumers(self, previous: Consumers | None) -> Consumers:
        """Wait until these differ from the previous ones, and return them."""
        ...

    async def wait_for_caps(self, previous: CapsRequests | None) -> CapsRequests:
        """Wait until these differ from the previous ones, and return them."""
        ...

    def caps_decided(self, pod: Pod, status: str) -> None:
        """Write the status of the caps that a pod asks for."""
        ...

    def attached(self, receipt: Receipt, results: Mapping[str, IpamResult]) -> None:
        """Publish a pod's new interfaces. results: addresses by the interfaces' names."""
        ...

    def annotation_ignored(self, pod: Pod, why: str) -> None:
        """Report an annotation of the pod that has no effect."""
        ...

    def placed_anew(self, pod: Pod, why: str) -> None:
        """Report that a pod's placement did not fit any more, and that it got another on this node."""
        ...

    def refused(self, pod: Pod, error: K8sRdmaError) -> None:
        """Report why the pod cannot have its interfaces here; it may be evicted if that lasts."""
        ...

    def cap_altered(self, pod: Pod, change: str, *, restored: bool) -> None:
        """Report that a cap of software did not hold, and whether it does again."""
        ...

    def rates_changed(self, pod: Pod, change: str, *, refused: bool) -> None:
        """Report that other rates of the pod are programmed now, or why they are refused."""
        ...

    async def run(self) -> None:
        """Follow the cluster and send queued writes, until cancelled."""
        ...


class NodePods:
    """Follows the pods of a node. The last state stands while the API server does not answer.

    keys: verify placements. policies: limit the PFs of unsigned placements.
    on_delete: called with the UID of a pod that has finished, was deleted or left the node.
    on_replay: called with a pod whose annotation has an earlier generation of its placement than there was,
        and with a sentence that says so; the later one stands.
    listed: set after the first list.
    """

    def __init__(  # noqa: PLR0913 - whose pods, and by what they are judged
        self,
        api: NodePodsApi,
        node: NodeName,
        *,
        keys: KeySource,
        policies: Callable[[], NamespacePolicies],
        on_delete: Callable[[PodUid], None],
        on_replay: Callable[[PodView, str], None],
        time: Time,
    ) -> None:
        """Know no pods until `run`."""
        self.listed = asyncio.Event()
        self._api = api
        self._node = node
        self._keys = keys
        self._policies = policies
        self._on_delete = on_delete
        self._on_replay = on_replay
        self._time = time
        self._generations: dict[PodUid, int] = {}
        self._pods: dict[PodUid, Placement | None] = {}
        self._placements: Mapping[PodUid, Placement] = {}
        self._consumers: Consumers | None = None
        self._caps: CapsRequests = {}
        self._terminating: Set[PodUid] = frozenset()
        self._change = asyncio.Event()

    def placements(self) -> Mapping[PodUid, Placement]:
        """Return the placements of this node's unfinished pods, in a mapping that never changes."""
        return self._placements

    async def wait_for_placements(self, previous: Mapping[PodUid, Placement]) -> Mapping[PodUid, Placement]:
        """Implement `PodCluster.wait_for_placements`."""
        while self._placements == previous:
            await self._change.wait()
        return self._placements

    def lasting_pods(self) -> Set[PodUid]:
        """Implement `PodCluster.lasting_pods`."""
        return (self._consumers or {}).keys() - self._terminating

    async def wait_for_consumers(self, previous: Consumers | None) -> Consumers:
        """Implement `PodCluster.wait_for_consumers`; empty before the first list."""
        while self._consumers is None or self._consumers == previous:
            await self._change.wait()
        return self._consumers

    async def wait_for_caps(self, previous: CapsRequests | None) -> CapsRequests:
        """Implement `PodCluster.wait_for_caps`; empty before the first list."""
        while self._consumers is None or self._caps == previous:
            await self._change.wait()
        return self._caps

    async def run(self) -> NoReturn:
        """Follow the pods until cancelled."""
        await follow("pods", self._stream, self._on_event, time=self._time)

    async def _stream(self) -> AsyncIterator[Event[PodView]]:
        """Watch until the keys change: a new list then shows placements that the new keys accept."""
        keys = self._keys()
        async with aclosing(cast("Any", self._api.follow_pods_of(self._node))) as events:
            async for event in events:
                yield event
                if self._keys() is not keys:
                    return

    def _on_event(self, event: Event[PodView]) -> None:
        match event:
            case Listed(pods):
                for uid in self._pods.keys() - {pod.uid for pod in pods}:
                    self._forget(uid)
                for pod in pods:
                    handle_item("pods", self._on_update, pod)
                self._set_consumers({}, pods)
                self.listed.set()
                _log.info("pods_listed", pods=len(pods), placements=len(self._placements))
            case Changed(pod):
                self._on_update(pod)
                self._set_consumers(self._consumers_beside(pod), (pod,))
            case Deleted(pod):
                self._forget(pod.uid)
                self._set_consumers(self._consumers_beside(pod), ())

    def _consumers_beside(self, pod: PodView) -> Consumers:
        return {uid: claims for uid, claims in (self._consumers or {}).items() if uid != pod.uid}

    def _set_consumers(self, consumers: Consumers, pods: Iterable[PodView]) -> None:
        """Add these pods to the consumers, as far as they are unfinished and on this node."""
        unfinished = [
            pod for pod in pods if not pod.finished and pod.node == self._node and UID.fullmatch(pod.uid)
        ]
        added = {pod.uid: frozenset(f"{pod.namespace}/{claim}" for claim in pod.claims) for pod in unfinished}
        caps = {pod.uid: CapsRequest.read(pod.annotations) for pod in unfinished if pod.claims}
        self._caps = {uid: request for uid, request in self._caps.items() if uid in consumers} | caps
        terminating = {pod.uid for pod in unfinished if pod.terminating}
        self._terminating = self._terminating & consumers.keys() | terminating
        self._consumers = {**consumers, **added}
        change, self._change = self._change, asyncio.Event()
        change.set()

    def _on_update(self, pod: PodView) -> None:
        if pod.finished or pod.node != self._node:
            self._forget(pod.uid)
            return
        if self._keys() is None and pod.uid in self._pods:
            return  # the extender writes with the Binding; who wrote since then was another
        promise, latest = self._promise(pod), self._generations.get(pod.uid, 0)
        if promise is not None and promise.generation < latest:
            why = f"its placement is of generation {promise.generation}, and there was generation {latest}"
            self._on_replay(pod, f"{why}, which stands")
            return
        if promise is not None and promise.generation:
            self._generations[pod.uid] = promise.generation
        self._know({**self._pods, pod.uid: promise})

    def _forget(self, uid: PodUid) -> None:
        if uid in self._pods:
            self._know({pod_uid: promise for pod_uid, promise in self._pods.items() if pod_uid != uid})
            self._generations.pop(uid, None)
            self._on_delete(uid)

    def _know(self, pods: dict[PodUid, Placement | None]) -> None:
        self._pods = pods
        self._placements = {uid: promise for uid, promise in pods.items() if promise is not None}

    def _promise(self, pod: PodView) -> Placement | None:
        """Read a pod's placement by the same rules as an ADD (`agent.cni.grant`)."""
        try:
            promise = read_promise(pod, self._keys(), self._policies())
        except MalformedError:
            return None  # its ADD tells why
        if promise is None:
            return None
        generation = promise.placement.generation if promise.key_id else 0  # unsigned, it is anybody's word
        return replace(promise.placement, generation=generation)


async def retry_forever(work: Callable[[], Awaitable[NoReturn]], time: Time) -> NoReturn:
    """Restart work after an unexpected error: pods start without the cluster, not without the agent."""
    while True:
        try:
            await work()
        except Exception:
            _log.exception("cluster_fault")
        await time.pause(AFTER_FAULT_S)


class ApiCluster:
    """Implements `PodCluster` with the API server; it owns the connection."""

    takes_placements = False

    def __init__(self, api: NodePodsApi, terms: ClusterTerms, time: Time = REAL_TIME) -> None:
        """Send no request until `run`."""
        self._api = api
        self._terms = terms
        self._time = time
        self._outbox = Outbox(time)
        self._events = EventRecorder(
            api, self._outbox, teller=EventSource(component=COMPONENT, node=terms.node), now=time.now
        )
        self._pods = NodePods(
            api,
            terms.node,
            keys=terms.keys,
            policies=terms.policies,
            on_delete=self._forget,
            on_replay=self._replayed,
            time=time,
        )
        self._refusals = Refusals()
        self._statuses = Statuses()
        self._waited_in_vain = False

    async def annotations(self, pod: Pod) -> Mapping[str, str]:
        """Read the pod's annotations from the API server, within `ANNOTATIONS_S`."""
        return (await self._read(pod)).annotations

    async def identified(self, pod: Pod) -> Pod:
        """Read the UID from the API server, within `ANNOTATIONS_S`."""
        if not pod.namespace or _in_kubernetes(pod):
            return pod
        try:
            return replace(pod, uid=PodUid((await self._read(pod)).uid))
        except K8sRdmaError as error:
            _log.warning("pod_not_identified", pod=pod.full_name, error=error.message)
            return pod

    async def _read(self, pod: Pod) -> PodView:
        try:
            async with asyncio.timeout(ANNOTATIONS_S):
                found = await self._api.get_whole_pod(pod.namespace, pod.name)
        except TimeoutError as error:
            msg = (
                f"pod {pod.full_name}: its annotations: no answer from the API server in {ANNOTATIONS_S:g} s"
            )
            raise K8sRdmaError(msg, reason=Reason.API_FAILURE) from error
        mismatch = self._why_other(pod, found)
        if found is None or mismatch:
            msg = f"pod {pod.full_name}: {mismatch}; its annotations are not those of this sandbox; try again"
            raise K8sRdmaError(msg, reason=Reason.API_FAILURE)
        return found

    def placements(self) -> Mapping[PodUid, Placement]:
        """Return the placements of the last list and watch; empty before the first list."""
        return self._pods.placements()

    async def wait_for_placements(self, previous: Mapping[PodUid, Placement]) -> Mapping[PodUid, Placement]:
        """Wait for a change of the last list and watch; see `NodePods`."""
        return await self._pods.wait_for_placements(previous)

    def deliver(self, text: bytes) -> None:  # noqa: ARG002 - the Protocol's
        """Refuse: placements come from the API server."""
        msg = "the agent follows its pods' placements in the API server, and takes none from elsewhere"
        raise K8sRdmaError(msg, reason=Reason.NOT_ALLOWED)

    async def wait_listed(self) -> None:
        """Wait for the first list, `FIRST_LIST_S` at most; after one time-out calls return at once."""
        if self._waited_in_vain:
            return
        try:
            async with asyncio.timeout(FIRST_LIST_S):
                await self._pods.listed.wait()
        except TimeoutError:
            self._waited_in_vain = True

    def lasting_pods(self) -> Set[PodUid]:
        """Return those of the last list and watch."""
        return self._pods.lasting_pods()

    async def wait_for_consumers(self, previous: Consumers | None) -> Consumers:
        """Wait for a change of the last list and watch; see `NodePods`."""
        return await self._pods.wait_for_consumers(previous)

    async def wait_for_caps(self, previous: CapsRequests | None) -> CapsRequests:
        """Wait for a change of the last list and watch; see `NodePods`."""
        return await self._pods.wait_for_caps(previous)

    def caps_decided(self, pod: Pod, status: str) -> None:
        """Annotate the pod."""
        write = partial(self._api.annotate_pod, pod, CLAIM_CAPS_STATUS_ANNOTATION, status)
        self._outbox.put(("caps", pod.uid, ""), write)

    def attached(self, receipt: Receipt, results: Mapping[str, IpamResult]) -> None:
        """Annotate the pod with the interfaces of all its networks, and forget its refusals."""
        self._refusals.forget(receipt.pod.uid)
        self._events.forget(receipt.pod.uid)
        if not receipt.interfaces or not _in_kubernetes(receipt.pod):
            return
        value = self._statuses.with_entries(receipt, network_status(receipt, results))
        write = partial(self._api.annotate_pod, receipt.pod, NETWORK_STATUS_ANNOTATION, value)
        self._outbox.put(("status", receipt.pod.uid, ""), write)

    def annotation_ignored(self, pod: Pod, why: str) -> None:
        """Record an event."""
        if _in_kubernetes(pod):
            self._events.record(about_pod(pod), "RdmaUnknownAnnotation", why, warning=True)

    def placed_anew(self, pod: Pod, why: str) -> None:
        """Record an event."""
        if _in_kubernetes(pod):
            self._events.record(about_pod(pod), "RdmaPlacedAnew", why, warning=False)

    def refused(self, pod: Pod, error: K8sRdmaError) -> None:
        """Record an event; evict the pod when its refusals last for the configured time."""
        if not _in_kubernetes(pod):
            return
        streak = self._refusals.note(pod.uid, error.reason, self._time.monotonic())
        if streak.outlook is Outlook.PASSING and streak.lasts_s < PATIENCE_S:
            return
        self._events.record(about_pod(pod), _event_reason(error.reason), error.message, warning=True)
        after_s = self._terms.stuck_after_s
        if after_s is not None and streak.outlook is Outlook.LASTING and streak.lasts_s >= after_s:
            self._outbox.put(("eviction", pod.uid, ""), partial(self._evict, pod, error.message))

    def cap_altered(self, pod: Pod, change: str, *, restored: bool) -> None:
        """Record an event."""
        if _in_kubernetes(pod):
            reason = "RdmaCapRestored" if restored else "RdmaCapLost"
            self._events.record(about_pod(pod), reason, change, warning=True)

    def rates_changed(self, pod: Pod, change: str, *, refused: bool) -> None:
        """Record an event."""
        reason = "RdmaRatesRefused" if refused else "RdmaRatesChanged"
        self._events.record(about_pod(pod), reason, change, warning=refused)

    async def run(self) -> None:
        """Follow the node's pods and send queued writes, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(retry_forever(self._pods.run, self._time))
                tasks.create_task(retry_forever(self._outbox.run, self._time))
        finally:
            await self._api.close()

    async def _evict(self, pod: Pod, why: str) -> None:
        """Evict a pod after an event, unless its streak of refusals has ended meanwhile.

        If a disruption budget forbids it, the next refusal tries again.
        """
        streak = self._refusals.streak_of(pod.uid, self._time.monotonic())
        if streak is None or streak.outlook is not Outlook.LASTING:
            return
        message = f"evicted, since it has been without its RDMA interfaces for {streak.lasts_s:.0f} s: {why}"
        try:
            await self._events.record_now(about_pod(pod), "RdmaEvicting", message, warning=True)
        except ApiRefusedError as refused:
            _log.warning("cluster_not_told", what=message, why=refused.message)
        try:
            await self._api.evict_pod(pod)
        except ApiRefusedError as refused:
            _log.warning("eviction_refused", pod=pod.full_name, why=refused.message)
            return
        _log.warning("pod_evicted", pod=pod.full_name, after_s=round(streak.lasts_s))

    def _replayed(self, view: PodView, why: str) -> None:
        _log.warning("placement_replayed", pod=f"{view.namespace}/{view.name}", why=why)
        pod = Pod(namespace=view.namespace, name=view.name, uid=view.uid)
        self.rates_changed(pod, why, refused=True)

    def _forget(self, uid: PodUid) -> None:
        self._refusals.forget(uid)
        self._events.forget(uid)
        self._statuses.forget(uid)
        self._outbox.discard(uid)

    def _why_other(self, pod: Pod, found: PodView | None) -> str:
        """Describe how the API server's pod differs from this one; empty when it is the same."""
        if found is None:
            return "the API server has no such pod"
        if found.node != self._terms.node:
            return f"the pod of that name is not on node {self._terms.node}"
        if _in_kubernetes(pod) and pod.uid not in (found.uid, found.annotations.get(MIRROR)):
            return f"the pod of that name has UID {found.uid}, not {pod.uid}"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTerms:
    """The settings of a cluster: whose pods to follow, and how to treat refused ones.

    keys: verify placements. policies: limit the PFs of unsigned placements.
    stuck_after_s: the time after which a pod is evicted whose refusals will not end on this node; None for
        never.
    """

    node: NodeName
    keys: KeySource = UNSIGNED
    policies: Callable[[], NamespacePolicies] = lambda: NO_POLICIES
    stuck_after_s: float | None = None


def open_client(config: AgentConfig) -> Client | None:
    """Open a client with the configured credentials, None without any; inside the event loop that uses it.

    MalformedError when there is no such configuration. It sends no request yet.
    """
    if not config.has_credentials():
        return None
    from k8s_rdma.kube.client import connect  # noqa: PLC0415  a third of an agent's memory

    return connect(config.kubeconfig, in_cluster=config.in_cluster)


def open_cluster(
    config: AgentConfig, keys: KeySource, policies: Callable[[], NamespacePolicies], api: NodePodsApi
) -> PodCluster:
    """Open the cluster of that API server."""
    terms = ClusterTerms(
        node=NodeName(config.node), keys=keys, policies=policies, stuck_after_s=config.stuck_after_s
    )
    return ApiCluster(api, terms)


class Statuses:
    """The annotation's value by pod; the pod with the oldest write makes room for a new one."""

    def __init__(self) -> None:
        """Start without pods."""
        self._written: OrderedDict[PodUid, _WrittenStatus] = OrderedDict()

    def with_entries(self, receipt: Receipt, entries: tuple[NetworkStatus, ...]) -> str:
        """Add an attachment's entries to those of earlier ones, and return the annotation's value."""
        written = self._written.pop(receipt.pod.uid, None)
        if written is None or written.container != receipt.attachment.container:
            written = _WrittenStatus(receipt.attachment.container)
        written.entries[receipt.attachment] = entries
        self._written[receipt.pod.uid] = written
        if len(self._written) > _MOST_STATUSES:
            self._written.popitem(last=False)
        return encode_network_status(status for entry in written.entries.values() for status in entry)

    def forget(self, uid: PodUid) -> None:
        """Forget a pod that is gone."""
        self._written.pop(uid, None)


@dataclass(slots=True)
class _WrittenStatus:
    """The status written for one sandbox: a pod with a new sandbox has lost the interfaces of the old one."""

    container: ContainerId
    entries: dict[Attachment, tuple[NetworkStatus, ...]] = field(default_factory=dict)


def _in_kubernetes(pod: Pod) -> bool:
    """Report whether the pod has a UID of Kubernetes; otherwise the container's ID stands for it."""
    return bool(pod.namespace) and not pod.uid.startswith("container:")


def _event_reason(reason: Reason) -> str:
    return "Rdma" + "".join(part.capitalize() for part in reason.value.split("_"))
