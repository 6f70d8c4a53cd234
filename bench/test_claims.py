"""ResourceClaims: kubelet's prepare through the real driver and agent, and the ADD of prepared interfaces.

Budget: prepare of 1 interface within 10 ms and of 60 (two claims) within 50 ms, beyond reading claims and
pods from the API server, which a client like the driver's does in the same turn. The floor is the work of
every driver: a gRPC call, answered by an empty server, and a synced write to SQLite for each claim. Both PFs
are split in halves, so that an ADD by claim has the same VFs and rates as one by annotation beside it.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from bench.cni_plugin import PLUGINS, PROGRAM, QUIET_S, Plugin, Rounds, needs_root, netconf
from bench.test_memory import BUDGET_MIB, resident_mib
from e2e.node import ANNOTATIONS, PFS, Node
from e2e.test_claims import prepared
from k8s_rdma.kube.client import connect as connect_api
from k8s_rdma.kube.grpc_calls import call, connect
from k8s_rdma.wire.claims import DRIVER, ClaimName
from k8s_rdma.wire.dra import PREPARE, UNPREPARE
from k8s_rdma_demo.cluster.cni_runtime import create_namespace_at
from resource_claims import api_with_node, claim, interface

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from conftest import Record

VFS = 120
PART = {"vfs": VFS // 2, "mbps": 500}
MBPS = 10
ROUNDS = {1: 40, 60: 20}
BUDGET_MS = {1: 10, 60: 50}
ADD_ROUNDS = {1: 20, 60: 5}
AGENT_MORE_MIB = 5
PER_CLAIM = 30
BARE = Path(__file__).with_name("bare_driver.py")
API = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


def interfaces(count: int) -> list[dict[str, Any]]:
    """Return the interfaces of one claim, on both PFs in turn."""
    return [interface(f"r{each}", PFS[each % len(PFS)], f"{MBPS}M") for each in range(count)]


@pytest.fixture
def node() -> Iterator[Node]:
    with Node(vfs=VFS, plugins=PLUGINS, shim=PROGRAM) as node:
        node.settings = {"cdiDir": str(node.directory / "cdi"), "hardware": {"pfs": [{"claims": PART}]}}
        node.start_agent()
        yield node


class Floor:
    """A gRPC call to an empty server, and synced writes of so many claims."""

    def __init__(self, directory: Path) -> None:
        self._db = sqlite3.connect(directory / "bare.db", isolation_level=None)
        for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", "CREATE TABLE t (d)"):
            self._db.execute(statement)

    async def do(self, channel: Any, claims: tuple[ClaimName, ...], document: str) -> None:
        """Do both, one after the other."""
        await call(channel, PREPARE, claims, timeout_s=10)
        for _ in claims:
            self._db.execute("INSERT INTO t VALUES (?)", (document,))

    def close(self) -> None:
        """Close the database."""
        self._db.close()


@dataclass
class Driver:
    """The device plugin's process, and the API server that its claims are read from."""

    process: subprocess.Popen[bytes]
    socket: Path
    kubeconfig: Path
    http: httpx2.AsyncClient

    async def create(self, path: str, document: dict[str, Any]) -> dict[str, Any]:
        """Create an object; return it as it was stored."""
        made = await self.http.post(path, json=document)
        assert made.status_code == 201, made.text
        stored: dict[str, Any] = made.json()
        return stored

    async def create_claims(self, count: int) -> tuple[ClaimName, ...]:
        """Create claims of a pod with so many interfaces together, allocated and reserved."""
        sizes = [min(PER_CLAIM, count - start) for start in range(0, count, PER_CLAIM)]
        names = [f"c{count}-{number}" for number in range(len(sizes))]
        spec = {
            "nodeName": "w1",
            "containers": [{"name": "c", "image": "none"}],
            "resourceClaims": [{"name": name, "resourceClaimName": name} for name in names],
        }
        pod = await self.create(
            "/api/v1/namespaces/default/pods", {"metadata": {"name": f"p{count}"}, "spec": spec}
        )
        reserved = [{"resource": "pods", "name": f"p{count}", "uid": pod["metadata"]["uid"]}]
        found = []
        for name, size in zip(names, sizes, strict=True):
            document = claim(*interfaces(size), name=name)
            status = document.pop("status") | {"reservedFor": reserved}
            del document["metadata"]["uid"]
            stored = await self.create(API, document)
            written = await self.http.put(f"{API}/{name}/status", json=stored | {"status": status})
            assert written.status_code == 200, written.text
            found.append(ClaimName(namespace="default", name=name, uid=stored["metadata"]["uid"]))
        return tuple(found)


@asynccontextmanager
async def driver_of(node: Node) -> AsyncIterator[Driver]:
    directory = node.directory
    async with api_with_node(directory) as (http, kubeconfig):
        config = {
            "resources": [],
            "runDir": str(node.run_dir),
            "port": None,
            "node": "w1",
            "kubeconfig": str(kubeconfig),
            "claims": {
                "registryDir": str(directory / "registry"),
                "pluginsDir": str(directory / "plugins"),
                "uid": "bench",
            },
        }
        process = node.start("device-plugin", node.config("device-plugin", config))
        socket = directory / "plugins" / DRIVER / "dra-bench.sock"
        async with asyncio.timeout(node.deadline_s):
            while not socket.exists():  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.05)
        yield Driver(process, socket, kubeconfig, http)


async def timed(rounds: Rounds, what: str, work: Any) -> Any:
    """Await the work, and note how long it takes."""
    started = time.perf_counter()
    result = await work
    rounds.add(what, (time.perf_counter() - started) * 1e3)
    return result


