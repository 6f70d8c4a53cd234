from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from k8s_rdma_demo.cluster.client import ApiClient, ApiError, Informer
from k8s_rdma_demo.cluster.http_server import HttpService, Request, Response, Stream, serving
from k8s_rdma_demo.cluster.objects import NODES, PODS
from k8s_rdma_demo.kubelet.device_manager import in_background

pytestmark = pytest.mark.anyio

DEADLINE_S = 120


def node(name: str, revision: int, uid: str = "u") -> dict:
    return {"metadata": {"name": name, "resourceVersion": str(revision), "uid": uid}}


def event(kind: str, obj: dict) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


GONE = event("ERROR", {"code": 410, "message": "too old resource version: 1 (9)"})


class Server:
    """An API server that gives scripted lists and watches, each once; after the last one it is silent."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self.exhausted = asyncio.Event()

    async def handle(self, request: Request) -> Response | Stream:
        watching = "watch" in request.query
        self.asked.append(f"watch {request.query['resourceVersion']}" if watching else "list")
        if not self.answers:
            self.exhausted.set()
            return Stream(parts=_silence())
        answer = self.answers.pop(0)
        if isinstance(answer, int):
            return Response(status=answer, body=b"not JSON")
        if watching:
            return Stream(parts=_each(answer))
        revision, *items = answer
        document = {"metadata": {"resourceVersion": str(revision)}, "items": items}
        return Response(status=200, body=json.dumps(document).encode())


async def _each(lines):
    for line in lines:
        yield line


async def _silence():
    await asyncio.Event().wait()
    yield b""


@asynccontextmanager
async def informed(server: Server):
    """Yield the changes that an informer reports while the server plays its script to the end."""
    told: list[tuple[str, str]] = []

    def on_change(old: dict | None, new: dict | None) -> None:
        told.append(
            tuple(
                f"{o['metadata']['name']}{o['metadata']['resourceVersion']}" if o else "" for o in (old, new)
            )
        )

    service = HttpService(handle=server.handle, refuse=lambda status: Response(status=status, body=b""))
    async with (
        asyncio.timeout(DEADLINE_S),
        serving(service, "127.0.0.1", 0) as port,
        ApiClient.connecting(f"http://127.0.0.1:{port}") as client,
    ):
        informer = Informer(client, NODES, on_change, retry_s=0.01)
        async with in_background(informer.run()):
            await server.exhausted.wait()
            yield informer, told


async def test_informer_reports_every_change_once_while_it_lists_and_watches():
    server = Server(
        (5, node("a", 3)),
        [event("ADDED", node("b", 6)), event("MODIFIED", node("a", 7)), event("DELETED", node("b", 8))],
    )
    async with informed(server) as (informer, told):
        assert told == [("", "a3"), ("", "b6"), ("a3", "a7"), ("b6", "")]
        assert list(informer.objects) == [("", "a")]
        assert informer.synced.is_set()
    assert server.asked == ["list", "watch 5", "watch 8"]


async def test_informer_lists_again_when_its_revision_is_too_old():
    server = Server((5, node("a", 3), node("b", 4)), [GONE], (9, node("b", 4), node("c", 8)), [])
    async with informed(server) as (_, told):
        assert told == [("", "a3"), ("", "b4"), ("a3", ""), ("", "c8")]
    assert server.asked == ["list", "watch 5", "list", "watch 9", "watch 9"]


async def test_informer_reports_a_recreated_object_as_deleted_and_added():
    server = Server((5, node("a", 3)), [event("MODIFIED", node("a", 6, uid="v"))])
    async with informed(server) as (_, told):
        assert told == [("", "a3"), ("a3", ""), ("", "a6")]


async def test_informer_tries_again_when_the_server_fails():
    server = Server(500, (5, node("a", 3)), 503, (6, node("a", 3)))
    async with informed(server) as (_, told):
        assert told == [("", "a3")]
    assert server.asked == ["list", "list", "watch 5", "list", "watch 6"]


async def test_client_names_the_request_when_it_is_refused_or_not_answered(cluster):
    async with cluster() as c, ApiClient.connecting(c.api.url) as client:
        with pytest.raises(ApiError, match='pods "p1" not found') as refused:
            await client.get(PODS, ("default", "p1"))
        assert refused.value.code == 404
    async with ApiClient.connecting(c.api.url) as client:
        with pytest.raises(ApiError, match="GET /api/v1/nodes/n: no answer") as unanswered:
            await client.get(NODES, ("", "n"))
        assert unanswered.value.code == 0


async def test_background_work_that_fails_ends_its_block():
    async def fail() -> None:
        raise ValueError("told so")

    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(ValueError, match="told so"):
            async with in_background(fail()):
                await asyncio.Event().wait()
        with pytest.raises(KeyError):
            async with in_background(asyncio.Event().wait()):
                raise KeyError
