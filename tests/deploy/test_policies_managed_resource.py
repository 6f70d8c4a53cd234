"""deploy/policies/managed-resource.yaml: pods that would go past the extender."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from admission import ASKING_FOR_NOTHING, POLICIES, WITHOUT_TEMPLATE, document, documents, made_from, policy
from k8s_rdma.wire.annotation import ANNOTATION, parse_request

EXAMPLES = POLICIES.parents[1] / "examples" / "scheduler"


def pod(
    text: str | None, *containers: dict[str, Any], init: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    annotations = {} if text is None else {ANNOTATION: text}
    spec = {"containers": list(containers) or [{"name": "c"}], **({"initContainers": init} if init else {})}
    return {"kind": "Pod", "metadata": {"annotations": annotations}, "spec": spec}


def limits(resource: str, where: str = "limits") -> dict[str, Any]:
    return {"name": "c", "resources": {where: {resource: "1"}}}


def told(found: dict[str, Any]) -> list[str]:
    return policy("managed-resource").refusals(found)


@pytest.mark.parametrize(
    "resource", ["k8s-rdma.io/slot", "rdma-sriov/dev-infiniband-mount", "tencent.com/rdma"]
)
def test_pod_that_requests_a_managed_resource_comes_to_the_extender(resource: str):
    assert told(pod("[{}]", limits(resource))) == []
    assert told(pod("[{}]", limits(resource, "requests"))) == []
    assert told(pod("[{}]", {"name": "a"}, limits(resource))) == []
    assert told(pod("[{}]", {"name": "a"}, init=[limits(resource)])) == []


@pytest.mark.parametrize("container", [{"name": "c"}, limits("cpu"), limits("nvidia.com/gpu")])
def test_pod_that_bypasses_the_extender_has_a_warning(container: dict[str, Any]):
    (warning,) = told(pod("[{}]", container))
    assert warning == (
        "rdma_interfaces_required: asks for interfaces, and no container requests any of k8s-rdma.io/slot, "
        "rdma-sriov/dev-infiniband-mount, tencent.com/rdma: kube-scheduler does not ask the RDMA extender "
        "about such a pod, and its node refuses it where placements are signed"
    )


@pytest.mark.parametrize("text", ASKING_FOR_NOTHING)
def test_pod_without_requests_is_left_alone(text: str | None):
    assert not parse_request(text)
    assert told(pod(text)) == []


def test_templates_are_looked_into():
    for each in made_from(pod("[{}]")):
        assert told(each), each["kind"]
    for each in WITHOUT_TEMPLATE:
        assert told(each) == [], each["kind"]


def test_resources_are_those_of_the_recommended_registration():
    registration = yaml.safe_load((EXAMPLES / "recommended.yaml").read_text())
    (extender,) = registration["extenders"]
    names = [each["name"] for each in extender["managedResources"]]
    (written,) = (
        each["expression"]
        for each in document("managed-resource")["spec"]["variables"]
        if each["name"] == "managedResources"
    )
    assert yaml.safe_load(written) == names


def test_it_warns_and_is_no_obstacle():
    (binding,) = (
        each for each in documents("managed-resource") if each["kind"] == "ValidatingAdmissionPolicyBinding"
    )
    assert binding["spec"]["validationActions"] == ["Warn", "Audit"]
