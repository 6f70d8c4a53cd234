from __future__ import annotations

import pickle

import msgspec
import pytest

from k8s_rdma.kube.objects import BudgetObject


def view(**spec: object):
    document = {
        "metadata": {"name": "b", "namespace": "d"},
        "spec": spec,
        "status": {"disruptionsAllowed": 3, "disruptedPods": {"p": "2026-11-21T00:00:00Z"}},
    }
    return msgspec.json.decode(msgspec.json.encode(document), type=BudgetObject).view()


def test_budget_has_allowed_disruptions_and_pods_disrupted_already():
    seen = view()
    assert (seen.namespace, seen.name, seen.allowed, seen.disrupted) == ("d", "b", 3, frozenset({"p"}))


@pytest.mark.parametrize(
    ("selector", "labels", "selected"),
    [
        ({"matchLabels": {"a": "1"}}, {"a": "1", "b": "2"}, True),
        ({"matchLabels": {"a": "1"}}, {"a": "2"}, False),
        ({}, {"a": "1"}, False),
        (None, {"a": "1"}, False),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1", "2"]}]}, {"a": "2"}, True),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1"]}]}, {}, False),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}, {"b": "1"}, True),
        ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, {"a": ""}, True),
        ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, {"a": ""}, False),
        ({"matchExpressions": [{"key": "a", "operator": "Like", "values": ["1"]}]}, {"a": "1"}, False),
        (
            {"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "Exists"}]},
            {"a": "1"},
            False,
        ),
    ],
)
def test_budget_selects_pods_as_kube_scheduler_reads_it(selector, labels, selected):
    assert view(selector=selector).selector(labels) is selected


@pytest.mark.parametrize(("terms", "selected"), [(127, True), (100_000, False)])
def test_budget_with_an_endless_selector_selects_no_pod_and_is_not_kept(terms, selected):
    """Whoever may make budgets decides how long they are, and all are compared with each pod of a node."""
    absent = [{"key": f"k{number}", "operator": "DoesNotExist"} for number in range(terms)]
    selector = view(selector={"matchLabels": {"a": "1"}, "matchExpressions": absent}).selector
    assert selector({"a": "1"}) is selected
    assert len(pickle.dumps(selector)) < 16_384
