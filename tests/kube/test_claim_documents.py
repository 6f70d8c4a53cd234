"""ResourceClaims and pods as documents: existing, missing and unknown ones."""

from __future__ import annotations

import json

import httpx2
import pytest
from lightkube import ApiError

from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.documents import MAX_RETRY_AFTER_S, named_errors
from k8s_rdma.kube.errors import ApiRefusedError, ApiUncertainError
from k8s_rdma_demo.cluster.http_server import Response

pytestmark = pytest.mark.anyio

JSON, TEXT = "application/json", "text/plain; charset=utf-8"


def status(reason: str = "NotFound", **details: str) -> bytes:
    return json.dumps(
        {"kind": "Status", "reason": reason, "message": "none", "details": details, "code": 404}
    ).encode()


async def test_missing_object_is_none(cluster):
    async with cluster() as c:
        assert await c.client.get_claim_document("default", "c") is None
        assert await c.client.get_pod_document("default", "p") is None


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        (TEXT, b"404 page not found\n"),
        (TEXT, b""),
        (JSON, b"{}"),
        (JSON, b"[]"),
        (JSON, status()),
        (JSON, status(name="other", kind="resourceclaims")),
        (JSON, status(name="c", kind="namespaces")),
        (JSON, status("Gone", name="c", kind="resourceclaims")),
    ],
)
async def test_404_that_does_not_name_the_object_is_no_answer_about_it(answering, content_type, body):
    async def handle(_request):
        return Response(status=404, content_type=content_type, body=body)

    async with answering(handle) as client:
        with pytest.raises(ApiUncertainError):
            await client.get_claim_document("default", "c")


@pytest.mark.parametrize("levels", [65, 100_000])
async def test_claim_that_is_nested_too_deep_is_refused_for_good(answering, levels):
    body = b'{"metadata": {}, "spec": {"devices": {"config": [' + b"[" * levels + b"]" * levels + b"]}}}"

    async def handle(_request):
        return Response(status=200, body=body)

    async with answering(handle) as client:
        with pytest.raises(MalformedError, match="resourceclaims default/c: nested deeper than 64 levels"):
            await client.get_claim_document("default", "c")


@pytest.mark.parametrize(
    ("value", "seconds"), [("7", 7), ("99999", MAX_RETRY_AFTER_S), ("", 0), ("-1", 0), ("soon", 0)]
)
def test_refusal_says_how_long_to_wait(value, seconds):
    response = httpx2.Response(429, headers={"Retry-After": value}, json={"kind": "Status", "code": 429})
    request = httpx2.Request("GET", "http://api.invalid")
    for error in (
        ApiError(request=request, response=response),
        httpx2.HTTPStatusError("too many", request=request, response=response),
    ):
        with pytest.raises(ApiRefusedError) as refused, named_errors("get c"):
            raise error
        assert refused.value.retry_after_s == seconds
