"""deploy/policies/annotation.yaml refuses with the extender's sentence, or leaves it to the extender."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings

from admission import made_from, policy
from asked_annotations import ANNOTATIONS, BAD, GOOD, VALUES
from asked_annotations import POLICIES as WORDS_OF_POLICIES
from deploy.rendering.keys import MADE, POLICIES, written
from injection_cases import CASES, HOST_NETWORK, NO_INTERFACES, REFUSED, SIDECAR, Case
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.annotation import ANNOTATION, KEYS, MEMLOCK_ANNOTATION, POLICY_ANNOTATION, read_pod
from k8s_rdma.wire.extender import MALFORMED_ANNOTATION

LENIENT = (("strict", "false"),)


def pod(text: str | None, word: str | None = None) -> dict[str, Any]:
    told = {ANNOTATION: text, POLICY_ANNOTATION: word}
    annotations = {key: value for key, value in told.items() if value is not None}
    return {"kind": "Pod", "apiVersion": "v1", "metadata": {"annotations": annotations}, "spec": {}}


def of_extender(text: str | None, word: str | None = None, *, strict: bool = True) -> str:
    """Return the sentence by which it refuses; empty if it takes the pod."""
    try:
        read_pod(pod(text, word)["metadata"]["annotations"], strict=strict)
    except MalformedError as refused:
        return f"{MALFORMED_ANNOTATION} ({refused.message})"
    return ""


def of_policy(text: str | None, word: str | None = None, *, strict: bool = True) -> str:
    """The same of the policy."""
    return "".join(policy("annotation", () if strict else LENIENT).refusals(pod(text, word)))


def agreeing(told: str, extender: str) -> bool:
    """Report whether the policy says the extender's sentence: of two kinds, as far as it can know it."""
    if told.endswith(": not JSON)"):
        return extender.startswith(told.removesuffix(")"))
    if "known are" in told and "did you mean" in extender:  # the nearest one, in the place of or after all
        return extender.startswith(told.removesuffix(")").partition("known are")[0])
    return told == extender


@pytest.mark.parametrize("name", MADE)
def test_policy_has_the_keys_of_the_options(name: str):
    assert (POLICIES / f"{name}.yaml").read_text() == written(name), (
        f"run `make chart`: other keys are in {name}.yaml"
    )


def test_each_key_has_values_to_agree_upon():
    assert set(VALUES) == set(KEYS)


@pytest.mark.parametrize("text", GOOD)
def test_policy_admits_annotations_that_the_extender_takes(text: str):
    assert (of_policy(text), of_extender(text)) == ("", "")


@pytest.mark.parametrize("text", BAD)
def test_policy_refuses_in_the_words_of_the_extender(text: str):
    told, extender = of_policy(text), of_extender(text)
    assert told
    assert agreeing(told, extender), (told, extender)


@pytest.mark.parametrize(("word", "good"), WORDS_OF_POLICIES.items())
def test_policy_refuses_a_policy_that_there_is_not(word: str, good: bool):
    told = of_policy("[{}]", word)
    assert bool(told) is not good
    assert agreeing(told, of_extender("[{}]", word))
    assert of_policy("[]", word) == "", "not looked at where nothing is asked for"
    assert of_policy("[{}]", f"{word}é") == of_policy("[{}]", f"é{word}") == "", "left to the extender"


@pytest.mark.parametrize("template", [HOST_NETWORK.pod(), *made_from(HOST_NETWORK.pod())])
def test_policy_refuses_interfaces_in_the_network_of_the_node(template: dict[str, Any]):
    assert policy("annotation").refusals(template) == [f"{MALFORMED_ANNOTATION} ({NO_INTERFACES})"]
    nothing = json.loads(json.dumps(template).replace("rdma_interfaces_required", "other"))
    assert policy("annotation").refusals(nothing) == []


MEMLOCKS = {
    "unlimited": True,
    "": True,
    "0": True,
    "16Gi": True,
    " 1.5G ": True,
    "1e9": True,
    "+1k": True,
    "Unlimited": False,
    "16 Gi": False,
    "16GiB": False,
    "1e1234": False,
    "x" * 60: False,
    "x" * 61: False,
}


@pytest.mark.parametrize(("amount", "good"), MEMLOCKS.items())
def test_policy_refuses_locked_memory_that_is_no_amount(amount: str, good: bool):
    asked = pod("[{}]")
    asked["metadata"]["annotations"][MEMLOCK_ANNOTATION] = amount
    told = "".join(policy("annotation").refusals(asked))
    if good:
        assert told == ""
        assert read_pod(asked["metadata"]["annotations"], strict=True)
        return
    with pytest.raises(MalformedError) as refused:
        read_pod(asked["metadata"]["annotations"], strict=True)
    assert told == f"{MALFORMED_ANNOTATION} ({refused.value.message})"


def test_policy_leaves_amounts_of_locked_memory_to_the_extender_that_it_cannot_compare():
    asked = pod("[{}]")
    for amount in ("1m", "16Gi\u00e9"):
        asked["metadata"]["annotations"][MEMLOCK_ANNOTATION] = amount
        assert policy("annotation").refusals(asked) == []
        with pytest.raises(MalformedError, match="is neither bytes"):
            read_pod(asked["metadata"]["annotations"], strict=True)


