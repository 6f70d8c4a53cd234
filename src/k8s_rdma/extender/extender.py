"""The scheduler extender, put together: cache, informers, verbs, pages for people, and background tasks."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn, cast

from k8s_rdma.config.namespace_policies import policies_of
from k8s_rdma.config.reloading import failures_of
from k8s_rdma.extender.bind import Binder, BindingWriter, PendingBindings
from k8s_rdma.extender.counted_api import counted
from k8s_rdma.extender.decision_log import DecisionLog, LastRefusals
from k8s_rdma.extender.explain import Explainer
from k8s_rdma.extender.filter import FeasibilityChecker, Scheduling
from k8s_rdma.extender.fit_cache import FitCache
from k8s_rdma.extender.gangs import Quorum
from k8s_rdma.extender.holders import Holders
from k8s_rdma.extender.http_poller import HttpPoller, poll_config
from k8s_rdma.extender.known_pods import PodExplainer
from k8s_rdma.extender.leadership import Fence, Leadership, Readiness
from k8s_rdma.extender.metrics import Metrics, Reading, samples
from k8s_rdma.extender.node_names import NodeNames
from k8s_rdma.extender.node_source import ObservableNodeSource, source_readings
from k8s_rdma.extender.pod_informer import PodInformer
from k8s_rdma.extender.pod_requests import PodRequestCache
from k8s_rdma.extender.pod_writer import PodWriter
from k8s_rdma.extender.preempt import Budgets, Preempting, follow_budgets
from k8s_rdma.extender.rate_changes import RateChanges
from k8s_rdma.extender.rdmanode_informer import RdmaNodeInformer
from k8s_rdma.extender.requeue import Pace, Requeuer, UnschedulablePods
from k8s_rdma.extender.scheduler_cache import SchedulerCache
from k8s_rdma.extender.search_queue import SearchQueue
from k8s_rdma.extender.settled_pods import SettledPods
from k8s_rdma.extender.views import Overview, Views
from k8s_rdma.extender.wanted_rates import WantedRates
from k8s_rdma.kube.event_recorder import EventRecorder, EventSource, Outbox
from k8s_rdma.kube.informer import REAL_TIME, follow
from k8s_rdma.kube.leader_election import LeaderElector
from k8s_rdma.wire.extender import (
    ExtenderBindingResult,
    decode_args,
    decode_binding,
    decode_preemption,
    encode_preemption,
    encode_reply,
    in_both_maps,
)
from k8s_rdma.wire.placement_keys import UNSIGNED, KeySource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator

    from k8s_rdma.config.extender import ExtenderConfig
    from k8s_rdma.core.types import NodeName
    from k8s_rdma.extender.node_cache import ClusterState
    from k8s_rdma.kube.api import ClusterApi, EventsApi
    from k8s_rdma.kube.published_api import PublishedApi
    from k8s_rdma.wire.json import Buffer, Document

_READINESS_POLL_S = 0.1
_EVENT_SOURCE = EventSource(component="k8s-rdma-extender")


def boottime_s() -> float:
    """Return the time of the one clock of the extender: seconds, monotonic, including the machine's sleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class BinderIdentity:
    """The keys and the Lease that make this process's promises count.

    keys: sign and verify placements.
    lease: must be held before the first promise; given back in the end unless a write is in doubt. None if no
        other process can bind.
    api_failures: as in `counted`; the failures of the Lease are counted in it already.
    """

    keys: KeySource = UNSIGNED
    lease: LeaderElector | None = None
    api_failures: Counter[tuple[str, ...]] = field(default_factory=Counter)


