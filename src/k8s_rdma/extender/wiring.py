"""Composition root of the extender: caches, verbs, views, metrics, and background tasks."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, TypeAlias, cast

from k8s_rdma.config.namespace_policies import policies_of
from k8s_rdma.config.reloaded import Reloaded, failures_of
from k8s_rdma.core.namespace_policy import NamespacePolicies
from k8s_rdma.extender.addresses import AddressCheck
from k8s_rdma.extender.app import Extender
from k8s_rdma.extender.assumed_pods import AssumedPods
from k8s_rdma.extender.bind import Binder, BindingWriter
from k8s_rdma.extender.config import ExtenderConfig
from k8s_rdma.extender.decision_log import DecisionLog, LastRefusals
from k8s_rdma.extender.filter import FeasibilityChecker, Scheduling
from k8s_rdma.extender.fit_cache import FitCache, Quarantine
from k8s_rdma.extender.gangs import Gangs, Quorum
from k8s_rdma.extender.http_poller import HttpPoller, poll_config
from k8s_rdma.extender.leadership import Fence, Leadership
from k8s_rdma.extender.metrics import Metrics, counted, labelled, samples
from k8s_rdma.extender.node_cache import ClusterState
from k8s_rdma.extender.node_source import ObservableNodeSource
from k8s_rdma.extender.nominated_pods import NominatedPods
from k8s_rdma.extender.pod_explanation import PodExplainer
from k8s_rdma.extender.pod_informer import NodeNames, PodInformer
from k8s_rdma.extender.pod_request import PodRequestCache
from k8s_rdma.extender.pod_store import BoundPods, Occupants
from k8s_rdma.extender.preempt import Budgets, Preempting, follow_budgets
from k8s_rdma.extender.quota import Limits
from k8s_rdma.extender.rdmanode_informer import RdmaNodeInformer
from k8s_rdma.extender.requeue import Pace, Requeuer, UnschedulablePods
from k8s_rdma.extender.search_queue import SearchQueue
from k8s_rdma.extender.unplaced_pods import UnplacedPods
from k8s_rdma.extender.views import ViewContext, Views
from k8s_rdma.kube.api import ClusterApi
from k8s_rdma.kube.leader_election import LeaderElector
from k8s_rdma.kube.watch import follow
from k8s_rdma.wire.explain import ExtenderState
from k8s_rdma.wire.placement_keys import UNSIGNED, KeySource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from k8s_rdma.core.ids import NodeName
    from k8s_rdma.extender.metrics import Reading
    from k8s_rdma.extender.node_cache import NodeSnapshot
    from k8s_rdma.kube.published import PublishedApi

    Source: TypeAlias = HttpPoller | RdmaNodeInformer

EXPECT_S = {"extender": 2.0, "scheduler": 30.0}
"""How long a pod is expected, by who binds: a bind comes at once, a node reports what its runtime did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """One of each kind: they know one another."""

    state: ClusterState
    requests: PodRequestCache
    fit_cache: FitCache
    queue: SearchQueue
    limits: Limits
    occupants: Occupants
    bound_pods: BoundPods | None
    budgets: Budgets
    nominations: NominatedPods
    assumed_pods: AssumedPods
    gangs: Gangs
    unplaced: UnplacedPods
    waiting: UnschedulablePods
    requeuer: Requeuer
    attempts: LastRefusals
    decision_log: DecisionLog
    addresses: AddressCheck
    policies: Reloaded[NamespacePolicies]


