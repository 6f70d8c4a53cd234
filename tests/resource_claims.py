"""ResourceClaims as kube-scheduler leaves them, and the pods that they are reserved for."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2
import msgspec

from k8s_rdma.core.types import NodeName
from k8s_rdma.wire.claims import DRIVER, ClaimName, Prepare
from k8s_rdma.wire.resource_claim import decode_prepare
from k8s_rdma_demo.cluster.api import serving_api
from k8s_rdma_demo.cluster.command import write_kubeconfig
from k8s_rdma_demo.plain_http import NO_TLS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from k8s_rdma.core.request import InterfaceRequest


@asynccontextmanager
async def api_with_node(directory: Path) -> AsyncIterator[tuple[httpx2.AsyncClient, Path]]:
    """Serve the API with the node `w1`; yields a client, and a kubeconfig in the directory."""
    async with (
        serving_api() as api,
        httpx2.AsyncClient(base_url=api.url, trust_env=False, verify=NO_TLS) as http,
    ):
        await http.post("/api/v1/nodes", json={"metadata": {"name": "w1"}})
        yield http, write_kubeconfig(directory / "kubeconfig", api.url)


def interface(
    request: str = "a", device: str = "f0", bandwidth: str | int = 0, **config: object
) -> dict[str, Any]:
    """A request, its result, and the parameters for it; `consumed` is the amount granted by the scheduler."""
    consumed = config.pop("consumed", bandwidth)
    return {
        "request": request,
        "device": device,
        "bandwidth": bandwidth,
        "consumed": consumed,
        "config": config,
    }


def claim(
    *interfaces: dict[str, Any], uid: str = "claim-1", name: str = "c", **changes: Any
) -> dict[str, Any]:
    results = [
        {
            "request": entry["request"],
            "driver": DRIVER,
            "pool": "w1",
            "device": entry["device"],
            "shareID": f"share-{index}",
            "consumedCapacity": {"bandwidth": str(entry["consumed"]), "vfs": "1"},
        }
        for index, entry in enumerate(interfaces)
    ]
    head = {"apiVersion": "k8s-rdma.io/v1", "kind": "InterfaceConfig"}
    config = [
        {
            "source": "FromClaim",
            "requests": [entry["request"]],
            "opaque": {"driver": DRIVER, "parameters": head | entry["config"]},
        }
        for entry in interfaces
        if entry["config"]
    ]
    requests = {
        entry["request"]: {
            "name": entry["request"],
            "exactly": {
                "deviceClassName": "rdma",
                "capacity": {"requests": {"bandwidth": str(entry["bandwidth"])}},
            },
        }
        for entry in interfaces
    }
    made = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default", "uid": uid},
        "spec": {"devices": {"requests": list(requests.values())}},
        "status": {
            "allocation": {"devices": {"results": results, "config": config}},
            "reservedFor": [{"resource": "pods", "name": "p", "uid": "uid-p"}],
        },
    }
    return made | changes


def pod(name: str = "p", uid: str = "", *claims: str, **spec: Any) -> dict[str, Any]:
    names = claims or ("c",)
    return {
        "metadata": {"name": name, "namespace": "default", "uid": uid or f"uid-{name}"},
        "spec": {"nodeName": "w1", "resourceClaims": [_of_pod(name) for name in names]} | spec,
    }


def _of_pod(claim_name: str) -> dict[str, str]:
    return {"name": f"net-{claim_name}", "resourceClaimName": claim_name}


def of_pod(document: dict[str, Any], name: str) -> dict[str, Any]:
    """The claim, reserved for a pod of that name."""
    reserved = [{"resource": "pods", "name": name, "uid": f"uid-{name}"}]
    return document | {"status": document["status"] | {"reservedFor": reserved}}


def prepare(document: dict[str, Any], of: dict[str, Any] | None = None, wait_s: float = 0.0) -> Prepare:
    """The question; by default for the pod that the claim is reserved for."""
    meta = document["metadata"]
    if of is None:
        [consumer] = document["status"]["reservedFor"]
        of = pod(consumer["name"], consumer["uid"], meta["name"])
    return Prepare(
        claim=ClaimName(namespace=meta["namespace"], name=meta["name"], uid=meta["uid"]),
        resource=msgspec.Raw(msgspec.json.encode(document)),
        pod=msgspec.Raw(msgspec.json.encode(of)),
        wait_s=wait_s,
    )


def read_interface_config(parameters: bytes, *, min_mbps: int = 0) -> InterfaceRequest:
    """The interface that a request with these parameters and this reservation is."""
    document = claim(interface("a", bandwidth=f"{min_mbps}M"))
    opaque = {"driver": DRIVER, "parameters": msgspec.Raw(parameters)}
    document["status"]["allocation"]["devices"]["config"] = [{"opaque": opaque}]
    [entry] = decode_prepare(prepare(document), NodeName("w1")).claim.interfaces
    return entry.interface
