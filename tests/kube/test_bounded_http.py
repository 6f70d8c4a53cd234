"""Servers that answer without end: in bytes, in time, in pages; and documents that are no objects."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from k8s_rdma.kube.bounded_http import (
    AnswerTooLongError,
    BoundedAsyncClient,
    ListBudget,
    bounded_reply,
    end_in_time,
    stream_answer,
)
from k8s_rdma.kube.client import connect
from k8s_rdma.kube.documents import Documents
from k8s_rdma.kube.errors import ApiRefusedError, ApiUncertainError
from kube.asking import document, write
from kube.stored_objects import serving_objects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
PODS = "/api/v1/pods"


@contextmanager
def answering(begin: bytes, again: bytes = b"", pause_s: float = 0.0) -> Iterator[str]:
    """A server that answers every request with these bytes, and then the same for ever."""
    ended = threading.Event()

    def answer(connection: socket.socket) -> None:
        with connection:
            connection.recv(65536)
            try:
                connection.sendall(begin)
                while again and not ended.wait(pause_s):
                    connection.sendall(again)
            except OSError:
                return

    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while not ended.is_set():
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            ended.set()
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


DRIPS = {
    "body": (HEAD + b"\r\n", b" "),
    "head": (HEAD, b"X-a: b\r\n"),
    "chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
}


@pytest.mark.parametrize("drip", DRIPS)
def test_answer_that_drips_ends_with_its_time(drip: str):
    begin, again = DRIPS[drip]
    with answering(begin, again, 0.02) as url, httpx2.Client(timeout=30, trust_env=False) as http:
        end_in_time(http, 0.3)
        with pytest.raises(httpx2.TimeoutException):
            bounded_reply(http, http.build_request("GET", url), 1 << 20)


@pytest.mark.anyio
@pytest.mark.parametrize("drip", DRIPS)
async def test_answer_that_drips_ends_with_its_time_in_processes_too(drip: str):
    begin, again = DRIPS[drip]
    with answering(begin, again, 0.02) as url:
        async with asyncio.timeout(120), BoundedAsyncClient(limit_s=0.3, timeout=30, trust_env=False) as http:
            with pytest.raises(httpx2.TimeoutException):
                await http.get(url)


def test_silence_ends_with_the_time_of_a_read():
    with answering(HEAD) as url, httpx2.Client(timeout=0.1, trust_env=False) as http:
        end_in_time(http, 60)
        with pytest.raises(httpx2.HTTPError):
            bounded_reply(http, http.build_request("GET", url), 1 << 20)


LONG: dict[str, tuple[bytes, bytes]] = {
    "bytes": (HEAD + b"\r\n", b"[]," * 20_000),
    "chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"%x\r\n" % 65536 + b" " * 65536 + b"\r\n"),
    "gzip": (HEAD + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(b" " * (1 << 26)), b""),
}


@pytest.mark.parametrize("answer", LONG)
def test_answer_without_end_is_refused(answer: str):
    with (
        answering(*LONG[answer]) as url,
        httpx2.Client(timeout=30, trust_env=False) as http,
        pytest.raises(AnswerTooLongError, match="more than 1048576 bytes"),
    ):
        bounded_reply(http, http.build_request("GET", url), 1 << 20)


@pytest.mark.parametrize("encoding", [b"gzip, gzip", b"br", b"zstd"])
def test_answer_in_another_encoding_is_refused(encoding: bytes):
    begin = HEAD + b"Content-Encoding: " + encoding + b"\r\nContent-Length: 1\r\n\r\nx"
    with (
        answering(begin) as url,
        httpx2.Client(timeout=30, trust_env=False) as http,
        pytest.raises(ValueError, match="wanted gzip or none"),
    ):
        bounded_reply(http, http.build_request("GET", url), 1 << 20)


@pytest.mark.anyio
@pytest.mark.parametrize("status", [b"200 OK", b"403 Forbidden", b"401 Unauthorized"])
async def test_processes_refuse_an_answer_without_end(tmp_path: Path, status: bytes):
    begin = LONG["bytes"][0].replace(b"200 OK", status)
    with answering(begin, LONG["bytes"][1]) as url:
        (tmp_path / "token").write_text("t")
        client = connect(write(tmp_path / "k", document(url, {"tokenFile": "token"})))
        with pytest.raises(ApiUncertainError, match="more than"):
            await client.get_pod("default", "p")
        with pytest.raises(ApiUncertainError, match="more than"):
            await anext(client.follow_pods())
        await client.close()


def ask(path: Path, url: str, action: Callable[[Documents], Any]) -> str:
    with Documents(write(path / "k", document(url))) as api, pytest.raises(ApiUncertainError) as refused:
        action(api)
    return refused.value.message


def test_commands_refuse_an_answer_without_end(tmp_path: Path):
    with answering(*LONG["bytes"]) as url:
        for action in (
            lambda api: api.get(PODS),
            lambda api: api.text(PODS),
            lambda api: api.post(PODS, {}),
            lambda api: api.patch(PODS, {}),
            lambda api: api.delete(PODS),
            lambda api: list(api.items(PODS)),
        ):
            assert "an answer of more than" in ask(tmp_path, url, action)


def test_list_whose_pages_do_not_end_is_refused(tmp_path: Path):
    page = json.dumps({"items": [{"metadata": {"name": "p"}}], "metadata": {"continue": "x"}}).encode()
    with (
        serving_objects({PODS: page}, tmp_path) as kubeconfig,
        Documents(kubeconfig) as api,
        pytest.raises(ApiUncertainError, match=r"list /api/v1/pods: .*without an end within 1000 bytes"),
    ):
        list(api.items(PODS, max_bytes=1000))


def test_list_that_comes_as_one_answer_ends_with_the_bytes_of_a_whole_list(tmp_path: Path):
    """A continuation that has expired must not be the way to any amount of memory."""
    pods = [{"metadata": {"name": f"p{number}"}} for number in range(100)]
    answers: dict[str, bytes | int] = {
        f"{PODS}?limit": json.dumps({"items": pods[:2], "metadata": {"continue": "x"}}).encode(),
        f"{PODS}?continue": 410,
        PODS: json.dumps({"items": pods}).encode(),
    }
    with serving_objects(answers, tmp_path) as kubeconfig, Documents(kubeconfig) as api:
        assert [item["metadata"]["name"] for item in api.items(PODS)] == [
            f"p{number}" for number in range(100)
        ]
        with pytest.raises(ApiUncertainError, match=r"list /api/v1/pods: .*without an end within 1000 bytes"):
            list(api.items(PODS, max_bytes=1000))


@pytest.mark.parametrize(
    ("whole", "message"),
    [
        (b'{"items": 7}', "items: expected objects"),
        (b'{"items": [{"metadata": {}}]}', "metadata.name: expected the name of an object"),
        (b'{"items": [{"metadata": {"name": "p"}}', "a list that is cut short"),
        (b"[]", "list /api/v1/pods: expected an object"),
        (b"[[1]]", "list /api/v1/pods: expected an object"),
        (403, "list /api/v1/pods: "),
    ],
)
def test_list_that_comes_as_one_answer_is_read_as_its_pages_are(
    tmp_path: Path, whole: bytes | int, message: str
):
    first = {"items": [{"metadata": {"name": "q"}}], "metadata": {"continue": "x"}}
    answers = {f"{PODS}?limit": json.dumps(first).encode(), f"{PODS}?continue": 410, PODS: whole}
    with (
        serving_objects(answers, tmp_path) as kubeconfig,
        Documents(kubeconfig) as api,
        pytest.raises((ApiUncertainError, ApiRefusedError), match=message),
    ):
        list(api.items(PODS))


def test_list_that_drips_ends_with_its_own_time():
    with answering(HEAD + b"\r\n", b" ", 0.01) as url, httpx2.Client(base_url=url, trust_env=False) as http:
        end_in_time(http, 0.05)
        pieces = stream_answer(http, http.build_request("GET", "/"), ListBudget(1 << 20, 0.3))
        with pytest.raises(httpx2.ReadTimeout):
            b"".join(pieces)


def test_request_made_while_a_list_comes_does_not_end_the_list():
    with (
        answering(HEAD + b"Content-Length: 9\r\n\r\n", b" ", 0.02) as url,
        httpx2.Client(base_url=url, trust_env=False) as http,
    ):
        end_in_time(http, 0.05)
        pieces = stream_answer(http, http.build_request("GET", "/"), ListBudget(1 << 20, 60.0))
        found = next(pieces)
        with pytest.raises(httpx2.ReadTimeout):
            bounded_reply(http, http.build_request("GET", "/"), 1000)
        assert found + b"".join(pieces) == b" " * 9


def test_object_that_is_longer_than_a_page_is_refused(tmp_path: Path):
    large = {"items": [{"metadata": {"name": "p", "labels": {"x": "y" * (17 << 20)}}}], "metadata": {}}
    with (
        serving_objects({PODS: json.dumps(large).encode()}, tmp_path) as kubeconfig,
        Documents(kubeconfig) as api,
        pytest.raises(ApiUncertainError, match="more than 16777216 bytes"),
    ):
        list(api.items(PODS))


class Paging(BaseHTTPRequestHandler):
    """Serves 100 pods of 400 kB, so many at a time as it is asked for."""

    asked: ClassVar[list[int]] = []

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        limit, first = int(query["limit"][0]), int(query.get("continue", ["0"])[0])
        self.asked.append(limit)
        numbers = range(first, min(first + limit, 100))
        items = [{"metadata": {"name": f"p{n}", "labels": {"x": "y" * 400_000}}} for n in numbers]
        following = str(numbers.stop) if numbers.stop < 100 else ""
        body = json.dumps({"items": items, "metadata": {"continue": following}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Silent."""


