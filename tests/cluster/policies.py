"""Admission policies in a real API server, and tokens that are bound to a pod of a node."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from cluster.control_plane import Json, write_kubeconfig
from cluster.world import POLICIES, POLICIES_SINCE, Cluster, documents
from k8s_rdma.kube.client import Client, connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable


GROUP = "/apis/admissionregistration.k8s.io/v1"
SINCE = POLICIES_SINCE
_PLURAL = {
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
    "MutatingAdmissionPolicy": "mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": "mutatingadmissionpolicybindings",
}


async def apply_policies(c: Cluster, name: str) -> None:
    """Create the objects in a file of deploy/policies; fails if the API server refuses or warns."""
    for document in documents(POLICIES / f"{name}.yaml"):
        made = await c.http.post(f"{GROUP}/{_PLURAL[document['kind']]}", json=document)
        assert made.status_code == 201, made.text
        assert "warning" not in made.headers, made.headers["warning"]


async def until(holds: Callable[[], Awaitable[object]]) -> None:
    """Wait until the API server has learnt of a change."""
    while True:
        if await holds():
            return
        await asyncio.sleep(0.1)


async def token_of(c: Cluster, account: str, pod: str | None = None, namespace: str = "k8s-rdma") -> str:
    """A token of a service account, bound to a pod if one is named, as kubelet asks for it."""
    spec: Json = {}
    if pod is not None:
        found = (await c.http.get(f"/api/v1/namespaces/{namespace}/pods/{pod}")).json()
        meta = found["metadata"]
        spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": pod, "uid": meta["uid"]}
    request = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": spec}
    made = await c.http.post(f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token", json=request)
    assert made.status_code == 201, made.text
    return made.json()["status"]["token"]


async def grant_everything(c: Cluster, account: str, namespace: str) -> None:
    """Grant all rights: refusals after this come from the policy."""
    group = "rbac.authorization.k8s.io"
    await c.create(
        {
            "kind": "ClusterRoleBinding",
            "apiVersion": f"{group}/v1",
            "metadata": {"name": "everything"},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
        }
    )


async def written(c: Cluster, token: str, method: str, path: str, document: Json | None = None) -> str:
    """Return why the API server refuses a token's request; empty if it does not. A patch is a merge patch."""
    kind = "merge-patch+json" if method == "PATCH" else "json"
    headers = {"Authorization": f"Bearer {token}", "Content-Type": f"application/{kind}"}
    while True:
        answer = await c.http.request(method, path, json=document, headers=headers)
        told = "" if answer.is_success else answer.json()["message"]
        if " cannot " not in told or "cannot be" in told:  # else the grant is on its way
            return told
        await asyncio.sleep(0.1)


async def pod_of(c: Cluster, account: str, node: str, namespace: str = "k8s-rdma") -> str:
    """A pod of a service account on a node; its name."""
    name = f"{account}-{node}"
    meta = {"name": name, "namespace": namespace}
    spec = {
        "serviceAccountName": account,
        "nodeName": node,
        "containers": [{"name": "c", "image": "registry.invalid/c:1"}],
    }
    await c.create({"kind": "Pod", "apiVersion": "v1", "metadata": meta, "spec": spec})
    return name


@asynccontextmanager
async def client_of(c: Cluster, token: str) -> AsyncIterator[Client]:
    """Our own client of the API server, with that token."""
    client = connect(str(write_kubeconfig(c.directory / "token.kubeconfig", c.plane, token)))
    try:
        yield client
    finally:
        await client.close()
