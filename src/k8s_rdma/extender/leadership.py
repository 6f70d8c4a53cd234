"""Leadership: what the one binder does before its first bind, and how it knows that it still is the one.

Between another binder and this one stand three things:

1. The Lease. Only its holder binds.
2. All pods as they are after the Lease was taken, with the writes of the holder before: by a list, or by the
   watch that a standby has kept (`WatchMarker`).
3. The fence. A Binding carries the version of the pod that it was decided on (`metadata.resourceVersion`),
   which is a precondition (kube-apiserver, pkg/registry/core/pod/storage, BindingREST), and its writer had
   seen that version before the API server confirmed that it holds the Lease. So once this process has touched
   every pod that was unbound when it took the Lease, no Binding of an earlier holder can take effect any
   more, whether it is under way or its sender was stopped (SIGSTOP, a frozen virtual machine) and sends it an
   hour later.

A pod's annotations may be as long as they may be, by its owner's doing: then a label is written.

A list of 100,000 pods takes seconds. A standby has watched them all, so it touches one pod and waits until
the watch shows that write, because a watch shows the writes to its kind of objects in their order.

If the API server refuses to touch pods (403), the second line is time: after a Lease that was not given back,
no pod is bound until no earlier request can take effect any more (`api_request_timeout_s`). That does not
hold back a sender that was stopped.

Verbs: list, watch, get and patch on `pods`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import structlog

from k8s_rdma.core.ledger import Pod
from k8s_rdma.extender.node_names import NodeNames
from k8s_rdma.extender.node_source import ObservableNodeSource
from k8s_rdma.extender.pod_informer import PodInformer
from k8s_rdma.kube.api import ClusterApi, PodView
from k8s_rdma.kube.errors import API_ERRORS, TOO_LARGE, ApiRefusedError
from k8s_rdma.kube.leader_election import LeaderElector
from k8s_rdma.wire.views import ExtenderState

if TYPE_CHECKING:
    from k8s_rdma.extender.metrics import Reading

FENCE_ANNOTATION = "k8s-rdma.io/fence"
"""The label's key, too. Its value means nothing but that it is another one each time: a write that changes
nothing is none."""

_INVALID = 422

_MAX_PARALLEL = 32
_AGAIN_S = 1.0

_SHOWN_S = 2.0
"""The time that the watch has to show a write. A watch that lags for longer is not waited for."""

_log = structlog.get_logger()


def fence_token() -> str:
    """Draw the annotation's value, which deploy/policies/extender.yaml holds to this form."""
    return secrets.token_hex(6)


class FencedPod(NamedTuple):
    """A pod as it is now; None if it does not exist any more.

    Unbound and of another version than a Binding's, that Binding will never take effect; nor will any of it
    where it is `full`.
    """

    pod: PodView | None
    full: bool


@dataclass(frozen=True, slots=True)
class Fence:
    """Touches pods. token: a value that was never used before."""

    api: ClusterApi
    token: Callable[[], str] = fence_token

    async def read(self, pod: Pod) -> FencedPod:
        """Return the pod as it is now, touched if the API server allows it. API_ERRORS."""
        full = False
        try:
            pod_now: PodView | None = await self.touch(pod)
        except ApiRefusedError as refused:
            full = refused.status == TOO_LARGE
            pod_now = await self.api.get_pod(pod.namespace, pod.name)
            if pod_now is not None and pod_now.uid == pod.uid:
                _log.warning("pod_not_touched", pod=pod.full_name, error=refused.message)
        return FencedPod(pod_now if pod_now is not None and pod_now.uid == pod.uid else None, full=full)

    async def touch(self, pod: Pod) -> PodView:
        """Write to the pod, and return it as it is then. API_ERRORS."""
        try:
            return await self.api.touch_pod(pod, FENCE_ANNOTATION, self.token())
        except ApiRefusedError as refused:
            if refused.status != _INVALID:
                raise
            return await self.api.label_pod(pod, FENCE_ANNOTATION, self.token())


