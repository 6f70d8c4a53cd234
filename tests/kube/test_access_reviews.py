"""Reviews of tokens and of access, as the API server answers them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from k8s_rdma.kube.access_reviews import User
from k8s_rdma.kube.errors import ApiRefusedError, ApiUncertainError
from k8s_rdma_demo.cluster.http_server import Response

pytestmark = pytest.mark.anyio

TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105  a path
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
ALICE = User(
    username="alice", uid="7", groups=("a", "b"), extra=(("scope", ("read", "write")), ("zone", ("x",)))
)


def reviewing(status: Any, asked: list[dict[str, Any]] | None = None):
    async def handle(request):
        assert (request.method, request.path) in {("POST", TOKEN_REVIEWS), ("POST", ACCESS_REVIEWS)}
        if asked is not None:
            asked.append(json.loads(request.body))
        return Response(status=201, body=json.dumps({"status": status}).encode())

    return handle


async def test_user_of_a_token_is_the_one_that_the_api_server_names(answering):
    user = {
        "username": "alice",
        "uid": "7",
        "groups": ["a", "b"],
        "extra": {"zone": ["x"], "scope": ["read", "write"]},
    }
    asked: list[dict[str, Any]] = []
    async with answering(reviewing({"authenticated": True, "user": user}, asked)) as client:
        assert await client.authenticate("t") == ALICE
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": "t"}}
    assert asked == [review]


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"authenticated": False, "user": {"username": "alice"}},
        {"user": {"username": "alice"}},
        {"authenticated": True},
        {"authenticated": True, "user": {"username": "", "groups": ["a"]}},
    ],
)
async def test_token_that_is_not_accepted_or_names_no_user_has_none(answering, status):
    async with answering(reviewing(status)) as client:
        assert await client.authenticate("t") is None


async def test_user_without_groups_and_extra_has_empty_ones(answering):
    user = {"username": "alice", "groups": None, "extra": None}
    async with answering(reviewing({"authenticated": True, "user": user})) as client:
        assert await client.authenticate("t") == User(username="alice")


@pytest.mark.parametrize(
    ("status", "may"), [({"allowed": True}, True), ({"allowed": False}, False), ({}, False)]
)
@pytest.mark.parametrize("namespace", ["research", ""])
async def test_user_may_list_pods_if_the_api_server_allows_it(answering, status, may, namespace):
    asked: list[dict[str, Any]] = []
    async with answering(reviewing(status, asked)) as client:
        assert await client.may_list_pods(ALICE, namespace) == may
    spec = {
        "user": "alice",
        "uid": "7",
        "groups": ["a", "b"],
        "extra": {"scope": ["read", "write"], "zone": ["x"]},
        "resourceAttributes": {"verb": "list", "resource": "pods", "namespace": namespace},
    }
    assert asked == [{"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}]


async def test_review_that_is_refused_or_not_understood_is_an_error_and_no_answer(answering):
    async def refusing(_request):
        return Response(status=403, body=b'{"kind": "Status", "code": 403, "message": "no role for that"}')

    async with answering(refusing) as client:
        with pytest.raises(ApiRefusedError, match=r"review a token: .*no role for that"):
            await client.authenticate("t")
        with pytest.raises(ApiRefusedError, match=r"review access of alice: .*no role for that"):
            await client.may_list_pods(ALICE, "research")
    async with answering(reviewing("odd")) as client:
        with pytest.raises(ApiUncertainError, match="review a token"):
            await client.authenticate("t")
        with pytest.raises(ApiUncertainError, match="review access of alice"):
            await client.may_list_pods(ALICE, "research")
