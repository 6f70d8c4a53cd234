"""deploy/policies/scheduler-name.yaml: pods whose scheduler does not ask the extender."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from admission import ASKING_FOR_NOTHING, POLICIES, WITHOUT_TEMPLATE, document, made_from, policy, read_policy
from deploy.rendering.chart import documents, render
from k8s_rdma.wire.annotation import ANNOTATION

ROOT = POLICIES.parents[1]
NAME = "k8s-rdma-scheduler-name"


def pod(text: str | None, scheduler: str | None = "default-scheduler") -> dict[str, Any]:
    annotations = {} if text is None else {ANNOTATION: text}
    spec = {"containers": [{"name": "c"}], **({"schedulerName": scheduler} if scheduler else {})}
    return {"kind": "Pod", "metadata": {"annotations": annotations}, "spec": spec}


def told(found: dict[str, Any]) -> list[str]:
    return policy("scheduler-name").refusals(found)


@pytest.mark.parametrize(
    ("given", "named"),
    [("default-scheduler", "default-scheduler"), (None, "default-scheduler"), ("volcano", "volcano")],
)
def test_pod_of_a_scheduler_without_the_extender_has_a_warning(given: str | None, named: str):
    (warning,) = told(pod("[{}]", given))
    assert warning == (
        f"rdma_interfaces_required: schedulerName is {named}, which does not ask the extender; "
        "set schedulerName: rdma-scheduler"
    )
    page = " ".join((ROOT / "docs" / "policies.md").read_text().split())
    assert (f"'{NAME}' with binding '{NAME}': {warning}" in page) is (named == "default-scheduler")


def test_pod_of_the_second_scheduler_is_in_order():
    assert told(pod("[{}]", "rdma-scheduler")) == []


@pytest.mark.parametrize("text", ASKING_FOR_NOTHING)
def test_pod_without_requests_may_have_any_scheduler(text: str | None):
    assert told(pod(text)) == []


def test_templates_are_looked_into():
    for each in made_from(pod("[{}]")):
        assert told(each), each["kind"]
    for each in WITHOUT_TEMPLATE:
        assert told(each) == [], each["kind"]


def test_name_is_that_of_the_second_schedulers_example():
    (profile,) = yaml.safe_load((ROOT / "examples/scheduler/second-scheduler.yaml").read_text())["profiles"]
    (names,) = (
        each["expression"]
        for each in document("scheduler-name")["spec"]["variables"]
        if each["name"] == "schedulers"
    )
    assert yaml.safe_load(names) == [profile["schedulerName"]]


def in_chart(kubernetes: str, extender: dict[str, Any], *, injected: bool = True) -> dict[str, Any] | None:
    given = {"extender": extender, "injection": {"schedulerName": injected}}
    objects = documents(render(given, kubernetes=kubernetes))
    named = (each for each in objects if each["metadata"]["name"] == NAME)
    return next((each for each in named if each["kind"] == "ValidatingAdmissionPolicy"), None)


@pytest.mark.parametrize(("injected", "warned"), [(False, ["default-scheduler", "other"]), (True, ["other"])])
@pytest.mark.parametrize("kubernetes", ["v1.31.0", "v1.37.0"])
def test_chart_warns_of_unknown_scheduler_names(kubernetes: str, injected: bool, warned: list[str]):
    found = in_chart(kubernetes, {"scheduler": {"name": "mine"}}, injected=injected)
    assert found is not None
    names = ("default-scheduler", "other", "mine")
    sentences = {name: read_policy(found).refusals(pod("[{}]", name)) for name in names}
    assert [name for name in names if sentences[name]] == warned
    assert sentences["other"][0].endswith("set schedulerName: mine")


@pytest.mark.parametrize(
    ("kubernetes", "extender"),
    [("v1.36.0", {"mode": "host-network"}), ("v1.36.0", {"enabled": False})],
)
def test_chart_has_it_beside_a_second_scheduler_alone(kubernetes: str, extender: dict[str, Any]):
    assert in_chart(kubernetes, extender) is None
