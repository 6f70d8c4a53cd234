"""The webhook adds to pods the fields of the table of injection."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any

import pytest

from injection_cases import (
    CASES,
    HOST_NETWORK,
    MOUNT,
    NO_INTERFACES,
    REFUSED,
    SCHEDULER,
    SIDECAR,
    SLOT,
    Case,
)
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.webhook.injection import Injection, decode_review, encode_patch
from k8s_rdma.wire.annotation_keys import unknown_keys

INJECTION = Injection(scheduler_name=SCHEDULER, slot=SLOT, device_resources=(MOUNT, "tencent.com/rdma"))


def review(pod: dict[str, Any]) -> bytes:
    request = {"uid": "u-1", "namespace": "default", "operation": "CREATE", "object": pod}
    return json.dumps(
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    ).encode()


def injected(pod: dict[str, Any], injection: Injection = INJECTION) -> dict[str, Any]:
    """The pod with the patch that the answer carries."""
    request = decode_review(review(pod))
    response = json.loads(encode_patch(request.uid, injection.patch(request.object)))["response"]
    assert (response["uid"], response["allowed"]) == ("u-1", True)
    return patched(pod, json.loads(base64.b64decode(response.get("patch", base64.b64encode(b"[]")))))


def patched(pod: dict[str, Any], patch: list[dict[str, Any]]) -> dict[str, Any]:
    """RFC 6902, of which `add` alone is used."""
    pod = copy.deepcopy(pod)
    for each in patch:
        assert each["op"] == "add"
        *parents, last = (part.replace("~1", "/").replace("~0", "~") for part in each["path"].split("/")[1:])
        at: Any = pod
        for part in parents:
            at = at[int(part)] if isinstance(at, list) else at[part]
        if isinstance(at, list):
            assert last == "-"
            at.append(each["value"])
        else:
            assert last not in at or last == "schedulerName", "what the user set is overwritten"
            at[last] = each["value"]
    return pod


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_pod_gets_missing_resources(case: Case):
    assert injected(case.pod()) == case.injected()
    assert injected(case.injected()) == case.injected(), "a second time"


@pytest.mark.parametrize(
    ("annotations", "message"), [each[1:] for each in REFUSED], ids=[each[0] for each in REFUSED]
)
def test_malformed_annotation_of_injection_is_refused(annotations: dict[str, str], message: str):
    pod = Case(name="", annotations={"rdma_interfaces_required": "[{}]", **annotations}, spec=SIDECAR).pod()
    with pytest.raises(MalformedError) as refused:
        INJECTION.patch(decode_review(review(pod)).object)
    assert (refused.value.message, refused.value.reason) == (message, Reason.MALFORMED_ANNOTATION)
    del pod["metadata"]["annotations"]["rdma_interfaces_required"]
    assert injected(pod) == pod, "a pod without interfaces"


def test_pod_in_its_nodes_network_is_refused():
    with pytest.raises(MalformedError) as refused:
        INJECTION.patch(decode_review(review(HOST_NETWORK.pod())).object)
    assert refused.value.message == NO_INTERFACES


def test_pod_without_containers_is_left_for_the_api_server_to_refuse():
    pod = {**CASES[0].pod(), "spec": {"schedulerName": "mine", "containers": []}}
    assert injected(pod) == pod


def test_no_resource_is_added_that_the_installation_lacks():
    alone = Injection(scheduler_name="", slot="", device_resources=())
    pod = CASES[0].pod()
    assert injected(pod, alone) == pod


NAMED = [f"c{number}" for number in range(257)]


def many(count: int) -> dict[str, Any]:
    names = NAMED[:count]
    annotations = {
        "rdma_interfaces_required": "[{}]",
        "k8s-rdma.io/containers": ",".join(names),
        "k8s-rdma.io/nccl": "required",
    }
    return {
        "metadata": {"annotations": annotations},
        "spec": {"containers": [{"name": name} for name in names]},
    }


def test_answer_is_bounded_by_the_number_of_containers():
    request = decode_review(review(many(256)))
    assert len(encode_patch(request.uid, INJECTION.patch(request.object))) < 128 << 10
    with pytest.raises(MalformedError) as refused:
        INJECTION.patch(decode_review(review(many(257))).object)
    assert refused.value.message == (
        "spec.containers: 257 with the initContainers; a pod with interfaces has at most 256"
    )


def test_pod_without_interfaces_may_have_any_number_of_containers():
    pod = many(257)
    del pod["metadata"]["annotations"]["rdma_interfaces_required"]
    assert injected(pod) == pod


@pytest.mark.parametrize("asking", [{}, {"rdma_interfaces_required": "[{}]"}])
def test_misspelt_annotation_is_warned_of(asking: dict[str, str]):
    pod = Case(name="", annotations={**asking, "k8s-rdma.io/polcy": "same-pf"}).pod()
    request = decode_review(review(pod))
    warnings = unknown_keys(request.object.metadata.annotations or ())
    response = json.loads(encode_patch(request.uid, INJECTION.patch(request.object), warnings))["response"]
    assert response["allowed"]
    assert response["warnings"] == [
        "k8s-rdma.io/polcy: unknown annotation, which has no effect; did you mean k8s-rdma.io/policy?"
    ]
