"""Evictions and what forbids them (source: `pkg/registry/core/pod/storage/eviction.go`).

No disruption controller runs here: a budget's `status.disruptionsAllowed` is what was written there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.sim.cluster.label_selector import selects
from k8s_rdma.sim.cluster.objects import is_finished, is_terminating, labels_of, name_of, spec_of, status_of
from k8s_rdma.sim.cluster.resources import POD_DISRUPTION_BUDGETS
from k8s_rdma.sim.cluster.status import bad_request, too_many_requests

if TYPE_CHECKING:
    from k8s_rdma.sim.cluster.objects import JsonObject
    from k8s_rdma.sim.cluster.resources import Target
    from k8s_rdma.sim.cluster.store import Store


def check_eviction(target: Target, eviction: JsonObject) -> None:
    """Refuse (StatusError 400) an Eviction that is for another pod than the URL's."""
    if name_of(eviction) not in {"", target.name}:
        raise bad_request("name in URL does not match name in Eviction object")


def spend_budget(store: Store, pod: JsonObject) -> None:
    """Take the pod's eviction off its budgets; StatusError 429 when one of them has none left.

    A pod that has not begun to run, or has ended, or is going, disrupts nothing.
    """
    if is_finished(pod) or is_terminating(pod) or status_of(pod).get("phase") == "Pending":
        return
    namespace = pod["metadata"]["namespace"]
    budgets = [each for each in store.items(POD_DISRUPTION_BUDGETS, namespace) if _covers(each, pod)]
    for budget in budgets:
        if status_of(budget).get("disruptionsAllowed", 0) <= 0:
            raise too_many_requests(
                "Cannot evict pod as it would violate the pod's disruption budget.", name_of(budget)
            )
    for budget in budgets:
        status = status_of(budget)
        left = {**status, "disruptionsAllowed": status["disruptionsAllowed"] - 1}
        store.put(POD_DISRUPTION_BUDGETS, {**budget, "status": left})


def _covers(budget: JsonObject, pod: JsonObject) -> bool:
    """Whether a budget is for that pod; one with an empty selector is for all, one without for none."""
    selector = spec_of(budget).get("selector")
    return selector is not None and selects(selector, labels_of(pod))
