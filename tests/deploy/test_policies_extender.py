"""deploy/policies/extender.yaml; tests/cluster asks a real API server the same."""

from __future__ import annotations

from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

import pytest

from admission import policy
from k8s_rdma.extender.leadership import FENCE_ANNOTATION, fence_token
from k8s_rdma.extender.requeue import ANNOTATION as FREED
from k8s_rdma.extender.requeue import touch_time
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION
from k8s_rdma.wire.rates_status import RATES_STATUS_ANNOTATION

EXTENDER = "system:serviceaccount:kube-system:k8s-rdma-extender"
TOKEN = fence_token()
NOW = touch_time(datetime.now(UTC))
NODE = {
    "metadata": {"name": "w1", "resourceVersion": "1", "labels": {"a": "b"}, "annotations": {"c": "d"}},
    "spec": {},
    "status": {"capacity": {"cpu": "4"}},
}
POD = {
    "metadata": {
        "name": "p",
        "annotations": {"rdma_interfaces_required": "[{}]", PLACEMENT_ANNOTATION: '{"version":1}'},
    },
    "spec": {"nodeName": "w1", "containers": [{"name": "c", "image": "i:1"}]},
    "status": {"phase": "Pending", "conditions": [{"type": "Ready", "status": "False"}]},
}
UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
READY = {"type": "Ready", "status": "True"}


def asked(operation: str, what: str, user: str = EXTENDER) -> dict[str, Any]:
    resource, _, sub = what.partition("/")
    return {
        "operation": operation,
        "resource": {"group": "", "resource": resource},
        "subResource": sub,
        "name": "p",
        "namespace": "kube-system",
        "userInfo": {"username": user},
    }


def refusals(request: dict[str, Any], new: Any = None, old: Any = None) -> list[str]:
    return policy("extender").refusals(new, oldObject=old, request=request)


def changed(found: dict[str, Any], *changes: tuple[Any, ...]) -> dict[str, Any]:
    """Return a copy with other values; a change is a path and its new value, and None removes it."""
    copy = deepcopy(found)
    for *path, to in changes:
        within = copy
        for key in path[:-1]:
            within = within.setdefault(key, {})
        within.pop(path[-1], None)
        if to is not None:
            within[path[-1]] = to
    return copy


def binding(labels: dict[str, str] | None = None, **annotations: str) -> dict[str, Any]:
    metadata = {"name": "p", "annotations": annotations} | ({"labels": labels} if labels else {})
    return {"metadata": metadata, "target": {"kind": "Node", "name": "w1"}}


BOOKKEEPING = (
    ("metadata", "managedFields", [{"manager": "x"}]),
    ("metadata", "resourceVersion", "2"),
    ("metadata", "generation", 2),
)
BY_ITSELF = {
    "fence": ("pods", ("metadata", "annotations", FENCE_ANNOTATION, TOKEN)),
    "fence by label": ("pods", ("metadata", "labels", FENCE_ANNOTATION, TOKEN)),
    "change of rates": ("pods", ("metadata", "annotations", PLACEMENT_ANNOTATION, "{}")),
    "status of a change": ("pods", ("metadata", "annotations", RATES_STATUS_ANNOTATION, "{}")),
    "wake by annotation": ("nodes", ("metadata", "annotations", FREED, NOW)),
    "wake by label": ("nodes", ("metadata", "labels", FREED, NOW)),
    "says why a pod waits": ("pods/status", ("status", "conditions", [UNSCHEDULABLE, READY])),
    "nominates": ("pods/status", ("status", "nominatedNodeName", "w1")),
    "claims": ("pods/status", ("status", "extendedResourceClaimStatus", {"resourceClaimName": "x"})),
}


@pytest.mark.parametrize("name", BY_ITSELF)
def test_extender_and_its_scheduler_write_required_fields(name: str):
    what, change = BY_ITSELF[name]
    old = changed(NODE if what == "nodes" else POD, ("status", "conditions", [READY]))
    assert refusals(asked("UPDATE", what), changed(old, change, *BOOKKEEPING), old) == []


@pytest.mark.parametrize("what", ["bindings", "pods/binding"])
@pytest.mark.parametrize(
    "bound",
    [
        binding(),
        binding(**{PLACEMENT_ANNOTATION: "{}"}),
        binding({"topology.kubernetes.io/zone": "z"}, **{PLACEMENT_ANNOTATION: "{}"}),
    ],
)
def test_pod_is_bound_with_its_placement_and_without(what: str, bound: dict[str, Any]):
    assert refusals(asked("CREATE", what), bound) == []


def test_scheduler_beside_it_preempts():
    assert refusals(asked("DELETE", "pods"), None, POD) == []


def test_conditions_of_others_may_come_in_another_order():
    one, other = {"type": "Ready", "status": "False"}, {"type": "Initialized", "status": "True"}
    old = changed(POD, ("status", "conditions", [one, other]))
    new = changed(POD, ("status", "conditions", [other, UNSCHEDULABLE, one]))
    assert refusals(asked("UPDATE", "pods/status"), new, old) == []


