"""Rights at the API server stand-in: tokens, roles, and how a refusal reads."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from k8s_rdma_demo.cluster.api import Access, ApiConfig, serving_api
from k8s_rdma_demo.cluster.rbac import User

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio

RBAC = "/apis/rbac.authorization.k8s.io/v1"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
TOKENS = "/api/v1/namespaces/default/serviceaccounts/reader/token"
ALICE = User(name="alice", groups=frozenset({"people"}))


@dataclass
class Guarded:
    """An API that asks who comes. admin, alice: their clients."""

    access: Access
    url: str
    admin: httpx2.AsyncClient
    alice: httpx2.AsyncClient

    async def create(self, path: str, document: dict[str, Any]) -> None:
        answer = await self.admin.post(path, json=document)
        assert answer.status_code == 201, answer.text

    async def grant(self, subject: dict[str, str], rule: dict[str, list[str]], namespace: str = "") -> None:
        """A role of its own with one rule, everywhere or in a namespace."""
        kind, scope = ("Role", f"/namespaces/{namespace}") if namespace else ("ClusterRole", "")
        plural = kind.lower()
        name = f"r{len((await self.admin.get(f'{RBAC}/{plural}s')).json()['items'])}"
        await self.create(f"{RBAC}{scope}/{plural}s", {"metadata": {"name": name}, "rules": [rule]})
        binding = {
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
            "subjects": [subject],
        }
        await self.create(f"{RBAC}{scope}/{plural}bindings", binding)


def rule(verbs: str, resources: str, group: str = "", names: str = "") -> dict[str, list[str]]:
    more = {"resourceNames": names.split()} if names else {}
    return {"verbs": verbs.split(), "resources": resources.split(), "apiGroups": [group], **more}


@asynccontextmanager
async def guarded() -> AsyncIterator[Guarded]:
    access = Access()
    async with serving_api(ApiConfig(access=access)) as api:

        def client(token: str) -> httpx2.AsyncClient:
            headers = {"Authorization": f"Bearer {token}"}
            return httpx2.AsyncClient(base_url=api.url, headers=headers, trust_env=False)

        async with client(access.token_for()) as admin, client(access.token_for(ALICE)) as alice:
            yield Guarded(access, api.url, admin, alice)


USER = {"kind": "User", "name": "alice"}


async def test_unknown_token_is_answered_by_401():
    async with guarded() as g:
        answer = await g.alice.get("/api/v1/pods", headers={"Authorization": "Bearer wrong"})
        assert answer.json() == {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": "Unauthorized",
            "reason": "Unauthorized",
            "code": 401,
        }


@pytest.mark.parametrize(
    ("asked", "named", "what", "where", "about"),
    [
        ("GET /api/v1/pods", "pods", ("list", "pods", ""), "at the cluster scope", {"kind": "pods"}),
        (
            "GET /api/v1/pods?watch=1",
            "pods",
            ("watch", "pods", ""),
            "at the cluster scope",
            {"kind": "pods"},
        ),
        (
            "POST /api/v1/namespaces/default/pods/p/binding",
            'pods "p"',
            ("create", "pods/binding", ""),
            'in the namespace "default"',
            {"name": "p", "kind": "pods"},
        ),
        (
            f"PATCH {LEASES}/l",
            'leases.coordination.k8s.io "l"',
            ("patch", "leases", "coordination.k8s.io"),
            'in the namespace "kube-system"',
            {"name": "l", "group": "coordination.k8s.io", "kind": "leases"},
        ),
    ],
)
async def test_refusal_reads_as_the_api_servers(
    asked: str, named: str, what: tuple[str, str, str], where: str, about: dict[str, str]
):
    (method, path), (verb, resource, group) = asked.split(), what
    async with guarded() as g:
        answer = await g.alice.request(method, path, json=None if method == "GET" else {})
        status = answer.json()
        why = f'User "alice" cannot {verb} resource "{resource}" in API group "{group}" {where}'
        assert (answer.status_code, status["reason"]) == (403, "Forbidden")
        assert status["message"] == f"{named} is forbidden: {why}"
        assert status["details"] == about


async def test_who_shows_no_token_is_anonymous():
    async with guarded() as g, httpx2.AsyncClient(base_url=g.url, trust_env=False) as http:
        assert 'User "system:anonymous" cannot list' in (await http.get("/api/v1/pods")).json()["message"]
        assert (await http.get("/readyz")).text == "ok"


@pytest.mark.parametrize(
    "subject", [USER, {"kind": "Group", "name": "people"}], ids=lambda subject: subject["kind"]
)
async def test_role_everywhere_allows_its_verbs_and_no_other(subject: dict[str, str]):
    async with guarded() as g:
        await g.grant(subject, rule("list get", "pods"))
        assert (await g.alice.get("/api/v1/pods")).status_code == 200
        assert (await g.alice.get("/api/v1/namespaces/default/pods/none")).status_code == 404
        assert (await g.alice.get("/api/v1/pods?watch=1")).status_code == 403
        assert (await g.alice.get("/api/v1/nodes")).status_code == 403


async def test_role_on_an_object_is_not_one_on_its_subresource():
    async with guarded() as g:
        await g.grant(USER, rule("create patch", "pods"))
        url = "/api/v1/namespaces/default/pods/p"
        assert (await g.alice.post(f"{url}/binding", json={})).status_code == 403
        assert (await g.alice.patch(f"{url}/status", json={})).status_code == 403


async def test_role_of_a_namespace_holds_there_alone():
    async with guarded() as g:
        await g.grant(USER, rule("list", "leases", "coordination.k8s.io"), "kube-system")
        assert (await g.alice.get(LEASES)).status_code == 200
        assert (await g.alice.get(LEASES.replace("kube-system", "default"))).status_code == 403
        assert (await g.alice.get("/apis/coordination.k8s.io/v1/leases")).status_code == 403


async def test_rule_with_names_is_about_these_objects():
    async with guarded() as g:
        await g.grant(USER, rule("get list", "leases", "coordination.k8s.io", "mine"), "kube-system")
        assert (await g.alice.get(f"{LEASES}/mine")).status_code == 404
        assert (await g.alice.get(f"{LEASES}/others")).status_code == 403
        assert (await g.alice.get(LEASES)).status_code == 403


async def test_service_account_is_known_by_the_token_requested_for_it():
    async with guarded() as g:
        url = "/api/v1/namespaces/kube-system/serviceaccounts"
        assert (await g.admin.post(f"{url}/robot/token", json={})).status_code == 404
        await g.create(url, {"metadata": {"name": "robot"}})
        token = (await g.admin.post(f"{url}/robot/token", json={})).json()["status"]["token"]
        headers = {"Authorization": f"Bearer {token}"}
        refused = (await g.alice.get("/api/v1/nodes", headers=headers)).json()["message"]
        assert 'User "system:serviceaccount:kube-system:robot"' in refused
        subject = {"kind": "ServiceAccount", "namespace": "kube-system", "name": "robot"}
        await g.grant(subject, rule("list", "nodes"))
        assert (await g.alice.get("/api/v1/nodes", headers=headers)).status_code == 200


async def test_role_that_cannot_be_read_is_refused():
    async with guarded() as g:
        path = f"{RBAC}/clusterroles"
        answer = await g.admin.post(path, json={"metadata": {"name": "r"}, "rules": [{"verbs": "get"}]})
        assert answer.status_code == 400
        assert "verbs" in answer.json()["message"]


@pytest.mark.parametrize("seconds", [599, 0, -1])
async def test_token_for_less_than_ten_minutes_is_refused(seconds: int) -> None:
    """By the words of kube-apiserver 1.36."""
    async with guarded() as api:
        await api.create("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "reader"}})
        refused = await api.admin.post(TOKENS, json={"spec": {"expirationSeconds": seconds}})
    why = f"Invalid value: {seconds}: may not specify a duration less than 10 minutes"
    assert refused.json() == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": f'TokenRequest.authentication.k8s.io "" is invalid: spec.expirationSeconds: {why}',
        "reason": "Invalid",
        "details": {
            "group": "authentication.k8s.io",
            "kind": "TokenRequest",
            "causes": [{"reason": "FieldValueInvalid", "message": why, "field": "spec.expirationSeconds"}],
        },
        "code": 422,
    }


@pytest.mark.parametrize("spec", [{}, None, {"expirationSeconds": 600}])
async def test_token_is_made_for_ten_minutes_or_by_default(spec: dict[str, int] | None) -> None:
    async with guarded() as api:
        await api.create("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "reader"}})
        answer = await api.admin.post(TOKENS, json={"spec": spec})
        malformed = await api.admin.post(TOKENS, json={"spec": {"expirationSeconds": "600"}})
    assert answer.status_code == 201, answer.text
    assert malformed.status_code == 400
    assert "expirationSeconds" in malformed.json()["message"]
