"""Templates of pods anywhere in an object, and annotations that ask for interfaces in other places."""

from __future__ import annotations

import json
from typing import Any

import pytest

from k8s_rdma.config.pod_templates import object_name, pod_templates
from k8s_rdma.errors import MalformedError

ASKS = {"rdma_interfaces_required": "[{}]"}
POD: dict[str, Any] = {"metadata": {"annotations": ASKS}, "spec": {"containers": [{"name": "c"}]}}


def thing(api: str, kind: str, spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": "x", **metadata}, "spec": spec}


def deployment(**metadata: Any) -> dict[str, Any]:
    return thing("apps/v1", "Deployment", {"replicas": 2, "template": POD}, **metadata)


def places(document: dict[str, Any]) -> list[tuple[tuple[str | int, ...], int | None]]:
    return [(template.path, template.count) for template in pod_templates(document).templates]


def refusal(document: dict[str, Any]) -> str:
    with pytest.raises(MalformedError) as refused:
        pod_templates(document)
    return refused.value.message


def test_pod_is_its_own_template():
    [found] = pod_templates({"apiVersion": "v1", "kind": "Pod", **POD}).templates
    assert (found.path, found.count, found.is_whole, found.pod["spec"]) == ((), 1, True, POD["spec"])


def test_template_in_an_object_of_an_unknown_kind_is_found_without_a_number_of_pods():
    document = thing("a.example/v1", "Trainer", {"roles": [{"podTemplate": POD}]})
    [found] = pod_templates(document).templates
    assert (found.path, found.count) == (("spec", "roles", 0, "podTemplate"), None)
    assert found.why == "the number of pods that a Trainer makes of it is not known here"
    assert found.part == "spec.roles[0].podTemplate"


@pytest.mark.parametrize(("kind", "count"), [("AppWrapper", 2), ("Other", None)])
def test_object_within_an_object_is_counted_if_its_kind_makes_each_once(kind: str, count: int | None):
    wrapper = thing("a.example/v1", kind, {"components": [{"template": deployment()}]})
    assert places(wrapper) == [(("spec", "components", 0, "template", "spec", "template"), count)]


def test_fields_that_others_wrote_have_no_templates():
    applied = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(deployment())}
    document = {**deployment(annotations=applied, managedFields=[{"x": ASKS}]), "status": {"template": POD}}
    assert places(document) == [(("spec", "template"), 2)]


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (
            thing("apps/v1", "Deployment", {"template": {**POD, "metadata": {}}}, annotations=ASKS),
            (
                "metadata.annotations: rdma_interfaces_required is on the Deployment; its pods have "
                "spec.template.metadata.annotations"
            ),
        ),
        (
            thing("a.example/v1", "Trainer", {}, annotations=ASKS),
            "metadata.annotations: rdma_interfaces_required asks for interfaces, and the pods of its kind",
        ),
        (
            thing("v1", "Service", {"annotations": ASKS}),
            "spec.annotations: rdma_interfaces_required asks for interfaces, and no pods are known to come",
        ),
        (
            {**thing("v1", "ConfigMap", {}), "data": {"job.yaml": json.dumps(deployment())}},
            "data.job.yaml: is a text that asks for interfaces; put the manifest in it into a file of its",
        ),
    ],
    ids=["on-the-object", "unknown-kind", "no-pods", "text"],
)
def test_annotation_that_may_mean_pods_is_refused_by_its_place(document: dict[str, Any], why: str):
    assert refusal(document).startswith(f"manifest: {document['kind']} x: {why}")


def test_annotation_on_an_object_whose_pods_ask_too_has_no_effect():
    for document in (deployment(annotations=ASKS), thing("v1", "Service", {}, annotations=ASKS)):
        [warning] = pod_templates(document).warnings
        assert warning == (
            f"{document['kind']} x: metadata.annotations: rdma_interfaces_required has no effect; it counts "
            "on pods alone"
        )


def test_objects_that_describe_annotations_ask_for_nothing():
    document = thing("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", {"annotations": ASKS})
    assert pod_templates(document).warnings == ()


@pytest.mark.parametrize(
    ("pod", "place"),
    [
        ({"spec": {"containers": "c"}}, "spec.template.spec.containers"),
        ({"metadata": {"annotations": []}, "spec": {}}, "spec.template.metadata.annotations"),
    ],
)
def test_field_of_another_type_than_kubernetes_is_named(pod: dict[str, Any], place: str):
    said = refusal(thing("apps/v1", "Deployment", {"template": pod}))
    assert said.startswith("manifest: Deployment: ")
    assert f"`{place}" in said


def test_object_is_named_by_its_kind_and_name_or_the_beginning_of_one():
    names = [{"name": "x"}, {"generateName": "x-"}, None]
    assert [object_name({"kind": "Job", "metadata": name}) for name in names] == ["Job x", "Job x", "Job"]
