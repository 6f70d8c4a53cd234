"""Rules for all of deploy/policies: the form of Kubernetes 1.30, and functions that it has."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from admission import POLICIES, documents, read_policy
from injection_cases import CASES, Case

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = sorted(file.stem for file in POLICIES.glob("*.yaml") if file.stem != "inject")
"""Those of 1.30."""

FUNCTIONS = {
    *("all", "exists", "filter", "has", "map"),  # CEL's macros
    *("contains", "dyn", "endsWith", "int", "matches", "size", "startsWith", "string", "type"),  # CEL's own
    "orValue",  # optional types, 1.28
    *("find", "findAll"),  # `library.Regex`, always
    "isSorted",  # `library.Lists`, always
    *("asInteger", "isInteger", "isQuantity", "quantity"),  # `library.Quantity`, 1.29
    *("join", "lowerAscii", "replace", "split", "substring", "trim"),  # `ext.Strings` of version 2, 1.29
}
"""Source: k8s.io/apiserver, `pkg/cel/environment/base.go`, since which release each library is there."""


def expressions(name: str) -> Iterator[str]:
    """All that a file's policy has."""
    for document in documents(name):
        spec = document["spec"]
        for each in (
            *spec.get("matchConditions", ()),
            *spec.get("variables", ()),
            *spec.get("validations", ()),
        ):
            yield each["expression"]
            yield each.get("messageExpression", "''")


def code(expression: str) -> str:
    """Return the expression with its quoted strings emptied."""
    return re.sub(r"'[^']*'|\"[^\"]*\"", "''", expression)


@pytest.mark.parametrize("name", NAMES)
def test_expressions_call_only_functions_of_kubernetes_1_30(name: str):
    called = {found for each in expressions(name) for found in re.findall(r"([a-zA-Z]\w*)\(", code(each))}
    assert called <= FUNCTIONS


@pytest.mark.parametrize("name", NAMES)
def test_file_holds_a_policy_and_its_binding(name: str):
    policy, binding = documents(name)
    assert [policy["kind"], binding["kind"]] == [
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    ]
    assert {each["apiVersion"] for each in (policy, binding)} == {"admissionregistration.k8s.io/v1"}
    assert {each["metadata"]["name"] for each in (policy, binding)} == {f"k8s-rdma-{name}"}
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    assert read_policy(policy)


@pytest.mark.parametrize(
    ("name", "failure", "actions"),
    [
        ("own-node", "Fail", ["Deny"]),
        ("evictions", "Fail", ["Deny"]),
        ("extender", "Fail", ["Deny"]),
        ("claims", "Fail", ["Deny"]),
        ("one-pod", "Fail", ["Deny"]),
        ("slices", "Fail", ["Deny"]),
        ("claims-order", "Ignore", ["Warn", "Audit"]),
        ("annotation", "Ignore", ["Deny"]),
        ("claim-caps", "Ignore", ["Deny"]),
        ("managed-resource", "Ignore", ["Warn", "Audit"]),
        ("scheduler-name", "Ignore", ["Warn", "Audit"]),
    ],
)
def test_guarding_policies_fail_closed_and_helping_ones_fail_open(
    name: str, failure: str, actions: list[str]
):
    policy, binding = documents(name)
    assert (policy["spec"]["failurePolicy"], binding["spec"]["validationActions"]) == (failure, actions)
    table = (POLICIES.parents[1] / "docs" / "policies.md").read_text()
    (row,) = re.findall(rf"^\| `{name}.yaml` \|.*$", table, re.M)
    assert row.endswith(f"| `{failure}` | {', '.join(f'`{action}`' for action in actions)} |")


@pytest.mark.parametrize("name", ["own-node", "evictions", "slices"])
def test_policies_match_only_requests_of_nodes(name: str):
    policy = documents(name)[0]
    (condition,) = (each for each in policy["spec"]["matchConditions"] if each["name"] == "account-of-a-node")
    assert set(re.findall(r"'([^']*)'", condition["expression"])) == accounts("agent", "device-plugin")


def test_policies_match_only_requests_of_the_extender():
    (condition,) = documents("extender")[0]["spec"]["matchConditions"]
    assert set(re.findall(r"'([^']*)'", condition["expression"])) == accounts("extender")


def accounts(*roles: str) -> set[str]:
    """Users whose rights are in files of deploy/rbac."""
    found: list[dict[str, Any]] = [
        document
        for file in (f"{role}.yaml" for role in roles)
        for document in yaml.safe_load_all((POLICIES.parent / "rbac" / file).read_text())
    ]
    return {
        f"system:serviceaccount:{each['metadata']['namespace']}:{each['metadata']['name']}"
        for each in found
        if each["kind"] == "ServiceAccount"
    }


DECIDED = {
    "expression": "false",
    "messageExpression": "variables.newSchedulerName + '|' + "
    "(variables.slotContainers + variables.slotSidecars).join(',') + '|' + "
    "variables.ncclContainers.join(',')",
}
"""Shows the values of the policy's variables; the mutation itself takes an API server: tests/cluster."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_variables_of_the_injection_evaluate_to_the_table(case: Case):
    policy, _ = documents("inject")
    decided = read_policy({**policy, "spec": {**policy["spec"], "validations": [DECIDED]}})
    said = decided.refusals(case.pod()) or ["||"]
    assert said == [f"{case.scheduler}|{','.join(case.slots)}|{','.join(case.nccl)}"]


def test_injection_never_stands_in_the_way():
    policy, binding = documents("inject")
    assert [policy["kind"], binding["kind"]] == ["MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"]
    assert binding["spec"]["policyName"] == policy["metadata"]["name"] == "k8s-rdma-inject"
    assert policy["spec"]["failurePolicy"] == "Ignore"


def test_all_that_look_at_pods_and_templates_match_the_same_objects():
    one, *others = (
        documents(name)[0]["spec"]["matchConstraints"]
        for name in ("annotation", "claim-caps", "managed-resource", "scheduler-name")
    )
    assert others == [one, one, one]


def test_variables_of_one_name_are_the_same_in_all_policies():
    """CEL has no imports, and each file is applied as it is."""
    meant: dict[str, set[str]] = {}
    for name in (file.stem for file in POLICIES.glob("*.yaml")):
        for document in documents(name):
            for part in ("matchConditions", "variables"):
                for each in document["spec"].get(part, ()):
                    meant.setdefault(each["name"], set()).add(" ".join(each["expression"].split()))
    assert not {name: found for name, found in meant.items() if len(found) > 1}
    (one,), (many,) = meant["asks-for-interfaces"], meant["asking"]
    assert f"variables.templates.filter(pod, {one.replace('object.', 'pod.')})" == many
