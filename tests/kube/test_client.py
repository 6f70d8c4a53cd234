from __future__ import annotations

import asyncio
import json
import socket
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.api import NodeView, PodBinding
from k8s_rdma.kube.client import connect
from k8s_rdma.kube.errors import TOO_LARGE, ApiRefusedError, ApiUncertainError, ApiUnreachableError
from k8s_rdma.kube.informer import Changed, Deleted, Listed
from k8s_rdma.kube.published_api import LeaseView
from k8s_rdma_demo.cluster.command import kubeconfig, write_kubeconfig
from k8s_rdma_demo.cluster.http_server import HttpService, Response, serving
from kube.conftest import DEADLINE_S, connected

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from k8s_rdma.kube.client import Client

pytestmark = pytest.mark.anyio

PODS = "/api/v1/namespaces/default/pods"
MERGE = {"Content-Type": "application/merge-patch+json"}


def binding(uid: str, node: str = "w1", **annotations: str) -> PodBinding:
    named = {key.replace("_", "/"): value for key, value in annotations.items()}
    return PodBinding(namespace="default", name="p1", uid=PodUid(uid), node=NodeName(node), annotations=named)


async def finish(c, name: str) -> None:
    done = await c.http.patch(f"{PODS}/{name}/status", json={"status": {"phase": "Succeeded"}}, headers=MERGE)
    assert done.status_code == 200


async def test_get_pod_shows_node_and_own_annotations_when_pod_is_bound(cluster):
    async with cluster() as c:
        uid = await c.create_pod(annotations={"rdma_interfaces_required": "[{}]", "foreign.example/a": "x"})
        await c.client.bind_pod(binding(uid, **{"k8s-rdma.io_placement": "{}"}))
        pod = await c.client.get_pod("default", "p1")
    assert (pod.namespace, pod.name, pod.uid, pod.node) == ("default", "p1", uid, "w1")
    assert pod.annotations == {"rdma_interfaces_required": "[{}]", "k8s-rdma.io/placement": "{}"}
    assert not pod.finished


async def test_get_pod_returns_none_if_the_pod_does_not_exist(cluster):
    async with cluster() as c:
        assert await c.client.get_pod("default", "p1") is None


async def test_bind_pod_is_refused_with_409_when_uid_is_another_pods(cluster):
    async with cluster() as c:
        await c.create_pod()
        with pytest.raises(ApiRefusedError) as refused:
            await c.client.bind_pod(binding("other"))
        assert refused.value.status == 409
        assert refused.value.message.startswith("bind pod default/p1 to node w1: ")
        assert (await c.client.get_pod("default", "p1")).node is None


async def test_bind_pod_is_refused_when_pod_is_bound_already(cluster):
    async with cluster() as c:
        uid = await c.create_pod()
        await c.client.bind_pod(binding(uid))
        with pytest.raises(ApiRefusedError, match="already assigned to node"):
            await c.client.bind_pod(binding(uid))


def lease(holder: str, version: str = "") -> LeaseView:
    return LeaseView(namespace="kube-system", name="binder", holder=holder, duration_s=15, version=version)


async def test_lease_is_made_renewed_and_released(cluster):
    async with cluster() as c:
        assert await c.client.get_lease("kube-system", "binder") is None
        made = await c.client.write_lease(lease("a"))
        assert made == lease("a", made.version) == await c.client.get_lease("kube-system", "binder")
        renewed = await c.client.write_lease(made)
        assert renewed.version != made.version
        stored = await c.http.get("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/binder")
        assert stored.json()["metadata"]["managedFields"] == [{}]  # by which kube-apiserver keeps no entry
        released = await c.client.write_lease(lease("", renewed.version))
        assert released == await c.client.get_lease("kube-system", "binder") == lease("", released.version)