def build_components(
    config: ExtenderConfig, api: ClusterApi, clock: Callable[[], float], *, exists: Callable[[NodeName], bool]
) -> Components:
    """Empty ones. exists: whether a node of that name may be there, which who follows the nodes knows."""
    attempts = LastRefusals(clock)
    quarantine = Quarantine()
    fit_cache = FitCache(config.strategy, config.refusal_detail, quarantine=quarantine)
    waiting, occupants = UnschedulablePods(), Occupants()
    pace = Pace(poll_s=config.poll_s, touch_s=config.touch_s, by_label=config.touch_by == "label")
    queue = SearchQueue()
    requeuer = Requeuer(waiting, fit_cache, api, clock, pace, queue)
    limits = Limits(config.limits, on_freed=requeuer.freed)

    bound_pods = BoundPods() if limits and config.api else None

    def on_node_change(node: NodeName, previous: NodeSnapshot | None, current: NodeSnapshot | None) -> None:
        requeuer.on_node_change(node, previous, current)
        nominations.changed(node)
        unplaced.changed(node)

    state = ClusterState(
        on_change=on_node_change,
        on_claims=limits.update if limits else None,
        exists=exists,
        on_failure=quarantine.failed,
        bound=bound_pods,
    )
    quarantine.watch(state)
    state.on_addresses = requeuer.freed_address
    if bound_pods is not None:
        bound_pods.on_change = state.recount
    policies = policies_of(config.policy_file)
    requests = PodRequestCache(
        strict=config.strict,
        vf_resource=config.vf_resource,
        policies=policies,
        binds=config.binder == "extender",
        bill=queue.bill,
    )
    unplaced = UnplacedPods(state=state, requests=requests, clock=clock, quarantine=quarantine)
    nominations = NominatedPods(
        state, occupants, fit_cache, clock, nomination_s=config.nomination_s, on_release=requeuer.released
    )
    gangs = Gangs(api=api, state=state, clock=clock)
    lasts_s = config.expect_s or EXPECT_S[config.binder]
    return Components(
        state=state,
        requests=requests,
        fit_cache=fit_cache,
        queue=queue,
        limits=limits,
        occupants=occupants,
        bound_pods=bound_pods,
        budgets=Budgets(synced=not config.heeds_budgets),
        nominations=nominations,
        assumed_pods=AssumedPods(
            state=state,
            fit_cache=fit_cache,
            nominations=nominations,
            gangs=gangs,
            clock=clock,
            lasts_s=lasts_s,
            occupants=occupants if config.api else None,
            on_release=requeuer.released,
        ),
        gangs=gangs,
        unplaced=unplaced,
        waiting=waiting,
        requeuer=requeuer,
        attempts=attempts,
        decision_log=DecisionLog(attempts.heard),
        addresses=AddressCheck(state, nominations),
        policies=policies,
    )


