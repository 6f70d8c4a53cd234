"""Nodes that a pod selects, by kube-scheduler's rules; and its scheduling gates."""

from __future__ import annotations

import pytest

from k8s_rdma.core.pod_constraints import (
    EVERY_NODE,
    NodeRequirement,
    NodeSelection,
    NodeTerm,
    gates_obstacles,
)

NODE = "w1"


def label(key: str, operator: str, *values: str) -> NodeRequirement:
    return NodeRequirement(key, operator, values)


def name(operator: str, *values: str, key: str = "metadata.name") -> NodeRequirement:
    return NodeRequirement(key, operator, values, of_field=True)


def terms(*found: tuple[NodeRequirement, ...]) -> NodeSelection:
    return NodeSelection(terms=tuple(map(NodeTerm, found)))


@pytest.mark.parametrize(
    ("selection", "labels", "selected"),
    [
        (EVERY_NODE, {}, True),
        (NodeSelection(labels={"foo": "bar"}), {}, False),
        (NodeSelection(labels={"foo": "bar"}), {"foo": "bar", "baz": "blah"}, True),
        (NodeSelection(labels={"foo": "bar", "baz": "blah"}), {"foo": "bar"}, False),
        (terms((label("foo", "In", "bar", "value2"),)), {"foo": "bar"}, True),
        (terms((label("foo", "In", "bar", "value2"),)), {"foo": "else"}, False),
        (terms((label("foo", "In", "bar"),)), {}, False),
        (terms((label("mem", "NotIn", "lots"),)), {"mem": "few"}, True),
        (terms((label("mem", "NotIn", "lots"),)), {}, True),
        (terms((label("mem", "NotIn", "lots"),)), {"mem": "lots"}, False),
        (terms((label("GPU", "Exists"),)), {"GPU": "NVIDIA-GRID-K1"}, True),
        (terms((label("GPU", "Exists"),)), {"GPU": ""}, True),
        (terms((label("GPU", "Exists"),)), {}, False),
        (terms((label("GPU", "DoesNotExist"),)), {}, True),
        (terms((label("GPU", "DoesNotExist"),)), {"GPU": ""}, False),
        (terms((label("kernel", "Gt", "0204"),)), {"kernel": "0206"}, True),
        (terms((label("kernel", "Gt", "204"),)), {"kernel": "204"}, False),
        (terms((label("kernel", "Gt", "9"),)), {"kernel": "10"}, True),
        (terms((label("kernel", "Gt", "9"),)), {"kernel": "v10"}, False),
        (terms((label("kernel", "Gt", "9"),)), {}, False),
        (terms((label("kernel", "Lt", "9"),)), {"kernel": "8"}, True),
        (terms((label("kernel", "Lt", "9"),)), {"kernel": "9"}, False),
        (terms((label("kernel", "Lt", "9"),)), {"kernel": ""}, False),
        (terms((label("kernel", "Lt", "9"),)), {"kernel": "9223372036854775808"}, False),
        (terms((label("GPU", "Exists"), label("GPU", "NotIn", "AMD"))), {"GPU": "NVIDIA"}, True),
        (terms((label("GPU", "Exists"), label("GPU", "NotIn", "AMD"))), {"GPU": "AMD"}, False),
        (terms((label("foo", "In", "bar"),), (label("diffkey", "In", "wrong"),)), {"foo": "bar"}, True),
        (terms((label("diffkey", "In", "wrong"),), (label("foo", "In", "bar"),)), {"foo": "bar"}, True),
        (terms((label("a", "In", "1"),), (label("b", "In", "2"),)), {"foo": "bar"}, False),
        (terms(), {"foo": "bar"}, False),
        (terms(()), {"foo": "bar"}, False),
        (terms((), (label("foo", "Exists"),)), {"foo": "bar"}, True),
        (terms((name("In", NODE),)), {}, True),
        (terms((name("In", "w2"),)), {}, False),
        (terms((name("NotIn", "w2"),)), {}, True),
        (terms((name("NotIn", NODE),)), {}, False),
        (terms((name("In", "w2"),), (label("foo", "In", "bar"),)), {"foo": "bar"}, True),
        (terms((name("In", NODE), label("foo", "In", "bar"))), {}, False),
        (terms((name("In", NODE), label("foo", "In", "bar"))), {"foo": "bar"}, True),
        (NodeSelection(labels={"foo": "bar"}, terms=(NodeTerm((label("a", "Exists"),)),)), {"a": ""}, False),
        (NodeSelection(labels={"a": ""}, terms=(NodeTerm((label("a", "Exists"),)),)), {"a": ""}, True),
    ],
)  # fmt: skip
def test_node_is_selected_as_kube_scheduler_does(
    selection: NodeSelection, labels: dict[str, str], selected: bool
):
    assert selection.selects(NODE, labels) is selected


