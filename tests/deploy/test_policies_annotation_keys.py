"""deploy/policies/annotation-keys.yaml warns of keys that there are not, in the words of everything else."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from admission import WITHOUT_TEMPLATE, document, made_from, policy
from k8s_rdma.wire.annotation_keys import OF_OWNERS, OF_PROCESSES, PREFIX, unknown_keys

NEAR = {
    "polcy": "policy",
    "Policy": "policy",
    "polices": "policy",
    "interface": "interfaces",
    "Interfaces": "interfaces",
    "topolgy": "topology",
    "container": "containers",
    "ncl": "nccl",
    "mem-lock": "memlock",
    "claim_caps": "claim-caps",
    "claimcaps": "claim-caps",
}
FAR = ("vlan", "x")


def pod(*keys: str, **more: str) -> dict[str, Any]:
    annotations = {**{f"{PREFIX}{key}": "x" for key in keys}, **more}
    return {"kind": "Pod", "metadata": {"annotations": annotations}, "spec": {"containers": [{"name": "c"}]}}


def warnings(found: dict[str, Any]) -> list[str]:
    return policy("annotation-keys").refusals(found)


@pytest.mark.parametrize(("key", "near"), NEAR.items())
def test_misspelt_key_is_warned_of_with_the_nearest_one(key: str, near: str):
    sentence = f"{PREFIX}{key}: unknown annotation, which has no effect; did you mean {PREFIX}{near}?"
    assert list(unknown_keys([f"{PREFIX}{key}"])) == [sentence]
    for each in (pod(key), *made_from(pod(key))):
        assert warnings(each) == [sentence]


@pytest.mark.parametrize("key", FAR)
def test_other_key_is_warned_of_with_all_that_there_are(key: str):
    sentence = f"{PREFIX}{key}: unknown annotation, which has no effect; known are {', '.join(OF_OWNERS)}"
    assert warnings(pod(key)) == [sentence] == list(unknown_keys([f"{PREFIX}{key}"]))


def test_known_keys_and_those_of_others_are_in_order():
    known = [key.removeprefix(PREFIX) for key in (*OF_OWNERS, *OF_PROCESSES)]
    annotations = pod(*known, rdma_interfaces_required="[{}]", **{"sidecar.istio.io/rdma": "x", "rdma": "y"})
    assert warnings(annotations) == []
    assert unknown_keys(annotations["metadata"]["annotations"]) == ()
    assert warnings({"kind": "Pod", "metadata": {}, "spec": {}}) == []
    for each in WITHOUT_TEMPLATE:
        assert warnings({"metadata": {}, **each}) == []


def test_policy_knows_the_same_keys():
    variables = {
        each["name"]: each["expression"] for each in document("annotation-keys")["spec"]["variables"]
    }
    for name, keys in (("ofOwners", OF_OWNERS), ("ofProcesses", OF_PROCESSES)):
        assert yaml.safe_load(variables[name]) == [key.removeprefix(PREFIX) for key in keys]


@pytest.mark.parametrize("key", ["rdma_interfaces_required", "k8s-rdma.io/interfaces"])
def test_request_on_a_workload_instead_of_its_template_has_a_warning(key: str):
    asking = {"metadata": {"name": "d", "annotations": {key: "[{}]"}}}
    paths = ("spec.template", "spec.jobTemplate.spec.template", "template")
    for each, path in zip(made_from(pod()), paths, strict=True):
        assert warnings({**each, **asking}) == [
            f"metadata.annotations: {key} is on the {each['kind']}; its pods have {path}.metadata.annotations"
        ]
    for each in made_from(pod(rdma_interfaces_required="[{}]")):
        assert warnings({**each, **asking}) == [], "a tool's annotation of everything"