async def test_lease_is_refused_with_409_when_another_client_wrote_it(cluster):
    async with cluster() as c:
        made = await c.client.write_lease(lease("a"))
        taken = await c.client.write_lease(lease("b", made.version))
        for late in (made, lease("c")):
            with pytest.raises(ApiRefusedError) as refused:
                await c.client.write_lease(late)
            assert refused.value.status == 409
        assert await c.client.get_lease("kube-system", "binder") == taken


async def test_lease_keeps_fields_of_other_writers(cluster):
    async with cluster() as c:
        made = await c.client.write_lease(lease("a"))
        url = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/binder"
        labelled = await c.http.patch(url, json={"metadata": {"labels": {"a": "b"}}}, headers=MERGE)
        assert labelled.status_code == 200
        seen = await c.client.get_lease(made.namespace, made.name)
        await c.client.write_lease(seen)
        stored = (await c.http.get(url)).json()
        assert stored["metadata"]["labels"] == {"a": "b"}
        assert stored["spec"]["renewTime"].endswith("Z")


async def test_annotate_node_sets_one_annotation_and_keeps_the_others(cluster):
    async with cluster() as c:
        await c.create_node()
        await c.client.annotate_node(NodeName("w1"), "k8s-rdma.io/a", "1")
        await c.client.annotate_node(NodeName("w1"), "k8s-rdma.io/b", "2")
        annotations = (await c.http.get("/api/v1/nodes/w1")).json()["metadata"]["annotations"]
    assert annotations == {"k8s-rdma.io/a": "1", "k8s-rdma.io/b": "2"}


async def test_label_node_sets_one_label_and_keeps_the_others(cluster):
    async with cluster() as c:
        await c.create_node("w1")
        await c.client.label_node(NodeName("w1"), "k8s-rdma.io/a", "1")
        await c.client.label_node(NodeName("w1"), "k8s-rdma.io/b", "2")
        meta = (await c.http.get("/api/v1/nodes/w1")).json()["metadata"]
        assert meta["labels"] == {"k8s-rdma.io/a": "1", "k8s-rdma.io/b": "2"}
        assert "annotations" not in meta


async def test_annotate_node_is_refused_when_node_is_gone(cluster):
    async with cluster() as c:
        with pytest.raises(ApiRefusedError) as refused:
            await c.client.annotate_node(NodeName("w1"), "k8s-rdma.io/a", "1")
    assert refused.value.status == 404


async def test_follow_pods_lists_unfinished_ones_and_then_yields_every_change(cluster):
    async with cluster() as c:
        await c.create_pod("done")
        await finish(c, "done")
        uid = await c.create_pod("p1")
        async with aclosing(c.client.follow_pods()) as events:
            listed = await anext(events)
            assert isinstance(listed, Listed)
            assert [pod.name for pod in listed.items] == ["p1"]
            await c.client.bind_pod(binding(uid))
            bound = await anext(events)
            assert isinstance(bound, Changed)
            assert (bound.item.uid, bound.item.node) == (uid, "w1")
            await finish(c, "p1")
            gone = await anext(events)
            assert isinstance(gone, Deleted)
            assert gone.item.uid == uid
            await c.create_pod("p2")
            assert (await anext(events)).item.name == "p2"
            await c.http.delete(f"{PODS}/p2")
            last = await anext(events)
            assert isinstance(last, Deleted)
            assert last.item.name == "p2"


async def test_follow_nodes_yields_addresses_inside_the_cluster_in_order(cluster):
    addresses = (
        ("Hostname", "w1"),
        ("InternalDNS", "w1.in"),
        ("ExternalIP", "9.9.9.9"),
        ("InternalIP", "::1"),
    )
    async with cluster() as c:
        await c.create_node("w1", *addresses)
        async with aclosing(c.client.follow_nodes()) as events:
            assert await anext(events) == Listed((NodeView(NodeName("w1"), ("w1.in", "::1")),))
            await c.create_node("w2")
            assert await anext(events) == Changed(NodeView(NodeName("w2"), ()))
            await c.http.delete("/api/v1/nodes/w1")
            assert isinstance(await anext(events), Deleted)


