"""Objects of any kind, in which tenants wrote parts as they like."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.core.pf_use import Used
from k8s_rdma.kube.documents import Documents
from k8s_rdma.kube.errors import ApiUncertainError
from k8s_rdma.wire.claims import DRIVER
from k8s_rdma.wire.cluster_claims import class_names, consumption
from kube.stored_objects import serving_objects

if TYPE_CHECKING:
    from pathlib import Path

CLAIMS = "/apis/resource.k8s.io/v1/resourceclaims"


def allocated_claim(parameters: bytes) -> bytes:
    """A claim with 25 Gb/s of a PF, and opaque parameters as they were written."""
    result = {
        "driver": DRIVER,
        "pool": "w1",
        "device": "f0",
        "consumedCapacity": {"bandwidth": "25G", "vfs": "1"},
    }
    opaque = {"opaque": {"driver": "d.example.com", "parameters": "PARAMETERS"}}
    document = {
        "metadata": {"name": "c", "namespace": "n"},
        "spec": {"devices": {"requests": [{"exactly": {"deviceClassName": "rdma"}}], "config": [opaque]}},
        "status": {"allocation": {"devices": {"results": [result], "config": [opaque]}}},
    }
    return json.dumps(document).encode().replace(b'"PARAMETERS"', parameters)


@pytest.mark.parametrize(
    "parameters",
    [
        b"[" * 5_000 + b"]" * 5_000,
        b'{"a":' * 700 + b"1" + b"}" * 700,
        b'{"a":' * 1_700 + b'"]}\\"{["' + b"}" * 1_700,
        b'{"a":"\xff\xfe"}',
        b'{"a":"\\ud800"}',
    ],
    ids=["deep lists", "deep objects", "deeper objects", "no UTF-8", "half a surrogate"],
)
def test_claim_is_counted_whatever_its_opaque_parameters(parameters: bytes, tmp_path: Path) -> None:
    """kube-apiserver 1.36 stores and lists all of these."""
    claims = [allocated_claim(b"{}"), allocated_claim(parameters)]
    body = b'{"kind":"ResourceClaimList","metadata":{},"items":[' + b",".join(claims) + b"]}"
    with serving_objects({CLAIMS: body}, tmp_path) as kubeconfig, Documents(kubeconfig) as api:
        documents = list(api.items(CLAIMS))
    found = consumption(documents)
    assert (found.used, found.unread) == ({("w1", "f0"): Used(2, 50_000)}, ())
    assert class_names(documents) == {"rdma"}


@pytest.mark.parametrize("body", [b"[" * 5_000, b'{"items":[1]}', b"[]", b"<html>"])
def test_answer_that_is_no_list_of_objects_is_no_answer(body: bytes, tmp_path: Path) -> None:
    with (
        serving_objects({CLAIMS: body}, tmp_path) as kubeconfig,
        Documents(kubeconfig) as api,
        pytest.raises(ApiUncertainError, match=CLAIMS),
    ):
        list(api.items(CLAIMS))


def test_rest_of_a_list_comes_without_pages_when_its_continuation_expires(tmp_path: Path) -> None:
    first, gone, last = ({"metadata": {"name": name, "namespace": "d"}} for name in "abc")
    answers: dict[str, bytes | int] = {
        "/api/v1/pods?limit": json.dumps({"items": [first, gone], "metadata": {"continue": "x"}}).encode(),
        "/api/v1/pods?continue": 410,
        "/api/v1/pods": json.dumps({"items": [first, last]}).encode(),
    }
    with serving_objects(answers, tmp_path) as kubeconfig, Documents(kubeconfig) as api:
        assert list(api.items("/api/v1/pods")) == [first, gone, last]
