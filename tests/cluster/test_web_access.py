"""Reviews and claims for the pages by a real API server, with the rights of deploy/rbac and no others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from claim_cases import devices, request, template
from cli.test_explain_claims import RDMA
from cluster.world import Cluster, cluster
from k8s_rdma.kube.client import connect
from k8s_rdma.kube.documents import Documents
from k8s_rdma.kube.errors import ApiRefusedError
from k8s_rdma.web.claim_pods import waiting_by_claim

pytestmark = pytest.mark.anyio

RIGHTS = Path(__file__).parents[2] / "deploy" / "rbac"
RESOURCES = "/apis/resource.k8s.io/v1"
RBAC = "rbac.authorization.k8s.io"


async def tenant_token(c: Cluster) -> str:
    """The token of an account that may list pods of `default` alone."""
    await c.create({"kind": "ServiceAccount", "apiVersion": "v1", "metadata": _named("tenant")})
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}
    await c.create(
        {"kind": "Role", "apiVersion": f"{RBAC}/v1", "metadata": _named("tenant"), "rules": [rule]}
    )
    await c.create(
        {
            "kind": "RoleBinding",
            "apiVersion": f"{RBAC}/v1",
            "metadata": _named("tenant"),
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "tenant"},
            "subjects": [{"kind": "ServiceAccount", "name": "tenant", "namespace": "default"}],
        }
    )
    request = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {}}
    path = "/api/v1/namespaces/default/serviceaccounts/tenant/token"
    made = await c.http.post(path, json=request)
    assert made.status_code == 201, made.text
    return str(made.json()["status"]["token"])


def _named(name: str) -> dict[str, str]:
    return {"name": name, "namespace": "default"}


async def test_api_server_reviews_tokens_and_namespaces(kind: str, tmp_path: Path):
    if kind == "stand-in":
        pytest.skip("the stand-in makes no tokens that it knows again")
    async with cluster(kind, tmp_path, "w1") as c:
        await c.create({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "k8s-rdma"}})
        await c.apply(RIGHTS / "web-account.yaml")
        await c.apply(RIGHTS / "web.yaml")
        token = await tenant_token(c)
        client = connect(str(await c.account("k8s-rdma-web", "k8s-rdma")))
        try:
            user = await client.authenticate(token)
            assert user is not None
            assert user.username == "system:serviceaccount:default:tenant"
            assert "system:authenticated" in user.groups
            assert await client.may_list_pods(user, "default")
            assert not await client.may_list_pods(user, "kube-system")
            assert not await client.may_list_pods(user, "")
            assert await client.authenticate(f"{token}x") is None
            with pytest.raises(ApiRefusedError, match="cannot"):
                await client.get_pod("default", "p")
        finally:
            await client.close()


async def test_pods_that_wait_by_claim_are_read_with_the_rights_for_them(kind: str, tmp_path: Path):
    if kind == "stand-in":
        pytest.skip("the stand-in knows no rights")
    async with cluster(kind, tmp_path, "w1") as c:
        await c.create({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "k8s-rdma"}})
        await c.apply(RIGHTS / "web-account.yaml")
        await c.apply(RIGHTS / "web-claims.yaml")
        classes = f"{RESOURCES}/deviceclasses"
        assert (await c.http.post(classes, json=RDMA)).status_code == 201
        templates = f"{RESOURCES}/namespaces/default/resourceclaimtemplates"
        found = template(devices(request("a", "10G")))
        assert (await c.http.post(templates, json=found)).status_code == 201
        await c.create_pod("by-claim", resourceClaims=[{"name": "net", "resourceClaimTemplateName": "t"}])
        await c.create_pod("plain")
        with Documents(str(await c.account("k8s-rdma-web", "k8s-rdma"))) as api:
            [row] = await asyncio.to_thread(waiting_by_claim, api)
            assert (row.pod, row.interfaces, row.reserved_mbps) == ("default/by-claim", 1, 10_000)
            assert row.why == "no node has PFs for claims"
            with pytest.raises(ApiRefusedError, match="cannot list"):
                await asyncio.to_thread(lambda: list(api.items("/api/v1/secrets")))