class _Fencing(NamedTuple):
    """A pod to be touched, its version on the list that was read with the Lease, and whether it is bound."""

    pod: Pod
    version: str
    bound: bool


@dataclass(slots=True, kw_only=True)
class Leadership:
    """Takes the Lease, and lets binds begin and end with it.

    lease: None if no other process ever binds.
    fence: None if this process does not bind.
    follow: keeps `pods` up to date, from a new list on; without end. It goes on while the Lease comes and
        goes.
    api_request_timeout_s: as in `PodWriter`.
    on_ready: called whenever binds may begin, and again when no other can take itself for the holder any
        more.
    obstacle: why nothing is bound yet although the Lease is held.
    """

    pods: PodInformer
    fence: Fence | None
    follow: Callable[[], Coroutine[None, None, None]]
    clock: Callable[[], float]
    lease: LeaderElector | None = None
    api_request_timeout_s: float = 60.0
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    on_ready: Callable[[], None] = lambda: None
    obstacle: str = "pods"
    _ready: bool = field(default=False, init=False)
    _following: asyncio.Task[None] | None = field(default=None, init=False)

    def holds(self) -> bool:
        """Report whether a bind may begin now, as far as this process knows by itself."""
        return self._ready and (self.lease is None or self.lease.holds())

    async def confirm(self, since: float = inf) -> str:
        """Confirm with the API server, as `LeaderElector.confirm`."""
        return await self.lease.confirm(since) if self.lease else ""

    def missing(self) -> list[str]:
        """List the missing parts, in words for people; empty if `holds`."""
        holds_lease = self.lease is None or self.lease.holds()
        lease = (
            [] if holds_lease or self.lease is None else [f"lease {self.lease.name} ({self.lease.obstacle})"]
        )
        return lease if self._ready else [*lease, self.obstacle]

    def readings(self) -> dict[str, Reading]:
        """Readings for metrics."""
        lease = self.lease
        return {
            "leader": ("Whether this process may bind.", "gauge", lambda: lease is None or lease.holds()),
        }

    async def run(self) -> NoReturn:
        """Follow the pods, and take the Lease whenever it is to be had."""
        async with asyncio.TaskGroup() as tasks:
            self._follow_anew(tasks)
            while True:
                given_back = await self.lease.acquire() if self.lease is not None else True
                self.obstacle = "pods"
                preparing = tasks.create_task(self._prepare(tasks, given_back=given_back))
                await self._run()
                preparing.cancel()
                self._ready = False

    def _follow_anew(self, tasks: asyncio.TaskGroup) -> None:
        """Have the pods listed by a request that is made from now on, and followed."""
        if self._following is not None:
            self._following.cancel()
        self.pods.list_anew()
        self._following = tasks.create_task(self.follow())

    async def release(self) -> None:
        """Give the Lease back; not while a holder before this one may still have writes under way."""
        if self.lease is not None and self._ready:
            await self.lease.release()

    async def _run(self) -> None:
        if self.lease is None:
            await asyncio.Event().wait()
        else:
            await self.lease.run()

    async def _prepare(self, tasks: asyncio.TaskGroup, *, given_back: bool) -> None:
        """Prevent the writes of another holder from taking effect, or wait until they have."""
        deadline = self.clock() + (0.0 if given_back else self.api_request_timeout_s)
        if self.lease is not None and not await self._catch_up():
            self._follow_anew(tasks)
        await self.pods.wait_listed()
        if self.fence is not None:
            self.obstacle = "pods are touched, so that no bind of a holder before takes effect"
            if loose := await self._touch_all(self.fence, deadline):
                self.obstacle = (
                    f"binds of the holder before may take effect for {self.api_request_timeout_s:g} s"
                )
                left_s = max(0.0, deadline - self.clock())
                _log.warning("pods_not_fenced", pods=len(loose), one=loose[0], waits_s=round(left_s, 3))
                await self.sleep(left_s)
        self._ready = True
        self.on_ready()
        if self.lease is not None:  # until then a deposed holder may refuse pods unnoticed
            await self.sleep(self.lease.noticed_s)
            self.on_ready()

    async def _catch_up(self) -> bool:
        """Wait until the watch has shown all that was written to pods before now; return whether it will do.

        If the watch is lost meanwhile, the list that follows it will do as well, because it begins later.
        """
        pod = self.pods.cache.pods.any_pod()
        if self.fence is None or pod is None or not self.pods.listed:
            return False
        with self.pods.marker.expecting(pod.uid) as marker:
            try:
                touched = await self.fence.touch(pod)
                async with asyncio.timeout(_SHOWN_S):
                    shown = await marker.wait_shown(touched.version)
            except (*API_ERRORS, TimeoutError) as error:
                _log.warning("pods_not_caught_up", pod=pod.full_name, error=str(error) or "the watch lags")
                return False
        if shown:
            _log.info("pods_caught_up", pod=pod.full_name)
        return True

    async def _touch_all(self, fence: Fence, deadline: float) -> list[str]:
        """Touch all unbound pods that ask, and those whose rates change.

        Return the names of those that earlier writes may still take effect of.
        """
        pods = [
            _Fencing(Pod(namespace=pod.namespace, name=pod.name, uid=pod.uid), pod.version, bound=False)
            for pod in self.pods.cache.pods.unbound_pods()
        ]
        wanted_rates = self.pods.wanted_rates
        pods += [
            _Fencing(pod, version, bound=True)
            for pod, version in (wanted_rates.pods() if wanted_rates else ())
        ]
        slots = asyncio.Semaphore(_MAX_PARALLEL)

        async def fenced(pod: _Fencing) -> bool:
            async with slots:
                return await self._touch(fence, pod, deadline)

        async with asyncio.TaskGroup() as touching:
            tasks = [touching.create_task(fenced(pod)) for pod in pods]
        results = zip(pods, tasks, strict=True)
        return [pod.pod.full_name for pod, task in results if not task.result()]

    async def _touch(self, fence: Fence, pod: _Fencing, deadline: float) -> bool:
        """Touch one, until the API server answers or it is too late to matter; whether it is fenced."""
        while True:
            try:
                pod_now, full = await fence.read(pod.pod)
            except API_ERRORS as error:
                _log.warning("pod_not_fenced", pod=pod.pod.full_name, error=error.message)
                if self.clock() >= deadline:
                    return False
                await self.sleep(_AGAIN_S)
                continue
            if pod_now is not None:
                self.pods.on_update(pod_now)
            if full or pod_now is None or pod_now.version != pod.version:
                return True
            return not pod.bound and pod_now.node is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Tells whether this process knows enough to promise anything.

    api: whether there is an API server to follow; without one nothing is waited for.
    """

    api: bool
    leadership: Leadership
    pods: PodInformer
    nodes: NodeNames
    states: ObservableNodeSource

    def ready(self) -> bool:
        """Report whether every promise of other processes is known, and no other process makes any now."""
        return not self.api or (self.leadership.holds() and self.nodes.listed and not self.states.awaited())

    def is_warm(self) -> bool:
        """Report whether pods and nodes are known; a replica that stands by knows them as well."""
        return self.pods.listed and self.nodes.listed and not self.states.awaited()

    def verified(self) -> bool:
        """Report whether this process is ready, and every placement that counts is verified.

        Until then it may refuse a pod for the sake of a forged placement, and must not evict another.
        """
        return self.ready() and self.pods.unverified.is_empty()

    def missing(self) -> list[str]:
        """The parts that are not there yet, in words for people; empty when ready."""
        if not self.api:
            return []
        awaited = [f"the states of {number} nodes"] if (number := self.states.awaited()) else []
        return self.leadership.missing() + (awaited if self.nodes.listed else ["nodes"])

    def role(self) -> ExtenderState:
        """The part that this process has among its replicas."""
        lacking = tuple(self.missing())
        warm = self.pods.listed and self.nodes.listed
        return ExtenderState(
            role=("standby" if warm else "starting") if lacking else "active", missing=lacking
        )
