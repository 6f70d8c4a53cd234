"""Reviews for the pages by a real API server, with the rights of deploy/rbac/web.yaml and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.world import Cluster, cluster
from k8s_rdma.kube.api import ApiRefusedError
from k8s_rdma.kube.client import connect

pytestmark = pytest.mark.anyio

WEB_ROLE = Path(__file__).parents[2] / "deploy" / "rbac" / "web.yaml"
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
        await c.apply(WEB_ROLE)
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
