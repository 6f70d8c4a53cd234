"""What is known of the cluster and promised in it, and who hears when that changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.config.namespace_policies import policies_of
from k8s_rdma.config.reloaded import Reloaded
from k8s_rdma.core.namespace_policy import NamespacePolicies
from k8s_rdma.extender.cluster.addresses import AddressCheck
from k8s_rdma.extender.cluster.bound_pods import BoundPods
from k8s_rdma.extender.cluster.expecting import Expecting
from k8s_rdma.extender.cluster.gangs import Gangs
from k8s_rdma.extender.cluster.limits import Limits
from k8s_rdma.extender.cluster.nominating import Nominations
from k8s_rdma.extender.cluster.occupants import Occupants
from k8s_rdma.extender.cluster.quarantine import Quarantine
from k8s_rdma.extender.cluster.state import ClusterState
from k8s_rdma.extender.cluster.unplaced import Unplaced
from k8s_rdma.extender.telling.attempts import Attempts
from k8s_rdma.extender.telling.outcomes import Outcomes
from k8s_rdma.extender.verbs.budgets import Budgets
from k8s_rdma.extender.verbs.decisions import Decisions
from k8s_rdma.extender.verbs.requests import Requests
from k8s_rdma.extender.verbs.search_queue import SearchQueue
from k8s_rdma.extender.waking.touching import Pace, Toucher
from k8s_rdma.extender.waking.waiting import Waiting

if TYPE_CHECKING:
    from collections.abc import Callable

    from k8s_rdma.core.ids import NodeName
    from k8s_rdma.extender.cluster.state import Situation
    from k8s_rdma.extender.config import ExtenderConfig
    from k8s_rdma.kube.api import ClusterApi

EXPECT_S = {"extender": 2.0, "scheduler": 30.0}
"""How long a pod is expected, by who binds: a bind comes at once, a node reports what its runtime did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """One of each kind: they know one another."""

    state: ClusterState
    requests: Requests
    decisions: Decisions
    queue: SearchQueue
    limits: Limits
    occupants: Occupants
    bound_pods: BoundPods | None
    budgets: Budgets
    nominations: Nominations
    expecting: Expecting
    gangs: Gangs
    unplaced: Unplaced
    waiting: Waiting
    toucher: Toucher
    attempts: Attempts
    outcomes: Outcomes
    addresses: AddressCheck
    policies: Reloaded[NamespacePolicies]


def open_accounts(
    config: ExtenderConfig, api: ClusterApi, clock: Callable[[], float], *, exists: Callable[[NodeName], bool]
) -> Accounts:
    """Empty ones. exists: whether a node of that name may be there, which who follows the nodes knows."""
    attempts = Attempts(clock)
    quarantine = Quarantine()
    decisions = Decisions(config.strategy, config.refusal_detail, quarantine=quarantine)
    waiting, occupants = Waiting(), Occupants()
    pace = Pace(poll_s=config.poll_s, touch_s=config.touch_s, by_label=config.touch_by == "label")
    queue = SearchQueue()
    toucher = Toucher(waiting, decisions, api, clock, pace, queue)
    limits = Limits(config.limits, on_freed=toucher.freed)

    bound_pods = BoundPods() if limits and config.api else None

    def changed(node: NodeName, before: Situation | None, after: Situation | None) -> None:
        toucher.changed(node, before, after)
        nominations.changed(node)
        unplaced.changed(node)

    state = ClusterState(
        on_change=changed,
        on_claims=limits.update if limits else None,
        exists=exists,
        on_failure=quarantine.failed,
        bound=bound_pods,
    )
    quarantine.watch(state)
    state.on_addresses = toucher.freed_address
    if bound_pods is not None:
        bound_pods.on_change = state.recount
    policies = policies_of(config.policy_file)
    requests = Requests(
        strict=config.strict,
        vf_resource=config.vf_resource,
        policies=policies,
        binds=config.binder == "extender",
        bill=queue.bill,
    )
    unplaced = Unplaced(state=state, requests=requests, clock=clock, quarantine=quarantine)
    nominations = Nominations(
        state, occupants, decisions, clock, nomination_s=config.nomination_s, on_release=toucher.released
    )
    gangs = Gangs(api=api, state=state, clock=clock)
    lasts_s = config.expect_s or EXPECT_S[config.binder]
    return Accounts(
        state=state,
        requests=requests,
        decisions=decisions,
        queue=queue,
        limits=limits,
        occupants=occupants,
        bound_pods=bound_pods,
        budgets=Budgets(known=not config.heeds_budgets),
        nominations=nominations,
        expecting=Expecting(
            state=state,
            decisions=decisions,
            nominations=nominations,
            gangs=gangs,
            clock=clock,
            lasts_s=lasts_s,
            occupants=occupants if config.api else None,
            on_release=toucher.released,
        ),
        gangs=gangs,
        unplaced=unplaced,
        waiting=waiting,
        toucher=toucher,
        attempts=attempts,
        outcomes=Outcomes(attempts.heard),
        addresses=AddressCheck(state, nominations),
        policies=policies,
    )