async def test_token_that_was_rotated_is_read_anew(tmp_path):
    """As kubelet rotates the token of a pod's service account, which the API server takes for an hour."""
    token, valid, watching = tmp_path / "token", ["first"], asyncio.Event()

    async def handle(request):
        if request.headers.get("authorization") != f"Bearer {valid[0]}":
            return Response(status=401, body=b'{"kind": "Status", "code": 401, "message": "expired"}')
        if "watch" in request.query:
            await watching.wait()
        return Response(status=200, body=b'{"metadata": {"name": "p1", "resourceVersion": "7"}, "items": []}')

    service = HttpService(handle=handle, refuse=lambda status: Response(status=status, body=b"{}"))
    async with asyncio.timeout(DEADLINE_S), serving(service, "127.0.0.1", 0) as port:
        document = kubeconfig(f"http://127.0.0.1:{port}")
        document["users"][0]["user"] = {"tokenFile": str(token)}
        (tmp_path / "kubeconfig").write_text(json.dumps(document))
        token.write_text("first\n")
        client = connect(str(tmp_path / "kubeconfig"), silence_s=0.1)
        for valid[0] in ("first", "second", "third"):
            token.write_text(f"{valid[0]}\n")
            assert (await client.get_pod("default", "p1")).name == "p1"
        valid[0] = "fourth"
        with pytest.raises(ApiRefusedError, match="expired"):
            await client.get_pod("default", "p1")
        token.write_text("fourth\n")
        async with aclosing(client.follow_pods()) as events:
            assert await anext(events) == Listed(())
            with pytest.raises(ApiUncertainError, match="watch pods"):  # which was let in
                await anext(events)
        await client.close()


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a/b", "../../nodes/w1", "a%2Fb", "a?b", "a#b", "a\0", "a\n", "a" * 300_000],
    ids=lambda name: ascii(name[:20]),
)
async def test_name_that_would_lead_to_another_path_is_refused(answering, name):
    asked = []

    async def handle(request):
        asked.append(request)
        return Response(status=200, body=b"{}")

    async with answering(handle) as client:
        for call in (
            client.get_pod("default", name),
            client.get_pod(name, "p1"),
            client.annotate_node(NodeName(name), "k8s-rdma.io/a", "1"),
            client.bind_pod(
                PodBinding(namespace="d", name=name, uid=PodUid("u"), node=NodeName("w1"), annotations={})
            ),
        ):
            with pytest.raises(ApiRefusedError, match="not the name of an object"):
                await call
    assert asked == []


STATUS = {"kind": "Status", "status": "Failure", "message": "no", "reason": "Whatever"}
TOO_LARGE_FOR_ETCD = (
    '{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"etcdserver: request is '
    'too large","code":500}'
)
TOO_LARGE_FOR_ITS_CLIENT = (
    '{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"rpc error: code = '
    'ResourceExhausted desc = trying to send message larger than max (2300576 vs. 2097152)","code":500}'
)
"""Both as kube-apiserver 1.36.2 answered with etcd."""


@pytest.mark.parametrize(
    ("status", "body", "kind", "error"),
    [
        (403, json.dumps({**STATUS, "code": 403}), "application/json", ApiRefusedError),
        (429, json.dumps({**STATUS, "code": 429}), "application/json", ApiRefusedError),
        (500, json.dumps({**STATUS, "code": 500}), "application/json", ApiUncertainError),
        (504, json.dumps({**STATUS, "code": 504}), "application/json", ApiUncertainError),
        (500, TOO_LARGE_FOR_ETCD, "application/json", ApiRefusedError),
        (500, TOO_LARGE_FOR_ITS_CLIENT, "application/json", ApiRefusedError),
        (502, "<html>bad gateway</html>", "text/html", ApiUncertainError),
        (502, "bad gateway", "application/json", ApiUncertainError),
        (200, "not json", "application/json", ApiUncertainError),
        (201, '["no object"]', "application/json", ApiUncertainError),
    ],
)
async def test_failed_bind_pod_reports_whether_it_may_have_happened(answering, status, body, kind, error):
    async def handle(_request):
        return Response(status=status, body=body.encode(), content_type=kind)

    async with answering(handle) as client:
        with pytest.raises(error, match="bind pod default/p1 to node w1: "):
            await client.bind_pod(binding("u1"))