ALIAS = "k8s-rdma.io/interfaces"


@pytest.mark.parametrize("text", [*GOOD, *BAD])
def test_policy_reads_the_alias_as_it_reads_the_annotation(text: str):
    def said(annotations: dict[str, str]) -> str:
        found = {"kind": "Pod", "apiVersion": "v1", "metadata": {"annotations": annotations}, "spec": {}}
        return "".join(policy("annotation").refusals(found))

    assert said({ALIAS: text}) == of_policy(text).replace("rdma_interfaces_required[", f"{ALIAS}[").replace(
        "rdma_interfaces_required:", f"{ALIAS}:"
    )
    assert said({ALIAS: f" {text}", ANNOTATION: text}) == of_policy(text)
    assert "differs from rdma_interfaces_required" in said({ALIAS: f"{text}x", ANNOTATION: text})


@pytest.mark.parametrize(
    ("annotations", "message"), [each[1:] for each in REFUSED], ids=[each[0] for each in REFUSED]
)
def test_policy_refuses_annotations_that_injection_cannot_follow(annotations: dict[str, str], message: str):
    asking = {ANNOTATION: "[{}]", **annotations}
    [said] = policy("annotation").refusals(Case(name="", annotations=asking, spec=SIDECAR).pod())
    assert said == f"{MALFORMED_ANNOTATION} ({message})"
    for template in made_from({"metadata": {"annotations": asking}, "spec": SIDECAR}):
        assert policy("annotation").refusals(template) == [said]
    assert not policy("annotation").refusals(Case(name="", annotations=annotations, spec=SIDECAR).pod())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_policy_admits_annotations_that_injection_follows(case: Case):
    if case.name not in {
        "both names",
        "an empty one, and the other name",
        "malformed, which the extender refuses",
    }:
        assert not policy("annotation").refusals(case.pod())


@settings(max_examples=150)
@given(ANNOTATIONS)
def test_policy_refuses_no_annotation_that_the_extender_takes(text: str):
    if of_policy(text):
        assert of_extender(text)
    if of_policy(text, strict=False):
        assert of_extender(text, strict=False)


@pytest.mark.parametrize(
    "text",
    [
        r'[{"vl\u0061n": 4095}]',
        '[{"name": "é/"}]',
        '[{"vlan": 4095}]' + " " * 4081,
        '[{"x": {"a": [{"b": [[[{}]]]}]}}]',
        "[" + "{}," * 32 + '{"vlan": 4095}]',
        "[" + "{}," * 170 + "{}",
        "[" + "{}," * 1024 + "{}]",
        '[{"count": 1000}, {"count": 1000}]',
        '[{"pf": {"driver": ["mlx5_core", 5]}}]',
        json.dumps([{"pf": {"name": [*["a"] * 33, 5]}}]),
        '[{"pf": {"driver": "a", "driver": "a"}}]',
    ],
)
def test_policy_leaves_unreadable_annotations_to_the_extender(text: str):
    assert of_policy(text) == ""
    assert of_extender(text)


@pytest.mark.parametrize(
    "text",
    [
        '[{"speed": 5}]',
        '[{"Min_TX_Rate": 5}]',
        '[{"qos": 1, "VLAN": 5}]',
        '[{"pf": {"drivers": "x", "name": "a"}}]',
    ],
)
def test_unknown_keys_pass_if_the_extender_is_not_strict(text: str):
    assert of_policy(text)
    assert of_policy(text, strict=False) == of_extender(text, strict=False) == ""


def templates(text: str) -> list[dict[str, Any]]:
    """Each kind of object from which pods are made, asking so."""
    template = {"metadata": {"annotations": {ANNOTATION: text}}, "spec": {}}
    return [
        *(
            {"kind": kind, "metadata": {}, "spec": {"template": template}}
            for kind in (
                "DaemonSet",
                "Deployment",
                "Job",
                "ReplicaSet",
                "ReplicationController",
                "StatefulSet",
            )
        ),
        {"kind": "CronJob", "metadata": {}, "spec": {"jobTemplate": {"spec": {"template": template}}}},
        {"kind": "PodTemplate", "metadata": {}, "template": template},
    ]


@pytest.mark.parametrize("found", templates('[{"vlan": 4095}]'), ids=lambda found: found["kind"])
def test_templates_of_pods_are_checked(found: dict[str, Any]):
    (told,) = policy("annotation").refusals(found)
    assert told == of_extender('[{"vlan": 4095}]')
    assert policy("annotation").refusals(found, oldObject=found) == [], "it was there before"


@pytest.mark.parametrize("found", templates("[{}]"), ids=lambda found: found["kind"])
def test_change_for_the_worse_is_refused(found: dict[str, Any]):
    (worse,) = (each for each in templates("[[]]") if each["kind"] == found["kind"])
    assert policy("annotation").refusals(worse, oldObject=found)
    assert policy("annotation").refusals(found, oldObject=worse) == []


@pytest.mark.parametrize("found", [{"kind": "ReplicationController", "spec": {}}, {"kind": "PodTemplate"}])
def test_object_without_a_template_passes(found: dict[str, Any]):
    assert policy("annotation").refusals({"metadata": {}, **found}) == []
