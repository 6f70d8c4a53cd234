"""The OpenAPI document, and the server held to it by requests that schemathesis makes up from it."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec
import pytest

from k8s_rdma.http_server.asgi import Access, Tokens
from k8s_rdma.server.app import openapi_document
from server.serving import PlayedAgent, report, run, serving, telling_agent, until_generation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import httpx2


EXAMPLES = 40


@asynccontextmanager
async def changing(agent: PlayedAgent) -> AsyncIterator[None]:
    """The state changes all the time, so that no watcher waits for long."""

    async def change() -> None:
        for number in itertools.count(2):
            await asyncio.sleep(0.02)
            await agent.send(report(f"e.{number}"))

    task = asyncio.create_task(change())
    try:
        yield
    finally:
        task.cancel()


async def schemathesis(client: httpx2.AsyncClient, directory: Path, *options: str) -> tuple[int, str]:
    """Status and output of a run of its own: it brings a pytest plugin that other tests can do without."""
    url = str(client.base_url.join("/openapi.json"))
    environment = {**os.environ, "NO_COLOR": "1", "NO_PROXY": "*"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "schemathesis.cli", "run", url, "--checks", "all", "--seed", "1"),
        *("--max-examples", str(EXAMPLES), "--request-timeout", "60", *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=directory,
        env=environment,
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


@pytest.mark.parametrize("token", ["", "secret"])
def test_server_behaves_as_documented(tmp_path: Path, token: str) -> None:
    tokens = Tokens([token])
    access = Access(tokens=(lambda: tokens) if token else None)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    options = [f"--header=Authorization: Bearer {token}"] if token else []

    async def scenario() -> None:
        async with (
            serving(tmp_path, access=access, headers=headers) as client,
            telling_agent(tmp_path, report("e.1")) as agent,
        ):
            await until_generation(client, "e.1")
            assert (await client.get("/openapi.json")).json() == as_sent(openapi_document(access))
            async with changing(agent):
                status, output = await schemathesis(client, tmp_path, *options)
            assert status == 0, output

    run(scenario(), deadline_s=220)


def test_server_behaves_as_documented_without_a_state(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as client:
            # 503 is the answer here.
            excluded = "--exclude-checks=not_a_server_error,positive_data_acceptance"
            status, output = await schemathesis(client, tmp_path, excluded)
            assert status == 0, output

    run(scenario(), deadline_s=220)


def as_sent(document: object) -> object:
    return json.loads(msgspec.json.encode(document))