_READINESS_POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """The parts of one process.

    clock: seconds, monotonic. keys: sign and verify placements. api_failures: as of `counted`.
    """

    config: ExtenderConfig
    api: ClusterApi
    clock: Callable[[], float]
    keys: KeySource
    lease: LeaderElector | None
    api_failures: Counter[tuple[str, ...]]
    components: Components
    binding_writer: BindingWriter
    readiness: Readiness

    def extender(self) -> Extender:
        """What answers kube-scheduler and people."""
        feasibility = FeasibilityChecker(
            state=self.components.state,
            fit_cache=self.components.fit_cache,
            nominations=self.components.nominations,
            assumed_pods=self.components.assumed_pods,
            clock=self.clock,
            detail=self.config.refusal_detail,
            queue=self.components.queue,
        )
        return Extender(
            scheduling=self._scheduling(feasibility),
            preempting=self._preempting(),
            binder=self._binder(),
            metrics=self._metrics(),
            missing=self.readiness.missing,
            warning=lambda: "; ".join(failures_of(self.keys, self.components.policies)),
            views=self._views(feasibility).routes(),
        )

    def background_tasks(self) -> Iterator[Coroutine[None, None, None]]:
        """What is to run as long as the extender does."""
        yield self.components.nominations.keep_time()
        yield self.components.assumed_pods.keep_time()
        if not self.config.api:
            return
        components, readiness = self.components, self.readiness
        yield readiness.leadership.run()
        yield follow("nodes", self.api.follow_nodes, readiness.nodes.on_event)
        if self.config.heeds_budgets:
            yield follow_budgets(
                self.api, components.budgets, lambda: components.requeuer.try_all(readiness.nodes.names)
            )
        yield components.requeuer.poll(readiness.states, components.limits)
        yield components.requeuer.touch(components.state, components.limits, readiness.ready)
        yield self._wake_when_ready_again()

    async def _wake_when_ready_again(self) -> NoReturn:
        """Have waiting pods tried when this process is ready again, as after an API server's outage.

        Meanwhile it refused all of them and remembered none, and kube-scheduler leaves such pods alone.
        """
        readiness, was_ready, lost = self.readiness, False, False
        while True:
            ready = readiness.ready()
            if ready and lost and len(readiness.pods.unbound):
                self.components.requeuer.try_all(readiness.nodes.names)
            was_ready, lost = was_ready or ready, was_ready and not ready
            await asyncio.sleep(_READINESS_POLL_S)

    def _scheduling(self, feasibility: FeasibilityChecker) -> Scheduling:
        return Scheduling(
            states=self.readiness.states,
            feasibility=feasibility,
            assumed_pods=self.components.assumed_pods,
            limits=self.components.limits,
            addresses=self.components.addresses,
            requests=self.components.requests,
            requeuer=self.components.requeuer,
            decision_log=self.components.decision_log,
            clock=self.clock,
            ready=self.readiness.ready,
            max_age_s=self.config.max_age_s,
        )

    def _preempting(self) -> Preempting:
        return Preempting(
            state=self.components.state,
            states=self.readiness.states,
            fit_cache=self.components.fit_cache,
            requests=self.components.requests,
            occupants=self.components.occupants,
            budgets=self.components.budgets,
            limits=self.components.limits,
            addresses=self.components.addresses,
            nominations=self.components.nominations,
            assumed_pods=self.components.assumed_pods,
            queue=self.components.queue,
            decision_log=self.components.decision_log,
            clock=self.clock,
            ready=self.readiness.ready,
            max_age_s=self.config.max_age_s,
        )

    def _binder(self) -> Binder:
        return Binder(
            state=self.components.state,
            states=self.readiness.states,
            fit_cache=self.components.fit_cache,
            requests=self.components.requests,
            unbound=self.readiness.pods.unbound,
            binding_writer=self.binding_writer,
            requeuer=self.components.requeuer,
            assumed_pods=self.components.assumed_pods,
            quorum=Quorum(gangs=self.components.gangs),
            limits=self.components.limits,
            addresses=self.components.addresses,
            nominations=self.components.nominations,
            decision_log=self.components.decision_log,
            clock=self.clock,
            ready=self.readiness.ready,
            confirm=self.readiness.leadership.confirm,
        )

    def _views(self, feasibility: FeasibilityChecker) -> Views:
        pods = PodExplainer(
            state=self.components.state,
            requests=self.components.requests,
            attempts=self.components.attempts,
            api=self.api if self.config.api else None,
            keys=self.keys,
            clock=self.clock,
            bypass_outcome=self._bypass_outcome() if self.config.binder == "extender" else "",
        )
        context = ViewContext(
            states=self.readiness.states,
            feasibility=feasibility,
            limits=self.components.limits,
            nodes=lambda: self.readiness.nodes.names() | self.components.state.nodes(),
            role=self.readiness.role,
            max_age_s=self.config.max_age_s,
        )
        return Views(pods, context)

    def _bypass_outcome(self) -> str:
        """What becomes of a pod that was bound past this extender, in a clause."""
        if self.config.allows_unplaced(signed=self.keys() is not None):
            return "its agent gives it what nobody else was promised there, or refuses it"
        return "its agent refuses it"

    def _metrics(self) -> Metrics:
        components = self.components
        metrics = Metrics()
        metrics.add(
            node_metrics(
                components.state,
                components.fit_cache,
                self.readiness.states,
                components.waiting,
                components.requeuer,
            )
        )
        metrics.add(components.limits.readings())
        metrics.add(policy_metrics(components.policies))
        metrics.add(
            decision_metrics(components.decision_log, components.nominations, self.api_failures, self.lease)
        )
        metrics.add(components.assumed_pods.readings())
        metrics.add(components.fit_cache.quarantine.readings())
        metrics.add(self.readiness.pods.signatures.readings())
        return metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """api: whether there is an API server to follow; without one nothing is waited for."""

    api: bool
    leadership: Leadership
    pods: PodInformer
    nodes: NodeNames
    states: ObservableNodeSource

    def ready(self) -> bool:
        """Whether every promise that others made is known, and nobody else makes any now."""
        return not self.api or (self.leadership.holds() and self.nodes.listed and not self.states.awaited())

    def missing(self) -> list[str]:
        """In words for people; empty when ready."""
        if not self.api:
            return []
        awaited = [f"the states of {number} nodes"] if (number := self.states.awaited()) else []
        return self.leadership.missing() + (awaited if self.nodes.listed else ["nodes"])

    def role(self) -> ExtenderState:
        """What to say of this process."""
        lacking = tuple(self.missing())
        warm = self.pods.listed and self.nodes.listed
        return ExtenderState(
            role=("standby" if warm else "starting") if lacking else "active", missing=lacking
        )


def node_metrics(
    state: ClusterState,
    fit_cache: FitCache,
    states: ObservableNodeSource,
    waiting: UnschedulablePods,
    requeuer: Requeuer,
) -> dict[str, Reading]:
    """Of nodes, their source, and what is concluded from their states."""
    return {
        **states.readings(),
        "nodes": (
            "Nodes by how their states are known.",
            "gauge",
            lambda: samples(("source",), states.sources()),
        ),
        "node_state_age_seconds": (
            "Time since the readable node was heard from that is silent for longest.",
            "gauge",
            states.oldest_s,
        ),
        "nodes_readable": ("Nodes whose last answer is usable.", "gauge", lambda: len(state.snapshots)),
        "pods_promised": ("Pods that hold a placement.", "gauge", lambda: len(state.pods())),
        "pods_waiting": ("Pods that no node fitted.", "gauge", lambda: len(waiting)),
        "touches_total": ("Nodes touched since capacity came free.", "counter", lambda: requeuer.touches),
        "searches_total": ("Placements searched for by filter.", "counter", lambda: fit_cache.searches),
        "undecided_total": ("Searches that ended at their budget.", "counter", lambda: fit_cache.undecided),
        "verdicts": ("Verdicts kept.", "gauge", lambda: len(fit_cache)),
    }