@contextmanager
def empty_server(socket: Path) -> Iterator[None]:
    """Run a server that answers prepares with empty messages."""
    with subprocess.Popen([sys.executable, str(BARE), str(socket)], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield
        finally:
            process.kill()


async def measured(node: Node, count: int, empty_socket: Path) -> tuple[Rounds, dict[str, str]]:
    """Return times of prepare and of its floor, and the kernel's statistics of the driver's process."""
    rounds = Rounds()
    async with AsyncExitStack() as stack:
        driver = await stack.enter_async_context(driver_of(node))
        claims = await driver.create_claims(count)
        floor = stack.enter_context(closing(Floor(node.directory)))
        ours = await stack.enter_async_context(connect(driver.socket))
        empty = await stack.enter_async_context(connect(empty_socket))
        api = connect_api(str(driver.kubeconfig))
        stack.push_async_callback(api.close)
        document = json.dumps(claim(*interfaces(min(count, PER_CLAIM))))

        async def read(name: ClaimName) -> None:
            await api.get_claim_document(name.namespace, name.name)
            await api.get_pod_document(name.namespace, f"p{count}")

        for number in range(ROUNDS[count] + 1):
            if number == 1:
                rounds = Rounds()  # the first one warms up
            await timed(rounds, "floor", floor.do(empty, claims, document))
            await timed(rounds, "reads", asyncio.gather(*map(read, claims)))
            answers = await timed(rounds, "prepare", call(ours, PREPARE, claims, timeout_s=45))
            assert sum(len(answer.devices) for answer in answers.values()) == count, answers
            await call(ours, UNPREPARE, claims, timeout_s=45)
            await asyncio.sleep(QUIET_S)
        return rounds, memory(driver.process.pid)


def memory(process: int) -> dict[str, float]:
    """Return memory in MiB by proc_pid_smaps(5): Pss divides pages of files among processes that map them."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]
    amounts = (line.split() for line in lines)
    return {name.rstrip(":"): int(kib) / 1024 for name, kib, _ in amounts}


@needs_root
@pytest.mark.parametrize("count", ROUNDS)
def test_prepare_beyond_the_api_reads(node: Node, record: Record, count: int) -> None:
    before_mib = resident_mib(node.agent.pid)
    empty_socket = node.directory / "empty.sock"
    with empty_server(empty_socket):
        rounds, driver = asyncio.run(measured(node, count, empty_socket))
    what = "prepare of 1 interface" if count == 1 else f"prepare of {count} interfaces in 2 claims"
    beyond_ms = rounds.beyond("prepare", "reads")
    record(
        f"{what} beyond the API reads",
        budget=BUDGET_MS[count],
        measured=beyond_ms,
        unit="ms",
        note=f"prepare {rounds['prepare']:.1f} ms, reads {rounds['reads']:.1f} ms",
    )
    record(
        f"{what} beyond the API reads, beside a gRPC call and synced writes",
        budget=None,
        measured=beyond_ms / rounds["floor"],
        unit="times",
        note=f"which take {rounds['floor']:.1f} ms",
    )
    if count > 1:
        record(
            f"agent of 2 x {VFS} VFs, resident memory more after {ROUNDS[count]} prepares of {count}",
            budget=AGENT_MORE_MIB,
            measured=resident_mib(node.agent.pid) - before_mib,
            unit="MiB",
        )
        record(
            f"DRA driver, proportional memory after {ROUNDS[count]} prepares of {count}",
            budget=BUDGET_MIB,
            measured=driver["Pss"],
            unit="MiB",
            note=f"{driver['Anonymous']:.0f} MiB its own; resident {driver['Rss']:.0f} MiB",
        )


@needs_root
@pytest.mark.parametrize("count", ADD_ROUNDS)
def test_add_by_claim_beside_one_by_annotation(node: Node, record: Record, count: int) -> None:
    netns = node.directory / "netns" / "pod"
    create_namespace_at(netns)
    wish = {"rdma_interfaces_required": json.dumps([{"min_tx_rate": MBPS}] * count)}
    annotated, plain = (
        netconf(node, count, None) | {"runtimeConfig": {ANNOTATIONS: annotations}}
        for annotations in (wish, {"other": "x"})
    )
    pods = {
        "annotation": Plugin(str(PROGRAM), node, netns, annotated, "a"),
        "claim": Plugin(str(PROGRAM), node, netns, plain, "c"),
    }
    parts = [min(PER_CLAIM, count - start) for start in range(0, count, PER_CLAIM)]
    for number, size in enumerate(parts):
        answer = prepared(node, "c", *interfaces(size), uid=f"claim-{number}")
        assert not answer.error, answer.error
    rounds = Rounds()
    for number in range(ADD_ROUNDS[count] + 1):
        if number == 1:
            rounds = Rounds()  # the first one warms up
        for way, plugin in pods.items():
            rounds.time(f"ADD by {way}", lambda plugin=plugin: plugin.run("ADD"))
            rounds.time(f"DEL by {way}", lambda plugin=plugin: plugin.run("DEL"))
    record(
        f"CNI ADD of {'1 interface' if count == 1 else f'{count} interfaces'} by claim, beside by annotation",
        budget=None,
        measured=rounds["ADD by claim"] / rounds["ADD by annotation"],
        unit="times",
        note=f"{rounds['ADD by claim']:.1f} beside {rounds['ADD by annotation']:.1f} ms",
    )