@pytest.mark.parametrize("text", [TOO_LARGE_FOR_ETCD, TOO_LARGE_FOR_ITS_CLIENT])
@pytest.mark.parametrize("status", [409, 500])
async def test_bind_pod_says_that_the_pod_is_too_long_when_etcd_does_not_take_it(answering, text, status):
    """kube-apiserver answers 409 to a Binding, and 500 to any other write."""

    async def handle(_request):
        body = text.replace('"code":500', f'"code":{status}')
        return Response(status=status, body=body.encode(), content_type="application/json")

    async with answering(handle) as client:
        with pytest.raises(ApiRefusedError, match="longer than etcd takes") as refused:
            await client.bind_pod(binding("u1"))
    assert refused.value.status == TOO_LARGE


async def test_bind_pod_is_uncertain_when_the_api_server_does_not_answer(answering):
    never = asyncio.Event()

    async def handle(_request):
        await never.wait()

    async def bind(client: Client) -> None:
        while True:
            with suppress(ApiUnreachableError):  # a busy machine connects later
                return await client.bind_pod(binding("u1"))

    async with answering(handle, timeout_s=0.05) as client:
        with pytest.raises(ApiUncertainError, match="ReadTimeout"):
            await bind(client)


@asynccontextmanager
async def counting(*, closes: bool = False) -> AsyncIterator[tuple[str, list[str], asyncio.Event]]:
    """A server without any pod: its URL, a request's first line per connection, and an event when one ends.

    closes: whether it ends a connection after the first answer without having said so.
    """
    requests: list[str] = []
    ended = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        requests.append(head.decode().partition("\r\n")[0])
        while head:
            writer.write(b"HTTP/1.1 404 X\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")
            await writer.drain()
            if closes:
                break
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break
        writer.close()
        await writer.wait_closed()
        ended.set()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", requests, ended


@pytest.mark.parametrize(("limits", "connections"), [({}, 1), ({"keepalive_s": 0.0}, 2)])
async def test_calls_share_a_connection_unless_it_was_idle_for_too_long(tmp_path, limits, connections):
    async with counting() as (url, requests, _), connected(tmp_path, url, **limits) as client:
        for name in ("p1", "p2"):
            assert await client.get_pod("default", name) is None
    assert len(requests) == connections


async def test_call_goes_by_a_new_connection_when_the_other_end_closed_the_idle_one(tmp_path):
    async with counting(closes=True) as (url, requests, ended), connected(tmp_path, url) as client:
        assert await client.get_pod("default", "p1") is None
        await ended.wait()
        assert await client.get_pod("default", "p2") is None
    assert len(requests) == 2


async def test_calls_go_by_the_proxy_that_the_environment_names(tmp_path, monkeypatch):
    async with counting() as (proxy, requests, _):
        monkeypatch.setenv("http_proxy", proxy)
        async with connected(tmp_path, "http://api.example:6443") as client:
            assert await client.get_pod("default", "p1") is None
    assert requests == ["GET http://api.example:6443/api/v1/namespaces/default/pods/p1 HTTP/1.1"]


async def test_bind_pod_is_certainly_not_done_when_no_server_listens(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    client = connect(str(write_kubeconfig(tmp_path / "config", f"http://127.0.0.1:{port}")))
    with pytest.raises(ApiUnreachableError):
        await client.bind_pod(binding("u1"))
    await client.close()


@pytest.mark.parametrize("text", ["", "- no mapping", "clusters: 7", "{", "current-context: none"])
async def test_connect_names_the_file_when_it_is_no_kubeconfig(tmp_path, text):
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(MalformedError, match=str(path)):
        connect(str(path))
    with pytest.raises(MalformedError, match="absent"):
        connect(str(tmp_path / "absent"))
