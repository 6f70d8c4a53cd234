"""deploy/policies/own-node.yaml and evictions.yaml; tests/cluster asks a real API server the same."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from admission import policy
from k8s_rdma.wire.claim_caps import CLAIM_CAPS_STATUS_ANNOTATION
from k8s_rdma.wire.network_status import NETWORK_STATUS_ANNOTATION

AGENT = "system:serviceaccount:k8s-rdma:k8s-rdma-agent"
DEVICE_PLUGIN = "system:serviceaccount:k8s-rdma:k8s-rdma-device-plugin"
NODE = {
    "metadata": {"name": "w1", "labels": {"a": "b"}, "annotations": {"c": "d"}},
    "spec": {},
    "status": {"capacity": {"cpu": "4", "k8s-rdma.io/vf": "8"}, "conditions": [], "addresses": []},
}
POD = {
    "metadata": {"name": "p", "annotations": {"rdma_interfaces_required": "[{}]"}},
    "spec": {"nodeName": "w1"},
}
EVENT = {
    "involvedObject": {"kind": "Node", "name": "w1"},
    "source": {"host": "w1"},
    "reportingInstance": "w1",
}


def asked(
    operation: str, what: str, name: str = "w1", user: str = AGENT, node: str | None = "w1"
) -> dict[str, Any]:
    """A request of whom that node's pod has a token for."""
    resource, _, sub = what.partition("/")
    claim = {} if node is None else {"extra": {"authentication.kubernetes.io/node-name": [node]}}
    return {
        "operation": operation,
        "resource": {"group": "", "resource": resource},
        "subResource": sub,
        "name": name,
        "namespace": "default",
        "userInfo": {"username": user, **claim},
    }


def refusals(request: dict[str, Any], new: Any = None, old: Any = None) -> list[str]:
    return policy("own-node").refusals(new, oldObject=old, request=request)


def changed(found: dict[str, Any], *path: str, to: Any) -> dict[str, Any]:
    """Return a copy with another value there; None: without it."""
    copy = within = deepcopy(found)
    for key in path[:-1]:
        within = within.setdefault(key, {})
    if to is None:
        del within[path[-1]]
    else:
        within[path[-1]] = to
    return copy


BLOCK = "addresses.10-56-0-0.16.24.7"


MAC = "addresses.mac.02-00-00-00-00-01"


def lease(holder: str) -> dict[str, Any]:
    """A block of addresses, or one of them."""
    return {"metadata": {"name": BLOCK}, "spec": {"holderIdentity": holder}}