@pytest.mark.parametrize(
    ("requirement", "fault"),
    [
        (
            label("foo", "NotIn", "invalid value: ___@#$%^"),
            "'invalid value: ___@#$%^' is no value of a label",
        ),
        (label("foo", "In"), "In needs a value"),
        (label("foo", "NotIn"), "NotIn needs a value"),
        (label("foo", "Exists", "a"), "Exists takes no values"),
        (label("foo", "DoesNotExist", "a"), "DoesNotExist takes no values"),
        (label("foo", "Gt", "1", "2"), "Gt needs one integer"),
        (label("foo", "Gt", "many"), "Gt needs one integer"),
        (label("foo", "Lt", "-1"), "'-1' is no value of a label"),
        (label("foo", "Lt", "1_0"), "Lt needs one integer"),
        (label("foo", "in", "a"), "operator 'in' is none of In, NotIn, Exists, DoesNotExist, Gt, Lt"),
        (label("", "Exists"), "key '' is no name of a label"),
        (label("a/b/c", "Exists"), "key 'a/b/c' is no name of a label"),
        (label("Upper.io/b", "Exists"), "key 'Upper.io/b' is no name of a label"),
        (label("a" * 64, "DoesNotExist"), f"key '{'a' * 64}' is no name of a label"),
        (label("foo", "In", "a" * 64), f"'{'a' * 64}' is no value of a label"),
        (name("In", "a", "b"), "In of a field needs one value"),
        (name("In"), "In of a field needs one value"),
        (name("Exists"), "operator 'Exists' of a field is none of In, NotIn"),
        (name("In", "a", key="spec.podCIDR"), "key 'spec.podCIDR' is not metadata.name"),
    ],
)
def test_requirement_that_kubernetes_does_not_accept_selects_no_node(
    requirement: NodeRequirement, fault: str
):
    assert requirement.fault() == fault
    assert not terms((requirement,)).selects(NODE, {"other": "x"})
    assert terms((requirement,), (label("other", "Exists"),)).selects(NODE, {"other": "x"})


@pytest.mark.parametrize("key", ["kubernetes.io/hostname", "a", "A_b.c-d", f"{'a.' * 126}a/{'b' * 63}"])
def test_names_of_labels_are_accepted(key: str):
    assert not label(key, "Exists").fault()


def test_selection_is_described_in_the_words_of_the_manifest():
    labels = {"net": "fast"}
    found = NodeSelection(
        labels=labels,
        terms=(
            NodeTerm((label("zone", "In", "a", "b"), label("gpu", "Exists"))),
            NodeTerm((name("In", "w1"),)),
        ),
    )
    assert str(found) == (
        "nodeSelector net=fast and required node affinity zone In a, b and gpu Exists or metadata.name In w1"
    )
    assert str(terms(())) == "required node affinity without requirements"
    assert str(terms()) == "required node affinity without terms"
    assert len(str(terms(*[(label("zone", "In", "a" * 60),)] * 100))) == 200
    assert not EVERY_NODE
    assert terms()


def test_gates_are_named_with_kueues_own_way():
    assert gates_obstacles([]) == ()
    assert gates_obstacles(["example.com/a", "b"]) == (
        "schedulingGates example.com/a, b: kube-scheduler does not try it before they are removed",
    )
    assert "; Kueue removes its own" in gates_obstacles(["kueue.x-k8s.io/admission"])[0]
