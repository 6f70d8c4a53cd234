"""The requests of each method of our client to the API server, as the stand-in receives them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import yaml

from k8s_rdma.core.ledger import Pod
from k8s_rdma.core.types import Gang, GangApi, NodeName, PodUid
from k8s_rdma.kube.access_reviews import User
from k8s_rdma.kube.api import ObjectEvent, PodBinding, about_node
from k8s_rdma.kube.client import Client, connect
from k8s_rdma.kube.errors import API_ERRORS
from k8s_rdma.kube.published_api import LeaseView, RdmaNodeView
from k8s_rdma.kube.resource_slices import SliceView
from k8s_rdma.wire.claims import DRIVER
from k8s_rdma.wire.objects.meta import OwnerReference
from k8s_rdma_demo.cluster.api import Api
from k8s_rdma_demo.cluster.http_server import HttpService, Request, Response, Stream, serving
from k8s_rdma_demo.cluster.objects import BUILT_IN, Target, parse_resource_type, resolve, system_clock
from k8s_rdma_demo.cluster.registry import Registry
from k8s_rdma_demo.cluster.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Call = tuple[str, str, str]
    """Group, resource with subresource, verb."""

RESOURCES = (
    *BUILT_IN,
    parse_resource_type("k8s-rdma.io/v1alpha1/rdmanodes/RdmaNode"),
    parse_resource_type("authentication.k8s.io/v1/tokenreviews/TokenReview"),
    parse_resource_type("authorization.k8s.io/v1/subjectaccessreviews/SubjectAccessReview"),
    parse_resource_type("scheduling.k8s.io/v1alpha2/podgroups/PodGroup/namespaced"),
    parse_resource_type("scheduling.x-k8s.io/v1alpha1/podgroups/PodGroup/namespaced"),
)
POD = Pod(namespace="ns", name="p", uid=PodUid("u"))
NODE = NodeName("w1")
LEASE = LeaseView(namespace="ns", name="l", holder="h", duration_s=15)
NOW = datetime.now(UTC)
EVENT = ObjectEvent(
    about=about_node(NODE),
    name="e",
    reason="R",
    message="m",
    warning=False,
    count=1,
    first=NOW,
    last=NOW,
    component="c",
    host=NODE,
)
SLICE = SliceView(name="s", version="1", spec=b"{}")
OWNER = OwnerReference.of_node(NODE, "u")
REPORT = RdmaNodeView(node=NODE, version="1", status=b"{}")
EXAMPLES: dict[str, tuple[Callable[[Client], Any], ...]] = {
    "authenticate": (lambda c: c.authenticate("token"),),
    "may_list_pods": (lambda c: c.may_list_pods(User(username="u"), "ns"),),
    "annotate_node": (lambda c: c.annotate_node(NODE, "k", "v"),),
    "annotate_slice": (lambda c: c.annotate_slice("s", "k", "v"),),
    "annotate_version": (lambda c: c.annotate_version(POD, "1", {"k": "v"}),),
    "annotate_pod": (lambda c: c.annotate_pod(POD, "k", "v"),),
    "bind_pod": (
        lambda c: c.bind_pod(
            PodBinding(namespace="ns", name="p", uid=PodUid("u"), node=NODE, annotations={})
        ),
    ),
    "create_event": (lambda c: c.create_event(EVENT),),
    "create_rdma_node": (lambda c: c.create_rdma_node(NODE, "u"),),
    "create_slice": (lambda c: c.create_slice("s", {}, OWNER),),
    "delete_lease": (lambda c: c.delete_lease(LEASE),),
    "delete_slice": (lambda c: c.delete_slice("s"),),
    "evict_pod": (lambda c: c.evict_pod(POD),),
    "follow_budgets": (lambda c: c.follow_budgets(),),
    "follow_leases": (lambda c: c.follow_leases("ns"),),
    "follow_node": (lambda c: c.follow_node(NODE),),
    "follow_nodes": (lambda c: c.follow_nodes(),),
    "follow_pods": (lambda c: c.follow_pods(),),
    "follow_pods_of": (lambda c: c.follow_pods_of(NODE),),
    "follow_rdma_nodes": (lambda c: c.follow_rdma_nodes(),),
    "follow_slices": (lambda c: c.follow_slices(NODE, DRIVER),),
    "get_claim_document": (lambda c: c.get_claim_document("ns", "c"),),
    "apply_claim_status": (lambda c: c.apply_claim_status("ns", "c", {}, "u"),),
    "get_lease": (lambda c: c.get_lease("ns", "l"),),
    "get_pod_group": tuple(
        lambda c, api=api: c.get_pod_group(Gang(api=api, namespace="ns", name="g")) for api in GangApi
    ),
    "find_rdma_node": (lambda c: c.find_rdma_node(lambda _: False),),
    "get_pod": (lambda c: c.get_pod("ns", "p"),),
    "get_pod_document": (lambda c: c.get_pod_document("ns", "p"),),
    "get_rdma_node": (lambda c: c.get_rdma_node(NODE),),
    "get_whole_pod": (lambda c: c.get_whole_pod("ns", "p"),),
    "label_node": (lambda c: c.label_node(NODE, "k", "v"),),
    "label_pod": (lambda c: c.label_pod(POD, "k", "v"),),
    "leases_version": (lambda c: c.leases_version("ns"),),
    "node_uid": (lambda c: c.node_uid(NODE),),
    "repeat_event": (lambda c: c.repeat_event(EVENT),),
    "replace_slice": (lambda c: c.replace_slice(SLICE, {}, OWNER),),
    "set_capacity": (lambda c: c.set_capacity(NODE, "example.com/vf", 1),),
    "touch_pod": (lambda c: c.touch_pod(POD, "k", "v"),),
    "write_lease": (
        lambda c: c.write_lease(LEASE),
        lambda c: c.write_lease(replace(LEASE, version="1")),
    ),
    "write_status": (lambda c: c.write_status(REPORT),),
}
"""Each method of the client, in each way in which it asks something different of the API server."""


DISCOVERY = tuple(f"/apis/scheduling.k8s.io{version}" for version in ("", "/v1", "/v1alpha2"))
"""Documents that every account may read (ClusterRole `system:discovery`)."""


async def asked_of_the_api_server(call: Callable[[Client], Any], directory: Path) -> set[Call]:
    """Group, resource and verb of each request that a call makes to an API server without objects."""
    asked: set[Call] = set()
    api = Api(Registry(store=Store(), clock=system_clock), RESOURCES)

    async def handle(request: Request) -> Response | Stream:
        target = resolve(request.path, RESOURCES)
        if request.path not in DISCOVERY:
            assert target is not None, request.path
            asked.add(_call(request, target))
        return await api.handle(request)

    service = HttpService(handle=handle, refuse=lambda status: Response(status=status, body=b""))
    async with serving(service, "127.0.0.1", 0) as port, asyncio.timeout(120):
        client = connect(_kubeconfig(directory, port))
        try:
            await _made(call(client), asked)
        finally:
            await client.close()
    return asked


async def _made(made: Any, asked: set[Call]) -> None:
    """Make the call; one that follows, until it watches."""
    if not hasattr(made, "__aiter__"):
        with suppress(*API_ERRORS):
            await made
        return
    following = asyncio.ensure_future(_follow(made))
    while not any(verb == "watch" for *_, verb in asked):
        assert not following.done(), following.exception()
        await asyncio.sleep(0.01)
    following.cancel()
    await asyncio.wait([following])


async def _follow(made: Any) -> None:
    async for _ in made:
        pass


def _call(request: Request, target: Target) -> Call:
    """Source: Kubernetes' "Authorization Overview", request verbs."""
    watch = request.query.get("watch") in {"1", "true"}
    verb = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}.get(request.method) or (
        "get" if target.name else "watch" if watch else "list"
    )
    resource = "/".join(filter(None, (target.resource.plural, target.subresource)))
    return target.resource.group, resource, verb


def _kubeconfig(directory: Path, port: int) -> str:
    path = directory / "kubeconfig"
    path.write_text(
        yaml.safe_dump(
            {
                "current-context": "c",
                "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
                "users": [{"name": "c", "user": {"token": "t"}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
            }
        )
    )
    return str(path)