ALLOWED = {
    "rdmanode": (asked("CREATE", "rdmanodes"), {}, None),
    "its status": (asked("UPDATE", "rdmanodes/status"), {}, {}),
    "lease": (asked("CREATE", "leases"), {}, None),
    "renewed": (asked("UPDATE", "leases"), {}, {}),
    "block of addresses": (asked("CREATE", "leases", BLOCK), lease("w1"), None),
    "renewed block": (asked("UPDATE", "leases", BLOCK), lease("w1"), lease("w1")),
    "mac": (asked("CREATE", "leases", MAC), lease("w1"), None),
    "end of a mac": (asked("DELETE", "leases", MAC), None, lease("w1")),
    "vfs": (
        asked("UPDATE", "nodes/status"),
        changed(NODE, "status", "capacity", "k8s-rdma.io/vf", to="7"),
        NODE,
    ),
    "first vfs": (
        asked("UPDATE", "nodes/status"),
        changed(NODE, "status", "capacity", "example.com/vf", to="7"),
        NODE,
    ),
    "pod": (
        asked("UPDATE", "pods", "p"),
        changed(POD, "metadata", "annotations", NETWORK_STATUS_ANNOTATION, to="[]"),
        POD,
    ),
    "pod with a cap": (
        asked("UPDATE", "pods", "p"),
        changed(POD, "metadata", "annotations", CLAIM_CAPS_STATUS_ANNOTATION, to="{}"),
        POD,
    ),
    "event of node": (asked("CREATE", "events", "e"), EVENT, None),
    "event of pod": (
        asked("CREATE", "events", "e"),
        {**EVENT, "involvedObject": {"kind": "Pod", "name": "p"}},
        None,
    ),
    "repeated": (asked("UPDATE", "events", "e"), EVENT, EVENT),
    "device plugin": (asked("CREATE", "events", "e", DEVICE_PLUGIN), EVENT, None),
    "somebody else": (asked("UPDATE", "nodes", "w2", "admin", None), {}, {}),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_agent_may_do_its_work(name: str):
    request, new, old = ALLOWED[name]
    assert refusals(request, new, old) == []


NOT_OF_NODE = "is not of node w1, whose agent asks"
NOTHING_OF_NODE = "an agent writes nothing of a Node but the capacity in its status"
NOTHING_OF_POD = (
    "an agent writes nothing of a pod but its annotations k8s-rdma.io/network-status and "
    "k8s-rdma.io/claim-caps-status"
)
UNREPORTED = "event default/e is not reported by node w1, or about another node"
STATUS = (
    "addresses",
    "allocatable",
    "conditions",
    "config",
    "daemonEndpoints",
    "declaredFeatures",
    "features",
    "images",
    "nodeInfo",
    "phase",
    "runtimeHandlers",
    "volumesAttached",
    "volumesInUse",
    "a field of a later Kubernetes",
)
REFUSED = [
    (asked("CREATE", "rdmanodes", "w2"), {}, None, f"rdmanodes w2 {NOT_OF_NODE}"),
    (asked("UPDATE", "rdmanodes/status", "w2"), {}, {}, f"rdmanodes/status w2 {NOT_OF_NODE}"),
    (asked("DELETE", "rdmanodes", "w2"), None, {}, f"rdmanodes w2 {NOT_OF_NODE}"),
    (asked("CREATE", "rdmanodes", ""), {}, None, f"rdmanodes  {NOT_OF_NODE}"),
    (asked("CREATE", "leases", "w2"), {}, None, f"leases w2 {NOT_OF_NODE}"),
    (asked("UPDATE", "leases", "w2"), {}, {}, f"leases w2 {NOT_OF_NODE}"),
    (asked("CREATE", "leases", BLOCK), lease("w2"), None, f"leases {BLOCK} {NOT_OF_NODE}"),
    (asked("CREATE", "leases", BLOCK), {"spec": {}}, None, f"leases {BLOCK} {NOT_OF_NODE}"),
    (asked("UPDATE", "leases", BLOCK), lease("w1"), lease("w2"), f"leases {BLOCK} {NOT_OF_NODE}"),
    (asked("UPDATE", "leases", BLOCK), lease("w2"), lease("w1"), f"leases {BLOCK} {NOT_OF_NODE}"),
    (asked("DELETE", "leases", BLOCK), None, lease("w1"), f"leases {BLOCK} {NOT_OF_NODE}"),
    (asked("DELETE", "leases", MAC), None, lease("w2"), f"leases {MAC} {NOT_OF_NODE}"),
    (asked("UPDATE", "leases", MAC), lease("w1"), lease("w2"), f"leases {MAC} {NOT_OF_NODE}"),
    (asked("DELETE", "leases", "w1.mac.x"), None, lease("w1"), f"leases w1.mac.x {NOT_OF_NODE}"),
    (asked("CREATE", "rdmanodes", BLOCK), lease("w1"), None, f"rdmanodes {BLOCK} {NOT_OF_NODE}"),
    (asked("UPDATE", "nodes/status", "w2"), NODE, NODE, f"nodes/status w2 {NOT_OF_NODE}"),
    (asked("UPDATE", "nodes"), NODE, NODE, NOTHING_OF_NODE),
    (asked("DELETE", "nodes"), None, NODE, NOTHING_OF_NODE),
    *(
        (asked("UPDATE", "nodes/status"), changed(NODE, "status", field, to=["x"]), NODE, NOTHING_OF_NODE)
        for field in STATUS
    ),
    *(
        (asked("UPDATE", "nodes/status"), changed(NODE, *path, to=to), NODE, NOTHING_OF_NODE)
        for *path, to in (
            ("metadata", "labels", "a", "x"),
            ("metadata", "annotations", "c", "x"),
            ("metadata", "annotations", "c", None),
            ("metadata", "annotations", "k8s-rdma.io/capacity-freed", "x"),
            ("metadata", "finalizers", ["x"]),
            ("metadata", "ownerReferences", ["x"]),
            ("metadata", "a field of a later Kubernetes", "x"),
            ("spec", "unschedulable", True),
            ("a field of a later Kubernetes", "x"),
        )
    ),
    *(
        (
            asked("UPDATE", "nodes/status"),
            changed(NODE, "status", "capacity", resource, to=to),
            NODE,
            f"an agent counts its VFs in an extended resource alone, not {resource}",
        )
        for resource, to in (
            ("cpu", "5"),
            ("cpu", None),
            ("hugepages-1Gi", "1"),
            ("kubernetes.io/batch-cpu", "1"),
            ("x.kubernetes.io/y", "1"),
        )
    ),
    (
        asked("UPDATE", "pods", "p", node="w2"),
        POD,
        POD,
        "pods default/p is not bound to node w2, whose agent asks",
    ),
    (
        asked("UPDATE", "pods", "p"),
        changed(POD, "spec", "nodeName", to=None),
        changed(POD, "spec", "nodeName", to=None),
        "pods default/p is not bound to node w1, whose agent asks",
    ),
    (
        asked("UPDATE", "pods/status", "p"),
        POD,
        POD,
        "pods/status default/p is not bound to node w1, whose agent asks",
    ),
    *(
        (asked("UPDATE", "pods", "p"), changed(POD, *path, to=to), POD, NOTHING_OF_POD)
        for *path, to in (
            ("metadata", "annotations", "rdma_interfaces_required", "[]"),
            ("metadata", "annotations", "rdma_interfaces_required", None),
            ("metadata", "annotations", "k8s-rdma.io/placement", "{}"),
            ("metadata", "labels", {"a": "b"}),
            ("metadata", "finalizers", ["x"]),
            ("metadata", "ownerReferences", ["x"]),
            ("metadata", "a field of a later Kubernetes", "x"),
            ("spec", "activeDeadlineSeconds", 1),
            ("status", "phase", "Failed"),
        )
    ),
    (asked("CREATE", "events", "e"), changed(EVENT, "source", "host", to="w2"), None, UNREPORTED),
    (asked("CREATE", "events", "e"), changed(EVENT, "source", to=None), None, UNREPORTED),
    (asked("CREATE", "events", "e"), changed(EVENT, "reportingInstance", to="w2"), None, UNREPORTED),
    (asked("CREATE", "events", "e"), changed(EVENT, "reportingInstance", to=None), None, UNREPORTED),
    (asked("CREATE", "events", "e"), changed(EVENT, "involvedObject", "name", to="w2"), None, UNREPORTED),
    (asked("CREATE", "events", "e"), changed(EVENT, "involvedObject", "kind", to="Secret"), None, UNREPORTED),
    (asked("UPDATE", "events", "e"), EVENT, changed(EVENT, "source", "host", to="w2"), UNREPORTED),
    (asked("UPDATE", "events", "e"), EVENT, changed(EVENT, "source", to=None), UNREPORTED),
]


@pytest.mark.parametrize(("request_", "new", "old", "told"), REFUSED)
def test_agent_may_do_no_other_request(request_: dict[str, Any], new: Any, old: Any, told: str):
    assert told in refusals(request_, new, old)


@pytest.mark.parametrize("operation", ["CREATE", "DELETE"])
def test_pods_are_neither_made_nor_deleted(operation: str):
    new, old = (POD, None) if operation == "CREATE" else (None, POD)
    assert refusals(asked(operation, "pods", "p"), new, old)


def test_events_are_not_deleted():
    assert refusals(asked("DELETE", "events", "e"), None, EVENT) == [UNREPORTED]


@pytest.mark.parametrize("user", [AGENT, DEVICE_PLUGIN])
@pytest.mark.parametrize(
    "extra", [{}, {"extra": {}}, {"extra": {"authentication.kubernetes.io/pod-name": ["p"]}}]
)
def test_token_that_names_no_node_is_refused(user: str, extra: dict[str, Any]):
    request = {**asked("CREATE", "events", "e"), "userInfo": {"username": user, **extra}}
    told = f"{user}: its token names no node (authentication.kubernetes.io/node-name), as one that is bound"
    assert any(each.startswith(told) for each in refusals(request, EVENT))


@pytest.mark.parametrize(
    ("name", "bound", "node", "user", "good"),
    [
        ("p", "w1", "w1", AGENT, True),
        ("p", "w2", "w1", AGENT, False),
        ("p", None, "w1", AGENT, False),
        ("p", "w1", None, AGENT, False),
        ("p", None, None, AGENT, False),
        ("p", "w2", "w1", DEVICE_PLUGIN, False),
        ("p", "w2", None, "admin", True),
        ("another", "w2", "w1", AGENT, True),
    ],
)
def test_agent_evicts_pods_of_its_node_alone(
    name: str, bound: str | None, node: str | None, user: str, good: bool
):
    """Asked once with each pod of the namespace, which is `name` here; the eviction is of p."""
    params = {"metadata": {"name": name}, "spec": {"nodeName": bound} if bound else {}}
    told = policy("evictions").refusals(
        {}, params=params, request=asked("CREATE", "pods/eviction", "p", user, node)
    )
    assert told == ([] if good else [f"pod default/p is not bound to node {node or ''}, whose agent asks"])
