"""The extender put together, and running."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, cast

from k8s_rdma.extender.cluster.expecting import Expecting
from k8s_rdma.extender.cluster.following import NodeTracker, PodTracker, follow
from k8s_rdma.extender.cluster.limits import Limits
from k8s_rdma.extender.cluster.nominating import Nominations
from k8s_rdma.extender.cluster.occupants import Occupants
from k8s_rdma.extender.cluster.state import ClusterState
from k8s_rdma.extender.cluster.unplaced import Unplaced
from k8s_rdma.extender.leader.fence import Fence
from k8s_rdma.extender.leader.leading import Leading
from k8s_rdma.extender.leader.lease import Lease
from k8s_rdma.extender.looks.answers import Looks, Surroundings
from k8s_rdma.extender.looks.pod_look import PodLook
from k8s_rdma.extender.serving.app import Extender
from k8s_rdma.extender.sources.crd_states import CrdNodeStates
from k8s_rdma.extender.sources.http_states import HttpNodeStates
from k8s_rdma.extender.sources.node_access import asking_of
from k8s_rdma.extender.telling.attempts import Attempts
from k8s_rdma.extender.telling.counted_api import counted
from k8s_rdma.extender.telling.figures import figures_of_decisions, figures_of_nodes
from k8s_rdma.extender.telling.metrics import Metrics
from k8s_rdma.extender.telling.outcomes import Outcomes
from k8s_rdma.extender.verbs.binding import Binder
from k8s_rdma.extender.verbs.budgets import Budgets, follow_budgets
from k8s_rdma.extender.verbs.commit import Commits
from k8s_rdma.extender.verbs.decisions import Decisions
from k8s_rdma.extender.verbs.preempting import Preempting
from k8s_rdma.extender.verbs.requests import Requests
from k8s_rdma.extender.verbs.scheduling import Scheduling
from k8s_rdma.extender.verbs.verdicts import Verdicts
from k8s_rdma.extender.waking.touching import Pace, Toucher
from k8s_rdma.extender.waking.waiting import Waiting
from k8s_rdma.wire.explain import ExtenderState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from k8s_rdma.core.ids import NodeName
    from k8s_rdma.extender.cluster.state import Situation
    from k8s_rdma.extender.config import ExtenderConfig
    from k8s_rdma.kube.api import ClusterApi
    from k8s_rdma.kube.published import PublishedApi

    Source: TypeAlias = HttpNodeStates | CrdNodeStates


def CLOCK() -> float:  # noqa: N802  a constant to all who use it
    """The one clock that all times here are of: seconds, monotonic; the machine's sleep counts, too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """What makes this process's promises count.

    key: signs and checks placements. lease: to be held before anything is promised, and given back in the
    end if nothing is in doubt then; None where nobody else can bind. api_failures: as of `counted`, where
    the Lease's are counted already.
    """

    key: bytes | None = None
    lease: Lease | None = None
    api_failures: Counter[tuple[str, ...]] | None = None


EXPECT_S = {"extender": 2.0, "scheduler": 30.0}
"""How long a pod is expected, by who binds: a bind comes at once, a node reports what its runtime did."""

NOBODY_ELSE = Authority()
"""Neither signatures nor a Lease."""


@asynccontextmanager
async def running(
    config: ExtenderConfig, api: ClusterApi, authority: Authority = NOBODY_ELSE
) -> AsyncIterator[Extender]:
    """An extender that follows the cluster until the block ends.

    A defect in what runs beside the block ends the block, too.
    """
    key, lease = authority.key, authority.lease
    api_failures = Counter() if authority.api_failures is None else authority.api_failures
    api = counted(api, api_failures)
    attempts = Attempts(CLOCK)
    outcomes = Outcomes(attempts.heard)
    decisions = Decisions(config.strategy, config.refusal_detail)
    waiting = Waiting()
    pace = Pace(poll_s=config.poll_s, touch_s=config.touch_s, by_label=config.touch_by == "label")
    toucher = Toucher(waiting, decisions, api, CLOCK, pace)
    limits = Limits(config.limits, on_freed=toucher.freed)

    def changed(node: NodeName, before: Situation | None, after: Situation | None) -> None:
        toucher.changed(node, before, after)
        nominations.changed(node)
        unplaced.changed(node)

    state = ClusterState(
        on_change=changed,
        on_claims=limits.update if limits else None,
        exists=lambda node: nodes.may_exist(node),  # noqa: PLW0108  they are made below
    )
    requests = Requests(strict=config.strict, vf_resource=config.vf_resource)
    unplaced = Unplaced(state=state, requests=requests, clock=CLOCK)
    occupants, budgets = Occupants(), Budgets()
    nominations = Nominations(
        state, occupants, decisions, CLOCK, nomination_s=config.nomination_s, on_release=toucher.released
    )
    lasts_s = config.expect_s or EXPECT_S[config.binder]
    expecting = Expecting(
        state=state, decisions=decisions, nominations=nominations, clock=CLOCK, lasts_s=lasts_s
    )
    fence = Fence(api)
    commits = Commits(state, api, fence, CLOCK, key=key, settle_s=config.settle_s)
    async with _states(config, state, api) as states, commits:
        pods = PodTracker(
            state=state,
            requests=requests,
            toucher=toucher,
            clock=CLOCK,
            attempts=attempts,
            key=key,
            occupants=occupants,
            nominations=nominations,
            unplaced=unplaced if _allows_unplaced(config, key) else None,
        )
        nodes = NodeTracker(state=state, states=states)

        leading = Leading(
            pods=pods,
            fence=fence if config.binder == "extender" else None,
            follow=lambda: follow("pods", lambda: pods.stream(api), pods.take),
            clock=CLOCK,
            lease=lease,
            settle_s=config.settle_s,
            on_ready=lambda: toucher.try_all(nodes.names) if len(pods.unbound) else None,
        )

        def missing() -> list[str]:
            if not config.api:
                return []
            awaited = [f"the states of {number} nodes"] if (number := states.awaited()) else []
            return leading.missing() + (awaited if nodes.listed else ["nodes"])

        def role() -> ExtenderState:
            lacking = tuple(missing())
            warm = pods.listed and nodes.listed
            return ExtenderState(
                role=("standby" if warm else "starting") if lacking else "active", missing=lacking
            )

        def ready() -> bool:
            return not config.api or (leading.holds() and nodes.listed and not states.awaited())

        verdicts = Verdicts(
            state=state,
            decisions=decisions,
            nominations=nominations,
            expecting=expecting,
            clock=CLOCK,
            detail=config.refusal_detail,
        )
        scheduling = Scheduling(
            states=states,
            verdicts=verdicts,
            expecting=expecting,
            limits=limits,
            requests=requests,
            toucher=toucher,
            outcomes=outcomes,
            clock=CLOCK,
            ready=ready,
            max_age_s=config.max_age_s,
        )
        preempting = Preempting(
            state=state,
            states=states,
            decisions=decisions,
            requests=requests,
            occupants=occupants,
            budgets=budgets,
            limits=limits,
            nominations=nominations,
            outcomes=outcomes,
            clock=CLOCK,
            ready=ready,
            max_age_s=config.max_age_s,
        )
        binder = Binder(
            state=state,
            states=states,
            decisions=decisions,
            requests=requests,
            unbound=pods.unbound,
            commits=commits,
            toucher=toucher,
            expecting=expecting,
            limits=limits,
            nominations=nominations,
            outcomes=outcomes,
            clock=CLOCK,
            ready=ready,
            confirm=leading.confirm,
        )
        looks = Looks(
            PodLook(
                state=state,
                requests=requests,
                attempts=attempts,
                api=api if config.api else None,
                key=key,
                clock=CLOCK,
            ),
            Surroundings(
                states=states,
                verdicts=verdicts,
                limits=limits,
                nodes=lambda: nodes.names() | state.nodes(),
                role=role,
                max_age_s=config.max_age_s,
            ),
        )
        metrics = Metrics()
        metrics.add(figures_of_nodes(state, decisions, states, waiting, toucher) | limits.readings())
        metrics.add(figures_of_decisions(outcomes, nominations, api_failures, lease) | expecting.readings())
        async with asyncio.TaskGroup() as beside:
            tasks = (
                [
                    beside.create_task(leading.run()),
                    beside.create_task(follow("nodes", api.follow_nodes, nodes.take)),
                    beside.create_task(toucher.poll(states, limits)),
                    beside.create_task(toucher.touch(state, limits, ready)),
                    beside.create_task(follow_budgets(api, budgets)),
                ]
                if config.api
                else []
            )
            tasks.append(beside.create_task(nominations.keep_time()))
            yield Extender(
                scheduling=scheduling,
                preempting=preempting,
                binder=binder,
                metrics=metrics,
                missing=missing,
                looks=looks.gets(),
            )
            for task in tasks:
                task.cancel()
        if not commits.undecided():
            await leading.release()


def _states(config: ExtenderConfig, state: ClusterState, api: ClusterApi) -> Source:
    """Where the nodes' states come from; the client of the API server has all of its Protocols."""
    if config.source == "http":
        return HttpNodeStates(state, asking_of(config), CLOCK)
    namespace = config.node_lease_namespace
    published = cast("PublishedApi", api)
    return CrdNodeStates(state, published, CLOCK, stale_s=config.stale_s, namespace=namespace)


def _allows_unplaced(config: ExtenderConfig, key: bytes | None) -> bool:
    """Whether agents give interfaces to pods that nobody placed; as they decide it themselves."""
    if config.allow_unplaced is not None:
        return config.allow_unplaced
    return config.binder == "scheduler" or key is None