class Extender:
    """Answers filter, prioritize, preempt and bind, in the bytes that kube-scheduler sends and expects."""

    def __init__(
        self,
        config: ExtenderConfig,
        api: ClusterApi,
        identity: BinderIdentity | None = None,
        *,
        clock: Callable[[], float] = boottime_s,
        source: Callable[[ClusterState], ObservableNodeSource] | None = None,
    ) -> None:
        """Put the parts together; the tasks run in `running`.

        api: implements also `EventsApi` and, if the nodes publish their states, `PublishedApi`.
        clock: seconds, monotonic.
        source: brings the nodes' states into the cache; None for the configured one.
        """
        identity = identity or BinderIdentity()
        self._config, self._identity, self._clock = config, identity, clock
        self._api = counted(api, identity.api_failures)
        self._fence = Fence(self._api)
        self._queue = SearchQueue()
        self._policies = policies_of(config.policy_file)
        fit_cache = FitCache(config.strategy, config.refusal_detail)
        pace = Pace(poll_s=config.poll_s, requeue_s=config.requeue_s, by_label=config.requeue_by == "label")
        settled = SettledPods()
        self._requeuer = Requeuer(UnschedulablePods(settled), fit_cache, self._api, clock, pace, self._queue)
        requests = PodRequestCache(
            strict=config.strict,
            vf_resource=config.vf_resource,
            policies=self._policies,
            binds=config.binder == "extender",
            bill=self._queue.bill,
        )
        self.cache = SchedulerCache(
            config,
            requests=requests,
            fit_cache=fit_cache,
            requeuer=self._requeuer,
            api=self._api,
            clock=clock,
            keys=identity.keys,
            exists=self._may_exist,
            settled=settled,
        )
        self._states = source(self.cache.state) if source else self._source()
        self.nodes: NodeNames = NodeNames(state=self.cache.state, states=self._states)
        self._attempts = LastRefusals(clock, settled)
        self._decision_log = DecisionLog(self._attempts.record)
        self._budgets = Budgets(synced=not config.heeds_budgets)
        self._outbox = Outbox(REAL_TIME)
        events = cast("EventsApi", self._api)
        self._events = EventRecorder(events, self._outbox, teller=_EVENT_SOURCE, now=REAL_TIME.now)
        self.wanted_rates = WantedRates(self.cache.state, keys=identity.keys, on_end=self._events.forget)
        self.leadership = self._leadership()
        self.readiness = Readiness(
            api=config.api,
            leadership=self.leadership,
            pods=self.leadership.pods,
            nodes=self.nodes,
            states=self._states,
        )
        self.scheduling = self._scheduling()
        self.preempting = self._preempting()
        self.pod_writer = PodWriter(self._fence, clock, api_request_timeout_s=config.api_request_timeout_s)
        self.binder = self._binder()
        self.rate_changes = self._rate_changes()
        self.views = self._views()
        self.metrics = self._metrics()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Follow the cluster until the block ends; a defect in a background task also ends the block."""
        async with self._states, self.pod_writer:
            async with asyncio.TaskGroup() as background:
                tasks = [background.create_task(task) for task in self._background_tasks()]
                yield
                for task in tasks:
                    task.cancel()
            if not self.pod_writer.undecided():
                await self.leadership.release()

    async def filter(self, body: Buffer) -> Document:
        """Answer `ExtenderArgs` with an `ExtenderFilterResult`."""
        result = await self.scheduling.filter(decode_args(body))
        # A registration without a bind verb may be of kube-scheduler before 1.21, which reads only one map.
        return encode_reply(result if self._config.binder == "extender" else in_both_maps(result))

    async def prioritize(self, body: Buffer) -> Document:
        """Answer `ExtenderArgs` with a `HostPriorityList`."""
        return encode_reply(await self.scheduling.prioritize(decode_args(body)))

    async def preempt(self, body: Buffer) -> Document:
        """Answer `ExtenderPreemptionArgs` with an `ExtenderPreemptionResult`."""
        return encode_preemption(await self.preempting.preempt(decode_preemption(body)))

    async def bind(self, body: Buffer) -> Document:
        """Answer `ExtenderBindingArgs` with an `ExtenderBindingResult`."""
        return encode_reply(ExtenderBindingResult(error=await self.binder.bind(decode_binding(body))))

    def missing(self) -> list[str]:
        """List the parts not known yet, in words for people; until it is empty no place is promised."""
        return self.readiness.missing()

    def warning(self) -> str:
        """Describe the faults of an extender that is ready; empty if there are no faults."""
        return "; ".join(failures_of(self._identity.keys, self._policies))

    def _source(self) -> HttpPoller | RdmaNodeInformer:
        config, state = self._config, self.cache.state
        if config.source == "http":
            return HttpPoller(state, poll_config(config), self._clock)
        published = cast("PublishedApi", self._api)
        return RdmaNodeInformer(
            state, published, self._clock, stale_s=config.stale_s, namespace=config.node_lease_namespace
        )

    def _leadership(self) -> Leadership:
        config, keys, binds = self._config, self._identity.keys, self._config.binder == "extender"
        pods = PodInformer(
            cache=self.cache,
            requeuer=self._requeuer,
            clock=self._clock,
            attempts=self._attempts,
            keys=keys,
            holds_unplaced=config.allows_unplaced(signed=keys() is not None),
            wanted_rates=self.wanted_rates if binds else None,
        )
        return Leadership(
            pods=pods,
            fence=self._fence if binds else None,
            follow=lambda: follow("pods", lambda: pods.stream(self._api), pods.on_event),
            clock=self._clock,
            lease=self._identity.lease,
            api_request_timeout_s=config.api_request_timeout_s,
            on_ready=self._try_all,
        )

    def _scheduling(self) -> Scheduling:
        feasibility = FeasibilityChecker(
            cache=self.cache, clock=self._clock, detail=self._config.refusal_detail, queue=self._queue
        )
        return Scheduling(
            cache=self.cache,
            states=self._states,
            feasibility=feasibility,
            requeuer=self._requeuer,
            decision_log=self._decision_log,
            clock=self._clock,
            ready=self.readiness.ready,
            max_age_s=self._config.max_age_s,
        )

    def _preempting(self) -> Preempting:
        return Preempting(
            cache=self.cache,
            states=self._states,
            budgets=self._budgets,
            queue=self._queue,
            decision_log=self._decision_log,
            clock=self._clock,
            ready=self.readiness.verified,
            max_age_s=self._config.max_age_s,
        )

    def _binder(self) -> Binder:
        pending = PendingBindings(
            state=self.cache.state,
            on_end=self.leadership.pods.on_not_found,
            own_placements=self.leadership.pods.own_placements,
            keys=self._identity.keys,
            policies=self._policies,
        )
        return Binder(
            cache=self.cache,
            states=self._states,
            binding_writer=BindingWriter(self._api, self._fence, self.pod_writer, pending),
            requeuer=self._requeuer,
            quorum=Quorum(gangs=self.cache.gangs),
            decision_log=self._decision_log,
            clock=self._clock,
            ready=self.readiness.ready,
            confirm=self.leadership.confirm,
        )

    def _rate_changes(self) -> RateChanges:
        return RateChanges(
            wanted_rates=self.wanted_rates,
            cache=self.cache,
            states=self._states,
            api=self._api,
            fence=self._fence,
            decision_log=self._decision_log,
            events=self._events,
            clock=self._clock,
            ready=self.readiness.verified,
            confirm=self.leadership.confirm,
            pod_writer=self.pod_writer,
            keys=self._identity.keys,
            enabled=self._config.live_rates,
        )

    def _views(self) -> Views:
        pods = PodExplainer(
            cache=self.cache,
            attempts=self._attempts,
            api=self._api if self._config.api else None,
            keys=self._identity.keys,
            clock=self._clock,
            bypass_outcome=self._bypass_outcome() if self._config.binder == "extender" else "",
        )
        explainer = Explainer(
            cache=self.cache,
            pods=pods,
            states=self._states,
            nodes=self._known_nodes,
            role=self.readiness.role,
            clock=self._clock,
            max_age_s=self._config.max_age_s,
        )
        overview = Overview(
            cache=self.cache,
            states=self._states,
            attempts=self._attempts,
            nodes=self._known_nodes,
            role=self.readiness.role,
            clock=self._clock,
        )
        return Views(
            explainer,
            overview,
            Holders(cache=self.cache, nodes=self._known_nodes, api=self._config.api),
        )

    def _may_exist(self, node: NodeName) -> bool:
        return self.nodes.may_exist(node)

    def _known_nodes(self) -> Collection[NodeName]:
        return self.nodes.names() | self.cache.state.nodes()

    def _bypass_outcome(self) -> str:
        """Describe in a clause what happens to a pod that was bound without this extender."""
        if self._config.allows_unplaced(signed=self._identity.keys() is not None):
            return "its agent gives it what is not promised to other pods there, or refuses it"
        return "its agent refuses it"

    def _metrics(self) -> Metrics:
        metrics = Metrics()
        metrics.add(source_readings(self._states))
        metrics.add(self.cache.readings())
        metrics.add(self._requeuer.readings())
        metrics.add(self._decision_log.readings())
        metrics.add(self._attempts.readings())
        metrics.add(self.wanted_rates.readings())
        metrics.add(self.leadership.readings())
        metrics.add(self.leadership.pods.unverified.readings())
        metrics.add(self._readings())
        return metrics

    def _readings(self) -> dict[str, Reading]:
        failures = self._identity.api_failures
        return {
            "api_errors_total": (
                "Calls of the API server that failed.",
                "counter",
                lambda: samples(("call", "kind"), failures),
            ),
            "policies_not_reloaded": (
                "Whether the file of policies holds what cannot be used; then those of before are in force.",
                "gauge",
                lambda: bool(failures_of(self._policies)),
            ),
        }

    def _background_tasks(self) -> Iterator[Coroutine[None, None, None]]:
        yield self.cache.nominations.keep_time()
        yield self.cache.assumed_pods.keep_time()
        if not self._config.api:
            return
        yield self.leadership.run()
        yield self.leadership.pods.unverified.run(
            self.readiness.is_warm, self.metrics.are_under_way, self._try_all
        )
        yield follow("nodes", self._api.follow_nodes, self.nodes.on_event)
        if self._config.heeds_budgets:
            yield follow_budgets(self._api, self._budgets, lambda: self._requeuer.try_all(self.nodes.names))
        yield self._requeuer.poll(self._states, self.cache.limits)
        yield self._requeuer.touch(self.cache.state, self.cache.limits, self.readiness.ready)
        yield self._wake_when_ready_again()
        if self._config.binder == "extender":
            yield self.rate_changes.run()
            yield self._outbox.run()

    async def _wake_when_ready_again(self) -> NoReturn:
        """Have waiting pods tried when this process is ready again, as after an API server's outage.

        While it was not ready, it refused all of them without remembering them, and kube-scheduler does not
        try such pods again by itself.
        """
        was_ready, missing_again = False, False
        while True:
            ready = self.readiness.ready()
            if ready and missing_again:
                self._try_all()
            was_ready, missing_again = was_ready or ready, was_ready and not ready
            await asyncio.sleep(_READINESS_POLL_S)

    def _try_all(self) -> None:
        """Have kube-scheduler try the unbound pods again, if there are any."""
        if self.cache.pods.unbound_count:
            self._requeuer.try_all(self.nodes.names)
