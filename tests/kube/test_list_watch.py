"""Lists in pages and watches, also of an API server that answers in pieces, not at all, or without end."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from k8s_rdma.core.ledger import Pod
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.kube.api import NodeView, PodView
from k8s_rdma.kube.errors import ApiRefusedError, ApiUncertainError
from k8s_rdma.kube.informer import Changed, Event, Listed, ListPage
from k8s_rdma.kube.list_watch import ObjectSelection, watch_objects
from k8s_rdma.kube.objects import PodObject
from k8s_rdma_demo.cluster.api import ApiConfig
from k8s_rdma_demo.cluster.http_server import Response
from kube.conftest import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


pytestmark = pytest.mark.anyio


async def test_follow_pods_ends_with_an_error_when_the_watch_fell_behind(cluster):
    async with cluster(ApiConfig(history_limit=1)) as c, aclosing(c.client.follow_pods()) as events:
        await anext(events)
        for name in ("a", "b", "c"):
            await c.create_pod(name)
        with pytest.raises(ApiRefusedError) as lost:
            await anext(events)
    assert lost.value.status == 410


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"null", b"<html>", b'{"items": []}', b'{"metadata": {}, "items": []}', b"[" * 100_000],
    ids=lambda body: body[:30].decode() or "nothing",
)
@pytest.mark.parametrize("status", [200, 500])
async def test_follow_pods_ends_with_an_error_when_the_answer_is_no_list(answering, status, body):
    async def handle(request):
        return Response(status=status, body=body)

    async with answering(handle) as client, aclosing(client.follow_pods()) as events:
        with pytest.raises(ApiUncertainError, match="list pods"):
            await anext(events)


def pod_document(name: str, **meta: object) -> dict[str, object]:
    metadata = {"name": name, "namespace": "d", "uid": name, "resourceVersion": "8", **meta}
    return {"metadata": metadata, "spec": {"nodeName": "w1"}, "status": {"phase": "Running"}}


@pytest.mark.parametrize("levels", [100, 950, 9_990])
async def test_pods_are_followed_however_deep_one_of_them_is_nested(answering, levels):
    """kube-apiserver 1.36 takes `metadata.managedFields` of so many levels from whoever may create a pod."""
    fields = b'{"f:a":' * levels + b"{}" + b"}" * levels
    nested = json.dumps(pod_document("p", managedFields=["FIELDS"])).encode().replace(b'"FIELDS"', fields)
    plain = json.dumps(pod_document("q")).encode()

    async def handle(request):
        if "watch" in request.query:
            return Response(status=200, body=b'{"type":"MODIFIED","object":%b}\n' % nested)
        if request.path.endswith("/p"):
            return Response(status=200, body=nested)
        return Response(
            status=200, body=b'{"metadata":{"resourceVersion":"7"},"items":[%b,%b]}' % (nested, plain)
        )

    async with answering(handle) as client, aclosing(client.follow_pods()) as events:
        listed, changed = await anext(events), await anext(events)
        read = await client.get_pod("d", "p")
        touched = await client.touch_pod(Pod(namespace="d", name="p", uid=PodUid("p")), "k8s-rdma.io/a", "1")
    assert [(each.name, each.node) for each in listed.items] == [("p", "w1"), ("q", "w1")]
    assert changed == Changed(listed.items[0])
    assert read == touched == listed.items[0]


async def test_list_of_large_objects_comes_in_pages_of_fewer(answering):
    """Whoever may create pods makes each of them 1.5 MiB long; 500 of them are more than a process has."""
    lengths = [1 << 20] * 40 + [0] * 10
    pods = [pod_document(f"p{at}", annotations={"a": "x" * length}) for at, length in enumerate(lengths)]

    async def handle(request):
        begin, limit = int(request.query.get("continue", 0)), int(request.query["limit"])
        token = str(begin + limit) if begin + limit < len(pods) else ""
        listing = {
            "metadata": {"resourceVersion": "7", "continue": token},
            "items": pods[begin : begin + limit],
        }
        return Response(status=200, body=json.dumps(listing).encode())

    names, longest = [], 0
    async with answering(handle) as client, aclosing(client.follow_pods()) as events:
        async for page in events:
            names += [pod.name for pod in page.items]
            longest = max(longest, len(page.items))
            if isinstance(page, Listed):
                break
    assert names == [f"p{number}" for number in range(50)]
    assert longest <= 16


@pytest.mark.parametrize("padding", [0, 1 << 18])
async def test_whole_list_is_requested_when_continuations_expire(answering, padding):
    """A list that begins anew page by page may expire again, and never ends.

    Sources: https://github.com/folio-pro/kdashboard/issues/70, https://github.com/kubernetes/kubernetes/pull/67284.
    """
    pods = [pod_document(f"p{number}", annotations={"a": "x" * padding}) for number in range(120)]

    async def handle(request):
        if "continue" in request.query:
            pods[:] = [pod for pod in pods if pod["metadata"]["name"] != "p0"]  # gone between the lists
            status = {"kind": "Status", "code": 410, "message": "too old", "reason": "Expired"}
            return Response(status=410, body=json.dumps(status).encode())
        limit = int(request.query.get("limit", 10**6))
        following = {"continue": "next"} if limit < len(pods) else {}
        if "limit" in request.query:
            limit, following = 50, {"continue": "next"}
        meta = {"resourceVersion": "7", **following}
        listing = {"items": pods[:limit], "metadata": meta}
        return Response(status=200, body=json.dumps(listing).encode())

    names, longest = set(), 0
    async with answering(handle) as client, aclosing(client.follow_pods()) as events:
        async for page in events:
            if page.is_anew:
                names.clear()
            names |= {pod.name for pod in page.items}
            longest = max(longest, sum(len(pod.annotations.get("a", "")) for pod in page.items))
            if isinstance(page, Listed):
                break
    assert names == {f"p{number}" for number in range(1, 120)}
    assert longest <= 17 << 20


async def read_list(events: AsyncIterator[Event[PodView]]) -> None:
    async with aclosing(events):
        async for event in events:
            assert isinstance(event, ListPage)


@pytest.mark.parametrize(
    ("is_paged", "is_expiring"), [(True, False), (True, True), (False, False), (False, True)]
)
async def test_list_without_an_end_is_given_up(answering, is_paged, is_expiring):
    asked = []

    async def handle(request):
        asked.append(request.query)
        if "continue" in request.query and is_expiring:
            return Response(status=410, body=b'{"kind":"Status","code":410,"message":"too old"}')
        items = [pod_document(f"p{number}", annotations={"a": "x" * 1000}) for number in range(4)]
        listing = {"items": items * (1 if "limit" in request.query else 10)}
        listing["metadata"] = {"resourceVersion": "7", "continue": "next"}
        return Response(status=200, body=json.dumps(listing).encode())

    async with answering(handle) as client:
        pods = ObjectSelection(kind=PodObject, subject="pods")
        events = watch_objects(client._http, pods, silence_s=30, paged=is_paged, max_bytes=10_000)
        with pytest.raises(ApiUncertainError, match=r"list pods: .*without an end within 10000 bytes"):
            await read_list(events)
    assert len(asked) < 6


async def test_expired_list_is_an_error_when_it_is_no_continuation(answering):
    async def handle(_request):
        return Response(status=410, body=b'{"kind":"Status","code":410,"message":"too old"}')

    async with answering(handle) as client, aclosing(client.follow_pods()) as events:
        with pytest.raises(ApiRefusedError) as lost:
            await anext(events)
    assert lost.value.status == 410


async def test_bookmark_is_a_version_and_no_node(answering):
    versions = []

    async def handle(request):
        if "watch" not in request.query:
            return Response(status=200, body=b'{"metadata":{"resourceVersion":"7"},"items":[]}')
        versions.append(request.query["resourceVersion"])
        kind, name = ("BOOKMARK", "") if len(versions) == 1 else ("ADDED", "w1")
        event = {"type": kind, "object": {"metadata": {"name": name, "resourceVersion": "9"}}}
        return Response(status=200, body=json.dumps(event).encode() + b"\n")

    async with answering(handle) as client, aclosing(client.follow_nodes()) as events:
        assert await anext(events) == Listed(())
        assert await anext(events) == Changed(NodeView(NodeName("w1"), ()))
    assert versions == ["7", "9"]


UNREADABLE = [
    (pod_document("bad", annotations={"a": 1}), "d/bad"),
    ({"metadata": {"name": "bad"}, "spec": []}, "bad"),
    ({"metadata": []}, ""),
    ("no object", ""),
]


@pytest.mark.parametrize(("bad", "name"), UNREADABLE)
async def test_object_that_cannot_be_read_is_left_out_of_list_and_watch_and_logged(answering, bad, name):
    good, later = pod_document("p"), pod_document("q", resourceVersion="9")
    listing = {"metadata": {"resourceVersion": "7"}, "items": [bad, good]}
    versions = []

    async def handle(request):
        if "watch" not in request.query:
            return Response(status=200, body=json.dumps(listing).encode())
        versions.extend(request.query["resourceVersion"])
        changes = [{"type": "ADDED", "object": each} for each in (bad, later)]
        return Response(status=200, body=b"".join(json.dumps(each).encode() + b"\n" for each in changes))

    with capture_logs() as logs:
        async with answering(handle) as client, aclosing(client.follow_pods()) as events:
            assert [each.name for each in (await anext(events)).items] == ["p"]
            assert (await anext(events)).item.name == "q"
            assert (await anext(events)).item.name == "q"  # of the next watch
    assert versions[:2] == ["7", "9"]
    unreadable = [line for line in logs if line["event"] == "object_unreadable"]
    assert [(line["what"], line["object"]) for line in unreadable[:2]] == [("pods", name)] * 2


async def test_next_page_of_a_list_is_requested_while_the_former_one_is_used(answering):
    asked = [asyncio.Event() for _ in range(3)]

    async def handle(request):
        page = int(request.query.get("continue", ["0"])[0])
        asked[page].set()
        items = [pod_document(f"p{page}")]
        meta = {"resourceVersion": "7", **({"continue": str(page + 1)} if page < 2 else {})}
        return Response(status=200, body=json.dumps({"metadata": meta, "items": items}).encode())

    async with answering(handle) as client, aclosing(client.follow_pods()) as events:
        names = []
        for following in (*asked[1:], asked[-1]):
            event = await anext(events)
            async with asyncio.timeout(DEADLINE_S):
                await following.wait()
            names += [each.name for each in event.items]
        assert isinstance(event, Listed)
    assert names == ["p0", "p1", "p2"]


async def test_follow_pods_ends_with_an_error_when_the_watch_falls_silent(answering):
    listing = {"metadata": {"resourceVersion": "7"}, "items": []}
    silent = asyncio.Event()

    async def handle(request):
        if "watch" in request.query:
            await silent.wait()
        return Response(status=200, body=json.dumps(listing).encode())

    async with answering(handle, silence_s=0.05) as client, aclosing(client.follow_pods()) as events:
        assert await anext(events) == Listed(())
        with pytest.raises(ApiUncertainError, match="watch pods"):
            await anext(events)


@pytest.mark.parametrize(
    ("status", "body", "error", "says"),
    [
        (403, b'{"kind": "Status", "message": "no role for that"}', ApiRefusedError, "no role for that"),
        (403, b"<html>", ApiRefusedError, "watch pods: refused"),
        (403, b"[]", ApiRefusedError, "watch pods: refused"),
        (503, b'{"kind": "Status", "message": "later"}', ApiUncertainError, "later"),
    ],
)
async def test_follow_pods_ends_with_the_api_servers_word_when_the_watch_is_refused(
    answering, status, body, error, says
):
    listing = {"metadata": {"resourceVersion": "7"}, "items": []}

    async def handle(request):
        if "watch" in request.query:
            return Response(status=status, body=body)
        return Response(status=200, body=json.dumps(listing).encode())

    async with answering(handle) as client, aclosing(client.follow_pods()) as events:
        assert await anext(events) == Listed(())
        with pytest.raises(error, match=says) as refused:
            await anext(events)
    assert f"(HTTP {status})" in refused.value.message


async def test_follow_pods_does_not_storm_an_api_server_that_ends_every_watch_at_once(answering):
    pod = {"metadata": {"name": "p1", "uid": "u", "resourceVersion": "8"}}
    listing = {"metadata": {"resourceVersion": "7"}, "items": []}
    change = json.dumps({"type": "ADDED", "object": pod}).encode()
    watches = []

    async def handle(request):
        if "watch" not in request.query:
            return Response(status=200, body=json.dumps(listing).encode())
        watches.append(request)
        return Response(status=200, body=change + b"\n" if len(watches) == 4 else b"")

    async with answering(handle, silence_s=1.0) as client, aclosing(client.follow_pods()) as events:
        assert await anext(events) == Listed(())
        assert (await anext(events)).item.uid == "u"
        with pytest.raises(ApiUncertainError, match="watch pods"):
            await anext(events)
    assert 4 < len(watches) < 10
