"""What metrics show of an extender's parts, besides what these show by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.config.reloaded import failures_of
from k8s_rdma.extender.telling.metrics import labelled, samples

if TYPE_CHECKING:
    from collections import Counter

    from k8s_rdma.config.reloaded import Reloaded
    from k8s_rdma.core.namespace_policy import NamespacePolicies
    from k8s_rdma.extender.cluster.nominating import Nominations
    from k8s_rdma.extender.cluster.state import ClusterState
    from k8s_rdma.extender.leader.lease import Lease
    from k8s_rdma.extender.sources.node_states import ShownNodeStates
    from k8s_rdma.extender.telling.metrics import Reading
    from k8s_rdma.extender.telling.outcomes import Outcomes
    from k8s_rdma.extender.verbs.decisions import Decisions
    from k8s_rdma.extender.waking.touching import Toucher
    from k8s_rdma.extender.waking.waiting import Waiting


def figures_of_nodes(
    state: ClusterState, decisions: Decisions, states: ShownNodeStates, waiting: Waiting, toucher: Toucher
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
        "nodes_readable": ("Nodes whose last answer is usable.", "gauge", lambda: len(state.situations)),
        "pods_promised": ("Pods that hold a placement.", "gauge", lambda: len(state.pods())),
        "pods_waiting": ("Pods that no node fitted.", "gauge", lambda: len(waiting)),
        "touches_total": ("Nodes touched since capacity came free.", "counter", lambda: toucher.touches),
        "searches_total": ("Placements searched for by filter.", "counter", lambda: decisions.searches),
        "undecided_total": ("Searches that ended at their budget.", "counter", lambda: decisions.undecided),
        "verdicts": ("Verdicts kept.", "gauge", lambda: len(decisions)),
    }


def figures_of_policies(policies: Reloaded[NamespacePolicies]) -> dict[str, Reading]:
    """Of the file of policies."""
    return {
        "policies_not_reloaded": (
            "Whether the file of policies holds what cannot be used; then those of before are in force.",
            "gauge",
            lambda: bool(failures_of(policies)),
        )
    }


def figures_of_decisions(
    outcomes: Outcomes, nominations: Nominations, api_failures: Counter[tuple[str, ...]], lease: Lease | None
) -> dict[str, Reading]:
    """Of what was decided, what is held for it, what failed, and whether this process binds."""
    by_reason, failed = ("verb", "reason"), ("call", "kind")
    return {
        "decisions_total": (
            "What verbs decided of pods.",
            "counter",
            labelled(by_reason, outcomes.decisions),
        ),
        "verdicts_total": (
            "Candidates of these decisions.",
            "counter",
            labelled(by_reason, outcomes.verdicts),
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
