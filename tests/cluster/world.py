"""A cluster in which a scenario happens: nodes, pods, accounts, extenders and a scheduler."""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import yaml

from cluster.control_plane import ControlPlane, Json, write_kubeconfig
from cluster.extenders import Extender
from cluster.nodes import Node, node_object
from cluster.real import GANGS, real
from cluster.standin import stand_in
from extender.node_server import node_servers
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION
from k8s_rdma_demo.plain_http import NO_TLS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

DEADLINE_S = 100
RBAC = Path(__file__).parents[2] / "deploy" / "rbac"
POLICIES = RBAC.parent / "policies"
POLICIES_SINCE = (1, 30)
"""The release from which on the API server has those that validate."""
MOUNT = "rdma-sriov/dev-infiniband-mount"
_GROUPS = {
    "v1": "/api/v1",
    "rbac.authorization.k8s.io/v1": "/apis/rbac.authorization.k8s.io/v1",
    "admissionregistration.k8s.io/v1": "/apis/admissionregistration.k8s.io/v1",
}
_CLUSTER_WIDE = {
    "ClusterRole",
    "ClusterRoleBinding",
    "Node",
    "Namespace",
    "PriorityClass",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}


@dataclass
class Cluster:
    """The world of one scenario. All waiting is for work of others: the scenario's deadline bounds it."""

    plane: ControlPlane
    http: httpx2.AsyncClient
    directory: Path
    stack: AsyncExitStack
    node_port: int = 0
    nodes: dict[str, Node] = field(default_factory=dict)

    # objects

    async def create(self, document: Json) -> Json:
        """Create an object of any kind."""
        path = collection(document)
        made = await self.http.post(path, json=document)
        assert made.status_code == 201, f"POST {path}: {made.text}"
        return made.json()

    async def apply(self, manifest: Path) -> None:
        """Create the objects of a manifest."""
        for document in documents(manifest):
            await self.create(document)

    async def patch(self, path: str, patch: Json) -> Json:
        """A JSON merge patch."""
        headers = {"Content-Type": "application/merge-patch+json"}
        changed = await self.http.patch(path, content=json.dumps(patch), headers=headers)
        assert changed.status_code == 200, f"PATCH {path}: {changed.text}"
        return changed.json()

    async def account(self, name: str, namespace: str = "kube-system") -> Path:
        """A kubeconfig of a service account."""
        document = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {}}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        made = await self.http.post(path, json=document)
        assert made.status_code == 201, made.text
        token = made.json()["status"]["token"]
        return write_kubeconfig(self.directory / f"{name}.kubeconfig", self.plane, token)

    # pods

    async def create_pod(self, name: str, *rates: int, **more: Any) -> Json:
        """A pod that reserves so many Mb/s on an interface each. more: of its spec, but for:

        managed: it asks for the mount resource as well. resources: others. labels, annotations: its own.
        """
        resources = dict(more.pop("resources", {}))
        if more.pop("managed", False):
            resources[MOUNT] = "1"
        meta: Json = {"name": name, "namespace": "default", "labels": more.pop("labels", {})}
        annotations = dict(more.pop("annotations", {}))
        if rates:
            annotations["rdma_interfaces_required"] = json.dumps([{"min_tx_rate": rate} for rate in rates])
        if annotations:
            meta["annotations"] = annotations
        container = {"name": "c", "image": "registry.invalid/c:1", "resources": {"limits": resources}}
        spec = {"containers": [container], **more}
        return await self.create({"kind": "Pod", "apiVersion": "v1", "metadata": meta, "spec": spec})

    async def pod(self, name: str) -> Json | None:
        """The pod as it is, if it exists."""
        answer = await self.http.get(f"/api/v1/namespaces/default/pods/{name}")
        return answer.json() if answer.status_code == 200 else None

    async def node_of(self, name: str) -> str | None:
        """The node of a pod, if it is bound."""
        pod = await self.pod(name)
        return pod["spec"].get("nodeName") if pod else None

    async def bound(self, name: str) -> Json:
        """Wait until a pod is bound; the pod then."""
        return await self.when(name, lambda pod: bool(pod["spec"].get("nodeName")))

    async def when(self, name: str, holds: Callable[[Json], bool]) -> Json:
        """Wait until something holds of a pod; the pod then."""
        while True:
            pod = await self.pod(name)
            if pod is not None and holds(pod):
                return pod
            await asyncio.sleep(0.05)

    async def some_bound(self, count: int) -> list[Json]:
        """Wait until so many pods are bound, whichever; all that are."""
        while True:
            pods = (await self.http.get("/api/v1/pods")).json()["items"]
            bound = [pod for pod in pods if pod["spec"].get("nodeName")]
            if len(bound) >= count:
                return bound
            await asyncio.sleep(0.05)

    async def gone(self, name: str) -> None:
        """Wait until there is no such pod."""
        while await self.pod(name) is not None:  # noqa: ASYNC110  another process makes it go
            await asyncio.sleep(0.05)

    async def delete_pod(self, name: str) -> None:
        """Have a pod go, as its owner does."""
        answer = await self.http.delete(f"/api/v1/namespaces/default/pods/{name}")
        assert answer.status_code == 200, answer.text

    async def end_pod(self, name: str) -> None:
        """Its kubelet is done with a pod that was lingering."""
        pod = await self.pod(name)
        assert pod is not None
        self.nodes[pod["spec"]["nodeName"]].release(pod["metadata"]["uid"])
        await self.http.delete(f"/api/v1/namespaces/default/pods/{name}?gracePeriodSeconds=0")

    async def events(self, pod: str, reason: str) -> list[str]:
        """Messages of a pod's events of that reason, as `kubectl describe` shows them."""
        answer = await self.http.get("/api/v1/namespaces/default/events")
        return [
            event["message"]
            for event in answer.json()["items"]
            if event["involvedObject"]["name"] == pod and event["reason"] == reason
        ]

    async def event(self, pod: str, reason: str, part: str = "") -> str:
        """Wait for an event with that in its message; its message."""
        while True:
            for message in await self.events(pod, reason):
                if part in message:
                    return message
            await asyncio.sleep(0.05)

    async def placed(self) -> dict[tuple[str, str], int]:
        """Mb/s by node and PF that the placements of all bound pods reserve."""
        sums: dict[tuple[str, str], int] = {}
        for pod in (await self.http.get("/api/v1/pods")).json()["items"]:
            for each in placement(pod):
                key = pod["spec"]["nodeName"], each["pf"]
                sums[key] = sums.get(key, 0) + each["min_tx_rate"]
        return sums

    # programs

    def extender(self, name: str = "extender", **settings: Any) -> Extender:
        """An extender that is not started yet, with the account of its manifest; ended with the scenario."""
        config = {
            "kubeconfig": str(self.directory / "k8s-rdma-extender.kubeconfig"),
            "nodePort": self.node_port,
            "requeueBy": "annotation" if self.plane.release >= (1, 30) else "label",
        }
        made = Extender(self.directory, name, {**config, **settings})
        self.stack.push_async_callback(made.end)
        return made

    async def running_extender(self, **settings: Any) -> Extender:
        """An extender that is ready."""
        made = self.extender(**settings)
        await made.start()
        await made.ready()
        return made

    async def again(self, *extenders: Extender) -> None:
        """Wait until one of them is ready again.

        A scheduler before 1.29 leaves pods alone that it could not schedule for an error, such as an outage
        of extenders, until something happens in the cluster, or for five minutes: then something happens.
        """
        async with httpx2.AsyncClient(trust_env=False, verify=NO_TLS) as http:
            while not any([await each.is_ready(http) for each in extenders]):  # noqa: ASYNC110  as above
                await asyncio.sleep(0.05)
        if self.plane.release < (1, 29):
            node = next(iter((await self.http.get("/api/v1/nodes")).json()["items"]))["metadata"]["name"]
            await self.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {"something": "happened"}}})

    # nodes

    async def add_node(self, node: Node, **resources: str) -> None:
        """Register a node with the API server, and run its kubelet."""
        await self.create(node_object(node.server.name, node.server.address, resources))
        self.nodes[node.server.name] = node

    async def kubelets(self) -> None:
        """Start every pod that comes to a node, and end those that shall go; without end."""
        while True:
            with suppress(httpx2.TransportError):
                async with self.http.stream("GET", "/api/v1/pods?watch=1", timeout=None) as stream:
                    async for line in stream.aiter_lines():
                        await self._on_pod(**json.loads(line))
            await asyncio.sleep(0.05)

    async def _on_pod(self, type: str, object: Json) -> None:  # noqa: A002  the words of a watch
        node = self.nodes.get(object.get("spec", {}).get("nodeName", ""))
        if node is None:
            return
        uid, name = object["metadata"]["uid"], object["metadata"]["name"]
        if type != "DELETED" and "deletionTimestamp" not in object["metadata"]:
            node.start(object)
            return
        if type != "DELETED" and uid in node.lingering:
            return
        if uid not in node.keeps:
            node.release(uid)  # before the object goes, as kubelet has it but for a grace period of 0
        if type != "DELETED":
            await self.http.delete(f"/api/v1/namespaces/default/pods/{name}?gracePeriodSeconds=0")


