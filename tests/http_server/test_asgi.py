"""Access by bearer tokens, and answers as they go out, field by field."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.config.devices import DevicePluginConfig, MountResource
from k8s_rdma.deviceplugin.device_monitor import DeviceMonitor
from k8s_rdma.deviceplugin.main import PluginApp
from k8s_rdma.errors import MalformedError
from k8s_rdma.http_server.asgi import Access, Tokens, tokens_of
from k8s_rdma.server.agent_link import Deliveries, Shown, TrafficReader, outage_answers
from k8s_rdma.server.app import NodeApp

if TYPE_CHECKING:
    from pathlib import Path

    from k8s_rdma.http_server.asgi import Application, Message, Scope


def bearing(*values: bytes) -> list[tuple[bytes, bytes]]:
    return [(b"host", b"w1"), *((b"authorization", value) for value in values)]


@pytest.mark.parametrize("value", [b"Bearer one", b"bearer one", b"BEARER two==", b"Bearer  one "])
def test_token_is_accepted_when_it_is_one_of_ours(value: bytes) -> None:
    assert Tokens(["one", "two=="]).accept(bearing(value))


@pytest.mark.parametrize(
    ("fields", "accepted"),
    [
        ([(b"k8s-rdma-token", b"one")], True),
        ([(b"k8s-rdma-token", b" two== ")], True),
        ([(b"k8s-rdma-token", b"")], False),
        ([(b"k8s-rdma-token", b"Bearer one")], False),
        ([(b"k8s-rdma-token", b"one"), (b"k8s-rdma-token", b"one")], False),
        ([(b"k8s-rdma-token", b"one"), (b"authorization", b"Bearer one")], False),
    ],
)
def test_token_through_a_proxy_is_alone_in_a_field(
    fields: list[tuple[bytes, bytes]], *, accepted: bool
) -> None:
    assert Tokens(["one", "two=="]).accept(fields) is accepted


@pytest.mark.parametrize(
    "values",
    [
        (),
        *(
            (value,)
            for value in (b"", b"one", b"Bearer", b"Bearer ", b"Bearer on", b"Bearer one1", b"Basic one")
        ),
        *((value,) for value in (b"Bearer one, Bearer one", b"Bearer ONE", b"Bearer \xff")),
        (b"Bearer one", b"Bearer one"),
    ],
)
def test_unknown_token_is_not_accepted(values: tuple[bytes, ...]) -> None:
    assert not Tokens(["one", "two=="]).accept(bearing(*values))


def test_file_holds_a_token_a_line(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("# of the extender\none\n\n two \n")
    tokens = tokens_of(str(path), field="tokenFile")()
    assert [tokens.accept(bearing(b"Bearer " + each)) for each in (b"one", b"two", b"#", b"")] == [
        True,
        True,
        False,
        False,
    ]


def test_file_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    now = [0.0]
    path = tmp_path / "tokens"
    path.write_text("old\n")
    tokens = tokens_of(str(path), field="tokenFile", clock=lambda: now[0])

    def accepted(token: bytes) -> bool:
        now[0] += 1
        return tokens().accept(bearing(b"Bearer " + token))

    assert accepted(b"old")
    path.write_text("newer\n")
    assert [accepted(b"old"), accepted(b"newer")] == [False, True]
    path.write_text("no token\n")
    assert accepted(b"newer")
    path.unlink()
    assert accepted(b"newer")
    path.write_text("newest\n")
    assert [accepted(b"newer"), accepted(b"newest")] == [False, True]


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (None, "No such file"),
        (b"", "holds no token"),
        (b"# nothing\n\n", "holds no token"),
        (b"one\nt wo\n", "line 2 is no bearer token"),
        (b"tok\xc3\xa9n\n", "no ASCII"),
        (b"=\n", "line 1"),
    ],
)
def test_malformed_file_is_refused_by_its_field(tmp_path: Path, content: bytes | None, named: str) -> None:
    path = tmp_path / "tokens"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(MalformedError) as refused:
        tokens_of(str(path), field="tokenFile")
    assert refused.value.message.startswith(f"tokenFile {path}: ")
    assert named in refused.value.message


BEARER = "secret"
OPEN, CLOSED = Access(), Access(tokens=lambda: Tokens([BEARER]))
UNREADABLE = Access(open_paths=frozenset({"/"}))


def node(access: Access) -> Application:
    shown = Shown(outage_answers("no socket", datetime(2026, 1, 1, tzinfo=UTC)))
    return NodeApp(shown, TrafficReader(timeout_s=0), Deliveries(), access=access)


def plugin(access: Access) -> Application:
    config = DevicePluginConfig(resources=(MountResource(),))
    return PluginApp([], DeviceMonitor(config), access)


JSON, TEXT = "application/json", "text/plain; charset=utf-8"
NOT_FOUND = '{"error":{"reason":"not_found","message":"there is no such path; / lists them"}}'
NOT_ALLOWED = (
    '{"error":{"reason":"method_not_allowed","message":"this server is read-only: it answers GET and HEAD"}}'
)
UNAUTHORIZED = (
    '{"error":{"reason":"unauthorized",'
    '"message":"this path requires `Authorization: Bearer` with a token of this server"}}'
)
FORBIDDEN = (
    '{"error":{"reason":"forbidden",'
    '"message":"this path is not among openPaths, and there is no tokenFile whose tokens would open it"}}'
)
ALLOW, CHALLENGE = ("allow", "GET, HEAD"), ("www-authenticate", "Bearer")


@pytest.mark.parametrize("build", [node, plugin])
@pytest.mark.parametrize(
    ("access", "token", "method", "path", "status", "first", "body"),
    [
        (OPEN, "", "GET", "/none", 404, (), NOT_FOUND),
        (OPEN, "", "POST", "/none", 404, (), NOT_FOUND),
        (OPEN, "", "GET", "", 404, (), NOT_FOUND),
        (OPEN, "", "GET", "//", 404, (), NOT_FOUND),
        (OPEN, "", "GET", "/healthz/", 404, (), NOT_FOUND),
        (OPEN, "", "GET", "/healthz\n", 404, (), NOT_FOUND),
        (OPEN, "", "GET", "/Healthz", 404, (), NOT_FOUND),
        (OPEN, "", "HEAD", "/healthz ", 404, (), NOT_FOUND),
        (OPEN, "", "POST", "/healthz", 405, (ALLOW,), NOT_ALLOWED),
        (OPEN, "", "OPTIONS", "/", 405, (ALLOW,), NOT_ALLOWED),
        (OPEN, "", "get", "/", 405, (ALLOW,), NOT_ALLOWED),
        (OPEN, "", "DELETE", "/metrics", 405, (ALLOW,), NOT_ALLOWED),
        (CLOSED, "", "GET", "/", 401, (CHALLENGE,), UNAUTHORIZED),
        (CLOSED, "", "GET", "/none", 401, (CHALLENGE,), UNAUTHORIZED),
        (CLOSED, "", "POST", "/metrics", 401, (CHALLENGE,), UNAUTHORIZED),
        (CLOSED, "wrong", "GET", "/", 401, (CHALLENGE,), UNAUTHORIZED),
        (CLOSED, BEARER, "GET", "/none", 404, (), NOT_FOUND),
        (CLOSED, BEARER, "POST", "/metrics", 405, (ALLOW,), NOT_ALLOWED),
        (CLOSED, "", "POST", "/healthz", 405, (ALLOW,), NOT_ALLOWED),
        (UNREADABLE, "", "GET", "/none", 403, (), FORBIDDEN),
        (UNREADABLE, "", "PUT", "/metrics", 403, (), FORBIDDEN),
        (UNREADABLE, "", "PUT", "/", 405, (ALLOW,), NOT_ALLOWED),
    ],
)
def test_refusals_are_the_same_to_the_byte(*, build, access, token, method, path, status, first, body):
    expected = status, [*first, ("content-type", JSON), ("content-length", str(len(body)))], body
    assert answer(build(access), method, path, token) == expected


AGENT = "does not answer since 2026-01-01T00:00:00+00:00: no socket"
OUTAGE = (
    '{"error":{"reason":"agent_unreachable","message":"the agent has not answered since '
    '2026-01-01T00:00:00+00:00: no socket","since":"2026-01-01T00:00:00+00:00"}}'
)
RETRY = ("retry-after", "1")
METRICS = "text/plain; version=0.0.4; charset=utf-8"
REACHABLE = (
    "# HELP k8s_rdma_agent_reachable Whether the node's agent answers.\n"
    "# TYPE k8s_rdma_agent_reachable gauge\nk8s_rdma_agent_reachable 0.0\n"
)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    ("build", "path", "status", "first", "kind", "body"),
    [
        (node, "/healthz", 200, (), TEXT, f"ok\nagent: {AGENT}\n"),
        (node, "/readyz", 503, (RETRY,), JSON, OUTAGE),
        (node, "/getpfs", 503, (RETRY,), JSON, OUTAGE),
        (node, "/v1/node", 503, (RETRY,), JSON, OUTAGE),
        (node, "/metrics", 200, (), METRICS, REACHABLE),
        (plugin, "/healthz", 200, (), TEXT, "ok\n"),
    ],
)
def test_documents_are_the_same_to_the_byte(*, build, method, path, status, first, kind, body):
    expected = status, [*first, ("content-type", kind), ("content-length", str(len(body)))], body
    assert answer(build(OPEN), method, path) == expected


def answer(
    app: Application, method: str, path: str, token: str = ""
) -> tuple[int, list[tuple[str, str]], str]:
    """Status, header fields in their order, and body of an answer, as the application hands them over."""
    headers = [(b"authorization", b"Bearer " + token.encode())] if token else []
    scope: Scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": headers,
        "client": ("127.0.0.1", 1),
    }
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    start, body = sent
    return start["status"], [(n.decode(), v.decode()) for n, v in start["headers"]], body["body"].decode()