OF_NODE = "the extender writes nothing of a Node but the annotation or label k8s-rdma.io/capacity-freed"
OF_POD = (
    "the extender writes nothing of a pod but the annotation or label k8s-rdma.io/fence and the annotations "
    "k8s-rdma.io/placement and k8s-rdma.io/rates-status"
)
OF_STATUS = (
    "a scheduler writes nothing of a pod's status but its own conditions, nominatedNodeName and claims"
)
ANYWHERE = (
    ("metadata", "labels", "x", "y"),
    ("metadata", "annotations", "x", "y"),
    ("metadata", "finalizers", ["x"]),
    ("metadata", "ownerReferences", ["x"]),
    ("metadata", "a field of a later Kubernetes", "x"),
    ("a field of a later Kubernetes", "x"),
)
WRITTEN = [
    *(("nodes", OF_NODE, change) for change in ANYWHERE),
    ("nodes", OF_NODE, ("spec", "unschedulable", True)),
    ("nodes", OF_NODE, ("spec", "taints", [])),
    ("nodes", OF_NODE, ("status", "capacity", "cpu", "5")),
    ("nodes", OF_NODE, ("metadata", "annotations", "c", None)),
    ("nodes", OF_NODE, ("metadata", "labels", "a", None)),
    ("nodes", OF_NODE, ("metadata", "labels", FREED, "true")),
    ("nodes", OF_NODE, ("metadata", "annotations", FREED, "x" * 100_000)),
    ("nodes/status", OF_NODE, ("metadata", "annotations", FREED, NOW)),
    *(("pods", OF_POD, change) for change in ANYWHERE),
    ("pods", OF_POD, ("spec", "containers", [{"name": "c", "image": "evil:1"}])),
    ("pods", OF_POD, ("spec", "tolerations", [{"operator": "Exists"}])),
    ("pods", OF_POD, ("spec", "schedulingGates", [])),
    ("pods", OF_POD, ("status", "phase", "Failed")),
    ("pods", OF_POD, ("metadata", "annotations", "rdma_interfaces_required", None)),
    ("pods", OF_POD, ("metadata", "annotations", PLACEMENT_ANNOTATION, None)),
    ("pods", OF_POD, ("metadata", "annotations", FENCE_ANNOTATION, "x" * 100_000)),
    ("pods", OF_POD, ("metadata", "labels", FENCE_ANNOTATION, "true")),
    *(("pods/status", OF_STATUS, change) for change in ANYWHERE),
    ("pods/status", OF_STATUS, ("metadata", "annotations", FENCE_ANNOTATION, TOKEN)),
    ("pods/status", OF_STATUS, ("status", "phase", "Failed")),
    ("pods/status", OF_STATUS, ("status", "podIP", "192.0.2.1")),
    ("pods/status", OF_STATUS, ("status", "resourceClaimStatuses", [{"name": "x"}])),
    ("pods/status", OF_STATUS, ("status", "conditions", [READY])),
    ("pods/status", OF_STATUS, ("status", "conditions", [UNSCHEDULABLE])),
    *(
        (what, f"the extender has no use for UPDATE of {what}", ("spec", {}))
        for what in ("pods/ephemeralcontainers", "pods/resize")
    ),
]


@pytest.mark.parametrize(("what", "told", "change"), WRITTEN)
def test_extender_writes_no_other_field(what: str, told: str, change: tuple[Any, ...]):
    old = NODE if what.startswith("nodes") else POD
    assert refusals(asked("UPDATE", what), changed(old, change), old) == [told]


def test_pod_that_is_not_bound_gets_no_placement_but_by_its_binding():
    unbound = changed(POD, ("spec", "nodeName", None))
    new = changed(unbound, ("metadata", "annotations", PLACEMENT_ANNOTATION, "{}"))
    assert refusals(asked("UPDATE", "pods"), new, unbound) == [OF_POD]


def test_fence_and_wake_are_not_taken_away():
    pod = changed(POD, ("metadata", "annotations", FENCE_ANNOTATION, TOKEN))
    assert refusals(asked("UPDATE", "pods"), POD, pod) == [OF_POD]
    node = changed(NODE, ("metadata", "annotations", FREED, NOW))
    assert refusals(asked("UPDATE", "nodes"), NODE, node) == [OF_NODE]


@pytest.mark.parametrize(
    ("operation", "what", "told"),
    [
        ("CREATE", "pods", OF_POD),
        ("CREATE", "nodes", OF_NODE),
        ("DELETE", "nodes", OF_NODE),
        ("CONNECT", "nodes/proxy", OF_NODE),
        ("CONNECT", "pods/exec", "the extender has no use for CONNECT of pods/exec"),
        ("CREATE", "pods/eviction", "the extender has no use for CREATE of pods/eviction"),
        ("CREATE", "pods/status", OF_STATUS),
    ],
)
def test_extender_makes_no_other_request(operation: str, what: str, told: str):
    new, old = (None, POD) if operation == "DELETE" else (POD, None)
    assert refusals(asked(operation, what), new, old) == [told]


@pytest.mark.parametrize("what", ["bindings", "pods/binding"])
@pytest.mark.parametrize("key", ["rdma_interfaces_required", FENCE_ANNOTATION, "x"])
def test_binding_brings_no_annotation_of_others(what: str, key: str):
    told = ["the extender binds with no annotation but k8s-rdma.io/placement"]
    assert refusals(asked("CREATE", what), binding(**{key: "x"})) == told


@pytest.mark.parametrize("what", ["bindings", "pods/binding"])
def test_binding_brings_no_label_of_its_own(what: str):
    told = ["the extender binds with no labels but those of the Node's topology"]
    assert refusals(asked("CREATE", what), binding({"app": "victim"})) == told


def test_policy_is_about_no_other_user():
    new = changed(POD, ("spec", "containers", []))
    assert refusals(asked("UPDATE", "pods", "system:kube-scheduler"), new, POD) == []