def test_page_that_is_too_long_is_requested_again_with_half_as_many_objects(tmp_path: Path):
    Paging.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Paging) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        with Documents(write(tmp_path / "k", document(f"http://127.0.0.1:{server.server_port}"))) as api:
            names = [item["metadata"]["name"] for item in api.items(PODS)]
        server.shutdown()
        thread.join()
    assert names == [f"p{n}" for n in range(100)]
    assert Paging.asked == [500, 250, 125, 62, 31, 31, 31, 31]


NAMED = {"name": "p"}


@pytest.mark.parametrize(
    ("item", "told"),
    [
        ({}, "metadata.name: expected the name of an object"),
        ({"metadata": [1]}, "metadata.name: expected the name of an object"),
        ({"metadata": {"name": 1}}, "metadata.name: expected the name of an object"),
        ({"metadata": {"name": "p", "uid": 1}}, "p: metadata.uid: expected a text"),
        ({"metadata": {"name": "p", "labels": ["a"]}}, "p: metadata.labels: expected texts"),
        ({"metadata": {"name": "p", "annotations": {"a": {}}}}, "p: metadata.annotations: expected texts"),
        ({"metadata": NAMED, "spec": "x"}, "p: spec: expected an object"),
        ({"metadata": NAMED, "status": []}, "p: status: expected an object"),
    ],
)
def test_object_of_another_form_is_refused_by_its_field(tmp_path: Path, item: Any, told: str):
    answers = {PODS: json.dumps({"items": [item]}).encode(), "/p": json.dumps(item).encode()}
    with serving_objects(answers, tmp_path) as kubeconfig, Documents(kubeconfig) as api:
        if not {"spec", "status"} & item.keys():  # those cost that object alone
            with pytest.raises(ApiUncertainError) as refused:
                list(api.items(PODS))
            assert refused.value.message == f"list {PODS}: {told}"
        with pytest.raises(ApiUncertainError, match="expected"):
            api.get_object("/p")


@pytest.mark.parametrize("date", ["nonsense", "Sat, 28 Nov 2026 09:00:00", "Sat, 28 Nov 99999 09:00:00 GMT"])
def test_server_without_a_date_counts_as_having_our_clock(tmp_path: Path, date: str):
    begin = HEAD + f"Date: {date}\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}".encode()
    with answering(begin) as url, Documents(write(tmp_path / "k", document(url))) as api:
        assert api.get("/version") == {}
        assert api.now().tzinfo is not None
