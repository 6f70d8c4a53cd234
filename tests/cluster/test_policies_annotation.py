"""deploy/policies that look at pods and their templates, in a real API server, of 1.30 and later.

It answers as tests/deploy finds without one, which compares the policies' words with the extender's.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from admission import policy
from asked_annotations import BAD, GOOD, POLICIES, mixed
from caps_cases import BAD as BAD_CAPS
from caps_cases import GOOD as GOOD_CAPS
from cluster.policies import GROUP, SINCE, apply_policies, until
from cluster.real import obstacle
from cluster.world import Cluster, cluster, collection
from k8s_rdma.wire.claim_caps import CLAIM_CAPS_ANNOTATION

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from cluster.control_plane import Json

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(obstacle()), reason=f"no real cluster: {obstacle()}"),
]
MIXED = 300
SEED = 7


def pod(text: str, word: str | None = None, **limits: str) -> Json:
    annotations = {"rdma_interfaces_required": text}
    if word is not None:
        annotations["k8s-rdma.io/policy"] = word
    container = {"name": "c", "image": "registry.invalid/c:1", "resources": {"limits": limits}}
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": "p", "namespace": "default", "annotations": annotations},
        "spec": {"containers": [container]},
    }


def workloads(template: Json) -> list[Json]:
    """One of each kind that pods are made from."""
    labels = {"app": "a"}
    template = {**template, "metadata": {**template["metadata"], "labels": labels}}
    pods = {"selector": {"matchLabels": labels}, "template": template}
    once = {**template, "spec": {**template["spec"], "restartPolicy": "Never"}}
    job = {"spec": {"template": once}}
    cron = {"schedule": "0 0 * * *", "jobTemplate": job}
    found = [
        *(("apps/v1", kind, {"spec": pods}) for kind in ("DaemonSet", "Deployment", "ReplicaSet")),
        ("apps/v1", "StatefulSet", {"spec": {**pods, "serviceName": "s"}}),
        ("v1", "ReplicationController", {"spec": {"selector": labels, "template": template}}),
        ("v1", "PodTemplate", {"template": template}),
        ("batch/v1", "Job", job),
        ("batch/v1", "CronJob", {"spec": cron}),
    ]
    meta = {"name": "w", "namespace": "default"}
    return [{"kind": kind, "apiVersion": version, "metadata": meta, **more} for version, kind, more in found]


def template_of(made: Json) -> Json:
    return {"metadata": {"annotations": made["metadata"]["annotations"]}, "spec": made["spec"]}


async def answer(c: Cluster, document: Json) -> tuple[str, str]:
    """Why the API server refuses to create this, and its warning; no object is made."""
    given = await c.http.post(f"{collection(document)}?dryRun=All", json=document)
    refusal = "" if given.is_success else given.json()["message"].partition("denied request: ")[2]
    return refusal, given.headers.get("warning", "")


async def told(c: Cluster, document: Json) -> bool:
    """Whether it is refused or warned of."""
    return any(await answer(c, document))


async def refused(c: Cluster, document: Json) -> bool:
    return bool((await answer(c, document))[0])


@asynccontextmanager
async def with_policy(directory: Path, name: str, probe: Json) -> AsyncIterator[Cluster]:
    """A cluster in which the policy is in force, which shows in the answer to the probe."""
    async with cluster("real", directory, deadline_s=280) as c:
        if c.plane.release < SINCE:
            pytest.skip(f"Kubernetes {c.plane.release}: ValidatingAdmissionPolicy is of {SINCE} and later")
        await apply_policies(c, name)
        await until(lambda: told(c, probe))
        yield c


async def test_api_server_answers_as_the_evaluation_without_one(tmp_path: Path):
    cases: list[tuple[str, str | None]] = [
        (text, None) for text in (*GOOD, *BAD, *mixed(Random(SEED), MIXED))
    ]
    cases += [("[{}]", word) for word in POLICIES]
    async with with_policy(tmp_path, "annotation", pod("[[]]")) as c:
        for text, word in cases:
            document: dict[str, Any] = pod(text, word)
            expected = "".join(policy("annotation").refusals(document))
            assert await answer(c, document) == (expected, ""), (text, word)
        locking = pod("[{}]")
        locking["metadata"]["annotations"]["k8s-rdma.io/memlock"] = "16 Gi"
        assert "k8s-rdma.io/memlock: 16 Gi is neither bytes" in (await answer(c, locking))[0]


async def test_templates_of_workloads_are_checked_and_existing_ones_stay(tmp_path: Path):
    wrong, right = template_of(pod('[{"vlan": 4095}]')), template_of(pod('[{"vlan": 4094}]'))
    async with with_policy(tmp_path, "annotation", pod("[[]]")) as c:
        for document, good in zip(workloads(wrong), workloads(right), strict=True):
            refusal, _ = await answer(c, document)
            assert "vlan: 4095 is no whole number from 0 to 4094, as a VLAN is" in refusal, document["kind"]
            assert await answer(c, good) == ("", ""), document["kind"]
        await c.create(pod("[{}]"))
        path = "/api/v1/namespaces/default/pods/p"
        worse = {"metadata": {"annotations": {"rdma_interfaces_required": "[[]]"}}}
        changed = await c.http.patch(
            path, json=worse, headers={"Content-Type": "application/merge-patch+json"}
        )
        assert "rdma_interfaces_required[0]: is a list; wanted an object such as {}" in changed.text
        await c.patch(path, {"metadata": {"labels": {"a": "b"}}})


async def test_pod_that_was_malformed_before_the_policy_can_be_changed(tmp_path: Path):
    async with cluster("real", tmp_path) as c:
        if c.plane.release < SINCE:
            pytest.skip(f"Kubernetes {c.plane.release}: ValidatingAdmissionPolicy is of {SINCE} and later")
        await c.create(pod("[[]]"))
        await apply_policies(c, "annotation")
        probe = {**pod("[[]]"), "metadata": {**pod("[[]]")["metadata"], "name": "q"}}
        await until(lambda: told(c, probe))
        path = "/api/v1/namespaces/default/pods/p"
        await c.patch(path, {"metadata": {"labels": {"a": "b"}, "annotations": {"other": "x"}}})
        await c.patch(path, {"metadata": {"annotations": {"rdma_interfaces_required": "[{}]"}}})


def with_caps(text: str) -> Json:
    made = pod("[]")
    return {**made, "metadata": {**made["metadata"], "annotations": {CLAIM_CAPS_ANNOTATION: text}}}


async def test_caps_of_claims_are_taken_and_refused_as_without_an_api_server(tmp_path: Path):
    async with with_policy(tmp_path, "claim-caps", with_caps("[]")) as c:
        for text in GOOD_CAPS:
            assert await answer(c, with_caps(text)) == ("", ""), text[:100]
        for text, expected in BAD_CAPS:
            assert expected in (await answer(c, with_caps(text)))[0], text[:100]
        for document in workloads(template_of(with_caps('{"rdma0": "80G"}'))):
            assert '"rdma0": "80G": wanted a name' in (await answer(c, document))[0], document["kind"]
        await c.create(with_caps('{"rdma0": 80000}'))
        path, headers = "/api/v1/namespaces/default/pods/p", {"Content-Type": "application/merge-patch+json"}
        worse = {"metadata": {"annotations": {CLAIM_CAPS_ANNOTATION: '{"rdma0": -1}'}}}
        changed = await c.http.patch(path, json=worse, headers=headers)
        assert changed.status_code == 422
        assert 'k8s-rdma.io/claim-caps: "rdma0": -1: wanted a name' in changed.json()["message"]
        await c.patch(path, {"metadata": {"annotations": {CLAIM_CAPS_ANNOTATION: None}}})


async def test_pod_that_goes_past_the_extender_is_warned_of(tmp_path: Path):
    async with with_policy(tmp_path, "managed-resource", pod("[{}]")) as c:
        for document in (pod("[{}]"), *workloads(template_of(pod("[{}]")))):
            refusal, warned = await answer(c, document)
            assert refusal == "", document["kind"]
            assert "does not ask the RDMA extender about such a pod" in warned, document["kind"]
        managed = pod("[{}]", **{"rdma-sriov/dev-infiniband-mount": "1"})
        for document in (pod("[]"), pod(" "), managed, *workloads(template_of(managed))):
            assert await answer(c, document) == ("", ""), document["kind"]


async def test_pod_that_bypasses_the_extender_is_refused_if_the_binding_says_so(tmp_path: Path):
    async with with_policy(tmp_path, "managed-resource", pod("[{}]")) as c:
        path = f"{GROUP}/validatingadmissionpolicybindings/k8s-rdma-managed-resource"
        await c.patch(path, {"spec": {"validationActions": ["Deny"]}})
        await until(lambda: refused(c, pod("[{}]")))
        assert (
            "asks for interfaces, and no container requests any of k8s-rdma.io/slot"
            in (await answer(c, pod("[{}]")))[0]
        )


async def test_pod_of_a_scheduler_that_does_not_ask_the_extender_is_warned_of(tmp_path: Path):
    def of(scheduler: str, text: str = "[{}]") -> Json:
        made = pod(text)
        return {**made, "spec": {**made["spec"], "schedulerName": scheduler}}

    async with with_policy(tmp_path, "scheduler-name", pod("[{}]")) as c:
        for asked in (pod("[{}]"), of("volcano")):
            (expected,) = policy("scheduler-name").refusals(asked)
            for document in (asked, *workloads(template_of(asked))):
                refusal, warned = await answer(c, document)
                assert (refusal, expected in warned) == ("", True), (document["kind"], warned)
        placed = of("rdma-scheduler")
        for document in (placed, pod("[]"), *workloads(template_of(placed))):
            assert await answer(c, document) == ("", ""), document["kind"]


async def test_misspelt_key_and_misplaced_request_are_warned_of(tmp_path: Path):
    """On pods and templates of every kind, in the words of the evaluation without an API server."""
    misspelt = pod("[{}]")
    misspelt["metadata"]["annotations"]["k8s-rdma.io/polcy"] = "same-pf"
    async with with_policy(tmp_path, "annotation-keys", misspelt) as c:
        assert await answer(c, pod("[{}]")) == ("", "")
        misplaced = [
            {**each, "metadata": {**each["metadata"], "annotations": {"k8s-rdma.io/interfaces": "[{}]"}}}
            for each in workloads(template_of({"metadata": {"annotations": {}}, "spec": misspelt["spec"]}))
        ]
        for document in (misspelt, *workloads(template_of(misspelt)), *misplaced):
            [sentence] = policy("annotation-keys").refusals(document)
            refusal, warning = await answer(c, document)
            assert (refusal, sentence in warning) == ("", True), (document["kind"], warning)
