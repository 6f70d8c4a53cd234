"""Who is served: bearer tokens on every path that is not open to all, and TLS from the configuration."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
from typing import TYPE_CHECKING

import httpx2
import pytest

from http_server.certificates import Issuer
from k8s_rdma.http_server.asgi import Access, Tokens
from server.serving import report, run, serving, telling_agent, until_generation
from server.test_main import started

if TYPE_CHECKING:
    from pathlib import Path

CLOSED = [
    "/",
    "/getpfs",
    "/getpfs?v=1",
    "/v1/node",
    "/v1/node?watch=e.1",
    "/metrics",
    "/openapi.json",
    "/none",
]
BEARING = {"authorization": "Bearer secret"}


def test_token_is_demanded_on_every_path_that_is_not_a_probes(tmp_path: Path) -> None:
    tokens = Tokens(["secret"])

    async def scenario() -> None:
        access = Access(tokens=lambda: tokens)
        async with serving(tmp_path, access=access) as client, telling_agent(tmp_path, report("e.1")):
            while (await client.get("/readyz")).status_code != 200:
                pass
            assert (await client.get("/healthz")).status_code == 200
            for path in CLOSED:
                for headers in ({}, {"authorization": "Bearer other"}):
                    for method in ("GET", "HEAD", "POST"):
                        refused = await client.request(method, path, headers=headers)
                        assert refused.status_code == 401, path
                        assert refused.headers["www-authenticate"] == "Bearer"
                        if method != "HEAD":
                            assert refused.json()["error"]["reason"] == "unauthorized"
            client.headers.update(BEARING)
            await until_generation(client, "e.1")
            statuses = [(await client.get(path)).status_code for path in CLOSED if "watch" not in path]
            assert statuses == [200] * (len(CLOSED) - 2) + [404]

    run(scenario())


def test_open_paths_alone_are_served_without_a_token(tmp_path: Path) -> None:
    tokens = Tokens(["secret"])
    access = Access(tokens=lambda: tokens, open_paths=frozenset({"/getpfs"}))

    async def scenario() -> None:
        async with serving(tmp_path, access=access) as client, telling_agent(tmp_path, report("e.1")):
            while (await client.get("/readyz")).status_code != 200:
                pass
            for path in ("/getpfs", "/getpfs?v=1"):
                assert (await client.get(path)).json()[0]["name"] == "enp3s0f0"
            for path in CLOSED:
                if not path.startswith("/getpfs"):
                    assert (await client.get(path)).status_code == 401, path
            assert (await client.get("/v1/node", headers=BEARING)).status_code == 200

    run(scenario())


def test_only_open_paths_are_served_without_tokens(tmp_path: Path) -> None:
    async def scenario() -> None:
        access = Access(open_paths=frozenset({"/getpfs"}))
        async with serving(tmp_path, access=access) as client, telling_agent(tmp_path, report("e.1")):
            while (await client.get("/readyz")).status_code != 200:
                pass
            assert (await client.get("/getpfs")).status_code == 200
            for path in ("/", "/v1/node", "/v1/node?watch=e.1", "/metrics", "/openapi.json", "/none"):
                refused = await client.get(path, headers=BEARING)
                assert (refused.status_code, refused.json()["error"]["reason"]) == (403, "forbidden"), path
                assert "tokenFile" in refused.json()["error"]["message"]

    run(scenario())


def test_tokens_are_those_of_now(tmp_path: Path) -> None:
    current = [Tokens(["old"])]

    async def scenario() -> None:
        async with serving(tmp_path, access=Access(tokens=lambda: current[0])) as client:
            old, new = ({"authorization": f"Bearer {token}"} for token in ("old", "new"))
            assert (await client.get("/", headers=old)).status_code == 200
            current[0] = Tokens(["new"])
            assert (await client.get("/", headers=old)).status_code == 401
            assert (await client.get("/", headers=new)).status_code == 200

    run(scenario())


def test_process_speaks_tls_and_demands_a_token_when_configured(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path).make()
    certificate = issuer.issue("server")
    tokens = tmp_path / "tokens"
    tokens.write_text("secret\n")
    document = {
        "listen": "127.0.0.1",
        "runDir": str(tmp_path),
        "node": "w1",
        "tls": {"certFile": str(certificate.cert), "keyFile": str(certificate.key)},
        "tokenFile": str(tokens),
        "openPaths": ["/openapi.json"],
    }
    (tmp_path / "server.yaml").write_text(json.dumps(document))
    program = "from k8s_rdma.cli.main import main\nimport sys\n"
    program += "sys.argv = ['k8s-rdma', 'server', '--config', 'server.yaml']\nmain()\n"
    trusting = ssl.create_default_context(cafile=str(issuer.own.cert))
    with (
        started(tmp_path, program) as (_, port),
        httpx2.Client(base_url=f"https://127.0.0.1:{port}", verify=trusting, trust_env=False) as client,
    ):
        assert client.get("/v1/node").status_code == 401
        assert client.get("/openapi.json").status_code == 200
        while client.get("/readyz").status_code == 503:
            pass  # until it has looked for the first time
        shown = client.get("/v1/node", headers=BEARING).json()
        assert (shown["node"], shown["ledger"]) == ("w1", "unavailable")


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ("tls: {certFile: /none.crt, keyFile: /none.key}", "tls.certFile /none.crt: No such file"),
        ("tokenFile: /none", "tokenFile /none: No such file"),
        ("maxConnections: 1000", "maxConnections 1000: the process may open 1024 files"),
    ],
)
def test_process_does_not_start_with_an_impossible_configuration(
    tmp_path: Path, document: str, named: str
) -> None:
    path = tmp_path / "server.yaml"
    path.write_text(document)
    command = ["prlimit", "--nofile=1024", sys.executable, "-m", "k8s_rdma", "server", "--config", str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"k8s-rdma: {named}")
    assert ended.stderr.count("\n") == 1