def documents(manifest: Path) -> list[Json]:
    """The documents of a YAML file."""
    return list(yaml.safe_load_all(manifest.read_text()))


def placement(pod: Json) -> list[Json]:
    """The interfaces promised to a pod, by its annotation."""
    text = pod["metadata"].get("annotations", {}).get(PLACEMENT_ANNOTATION)
    return json.loads(text)["interfaces"] if text else []


def collection(document: Json) -> str:
    """The path that objects of this one's kind are created at."""
    kind, version = document["kind"], document["apiVersion"]
    prefix = f"/apis/{version}" if "/" in version else f"/api/{version}"
    plural = f"{kind.lower()}es" if kind.endswith("s") else f"{kind.lower()}s"
    plural = plural.removesuffix("ys") + "ies" if plural.endswith("ys") else plural
    scope = "" if kind in _CLUSTER_WIDE else f"/namespaces/{document['metadata'].get('namespace', 'default')}"
    return f"{prefix}{scope}/{plural}"


@asynccontextmanager
async def cluster(
    kind: str | Callable[[Path], AbstractAsyncContextManager[ControlPlane]],
    directory: Path,
    *names: str,
    deadline_s: float = DEADLINE_S,
    **resources: str,
) -> AsyncIterator[Cluster]:
    """A cluster of these nodes, each of one PF of 10,000 Mb/s with four VFs, and the extender's account.

    If there are policies, the extender's is in force: all that it does has to be within that.
    kind: `stand-in`, `real`, `gangs`: the real one that schedules these; or a function that runs another one.
    resources: others that nodes have.
    """
    kinds = {"stand-in": stand_in, "real": real, "gangs": partial(real, gates=GANGS)}
    plane_of = kinds[kind] if isinstance(kind, str) else kind
    try:
        async with asyncio.timeout(deadline_s), AsyncExitStack() as stack:
            plane = await stack.enter_async_context(plane_of(directory))
            http = await stack.enter_async_context(_client(plane))
            made = Cluster(plane, http, directory, stack)
            await made.apply(RBAC / "extender.yaml")
            if kind != "stand-in" and plane.release >= POLICIES_SINCE:
                await made.apply(POLICIES / "extender.yaml")
            await made.account("k8s-rdma-extender")
            made.node_port, servers = await stack.enter_async_context(node_servers(*names))
            for server in servers.values():
                await made.add_node(Node(server), **resources)
            kubelets = asyncio.create_task(made.kubelets())
            stack.push_async_callback(_ended, kubelets)
            yield made
            assert not kubelets.done(), kubelets.exception()
    except BaseException:
        sys.stderr.write(f"logs of this scenario: {directory}\n")
        raise


async def _ended(work: asyncio.Task[None]) -> None:
    """Cancelled, and through with it: its connection is not left open."""
    work.cancel()
    await asyncio.wait([work])


def _client(plane: ControlPlane) -> httpx2.AsyncClient:
    verify = ssl.create_default_context(cafile=plane.ca_file) if plane.ca_file else True
    return httpx2.AsyncClient(
        base_url=plane.url,
        headers={"Authorization": f"Bearer {plane.admin_token}"},
        verify=verify,
        trust_env=False,
        timeout=30,
    )