def policy_metrics(policies: Reloaded[NamespacePolicies]) -> dict[str, Reading]:
    """Of the file of policies."""
    return {
        "policies_not_reloaded": (
            "Whether the file of policies holds what cannot be used; then those of before are in force.",
            "gauge",
            lambda: bool(failures_of(policies)),
        )
    }


def decision_metrics(
    decision_log: DecisionLog,
    nominations: NominatedPods,
    api_failures: Counter[tuple[str, ...]],
    lease: LeaderElector | None,
) -> dict[str, Reading]:
    """Of what was decided, what is held for it, what failed, and whether this process binds."""
    by_reason, failed = ("verb", "reason"), ("call", "kind")
    return {
        "decisions_total": (
            "What verbs decided of pods.",
            "counter",
            labelled(by_reason, decision_log.decisions),
        ),
        "verdicts_total": (
            "Candidates of these decisions.",
            "counter",
            labelled(by_reason, decision_log.verdicts),
        ),
        "pods_nominated": (
            "Pods that room is held for, since others were evicted.",
            "gauge",
            lambda: len(nominations),
        ),
        "api_errors_total": (
            "Calls of the API server that failed.",
            "counter",
            labelled(failed, api_failures),
        ),
        "leader": ("Whether this process may bind.", "gauge", lambda: lease is None or lease.holds()),
    }


def boottime_s() -> float:
    """The one clock that all times here are of: seconds, monotonic; the machine's sleep counts, too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class BinderIdentity:
    """What makes this process's promises count.

    keys: sign and verify placements. lease: to be held before anything is promised, and given back in the
    end if nothing is in doubt then; None where nobody else can bind. api_failures: as of `counted`, where
    the Lease's are counted already.
    """

    keys: KeySource = UNSIGNED
    lease: LeaderElector | None = None
    api_failures: Counter[tuple[str, ...]] | None = None


NO_LEADER_ELECTION = BinderIdentity()
"""Neither signatures nor a Lease."""


@asynccontextmanager
async def running(
    config: ExtenderConfig, api: ClusterApi, identity: BinderIdentity = NO_LEADER_ELECTION
) -> AsyncIterator[Extender]:
    """An extender that follows the cluster until the block ends.

    A defect in a background task ends the block, too.
    """
    api_failures = Counter() if identity.api_failures is None else identity.api_failures
    api = counted(api, api_failures)
    components = build_components(
        config,
        api,
        boottime_s,
        exists=lambda node: nodes.may_exist(node),  # noqa: PLW0108  they are made below
    )
    fence = Fence(api)
    binding_writer = BindingWriter(
        components.state,
        api,
        fence,
        boottime_s,
        keys=identity.keys,
        policies=components.requests.policies,
        settle_s=config.settle_s,
    )
    async with _states(config, components.state, api) as states, binding_writer:
        pods = _pods(config, components, identity.keys)
        nodes = NodeNames(state=components.state, states=states)
        leadership = Leadership(
            pods=pods,
            fence=fence if config.binder == "extender" else None,
            follow=lambda: follow("pods", lambda: pods.stream(api), pods.on_event),
            clock=boottime_s,
            lease=identity.lease,
            settle_s=config.settle_s,
            on_ready=lambda: components.requeuer.try_all(nodes.names) if len(pods.unbound) else None,
        )
        assembly = Assembly(
            config=config,
            api=api,
            clock=boottime_s,
            keys=identity.keys,
            lease=identity.lease,
            api_failures=api_failures,
            components=components,
            binding_writer=binding_writer,
            readiness=Readiness(api=config.api, leadership=leadership, pods=pods, nodes=nodes, states=states),
        )
        extender = assembly.extender()
        async with asyncio.TaskGroup() as background:
            tasks = [background.create_task(task) for task in assembly.background_tasks()]
            yield extender
            for task in tasks:
                task.cancel()
        if not binding_writer.undecided():
            await leadership.release()


def _pods(config: ExtenderConfig, components: Components, keys: KeySource) -> PodInformer:
    return PodInformer(
        state=components.state,
        requests=components.requests,
        requeuer=components.requeuer,
        gangs=components.gangs,
        clock=boottime_s,
        attempts=components.attempts,
        keys=keys,
        occupants=components.occupants,
        bound_pods=components.bound_pods,
        nominations=components.nominations,
        unplaced=components.unplaced if config.allows_unplaced(signed=keys() is not None) else None,
    )


def _states(config: ExtenderConfig, state: ClusterState, api: ClusterApi) -> Source:
    """Where the nodes' states come from; the client of the API server has all of its Protocols."""
    if config.source == "http":
        return HttpPoller(state, poll_config(config), boottime_s)
    namespace = config.node_lease_namespace
    published = cast("PublishedApi", api)
    return RdmaNodeInformer(state, published, boottime_s, stale_s=config.stale_s, namespace=namespace)
