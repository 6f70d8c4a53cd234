"""Pods that a real kube-scheduler binds a second: by itself, with an empty extender and with ours, in turn.

kube-apiserver, etcd and kube-scheduler are real, the nodes and their agents' RdmaNodes are only objects. All
pods are there when the scheduler starts; counted is from the first one bound to the last. By default
kube-scheduler sends 50 requests a second, of which a bind without an extender is one; here it has no limit.
The empty extender (`empty_extender.py`) makes no decisions: its rate is the limit of any extender.
Runs if `K8S_RDMA_KUBE_BIN` names a folder with the programs (`tests/cluster`).
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import yaml

from bench.test_cni_add import processor_ms
from cluster.control_plane import free_port, write_kubeconfig
from cluster.extenders import registration
from cluster.nodes import node_object
from cluster.processes import Program, running
from cluster.publishers import CRD
from cluster.real import obstacle, real
from large_cluster import KEY_FILE, RDMA_NODES, lease, node_name, pod_object, rdma_node
from test_publishing import Programs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from cluster.real import Real
    from conftest import Record

PODS, ROUNDS, PARALLEL = 1_000, 3, 16
LEASES = "/apis/coordination.k8s.io/v1/namespaces/k8s-rdma/leases"
UNLIMITED = {"clientConnection": {"qps": 10_000, "burst": 10_000}}
MB_S = 1_000
EMPTY_EXTENDER = Path(__file__).with_name("empty_extender.py")
AS_METADATA = {"Accept": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"}
WITHOUT, EMPTY, WITH = "kube-scheduler alone", "with an empty extender", "with the extender"


@dataclass(frozen=True)
class Rate:
    """Pods bound a second, and the processor time of a bind of each program, ms."""

    pods_a_second: float
    processor_ms: dict[str, float]

    def __str__(self) -> str:
        parts = (f"{program} {ms:.1f}" for program, ms in self.processor_ms.items())
        return f"processor ms a pod: {', '.join(parts)}"


async def for_all(work: Callable[[int], Awaitable[None]], count: int) -> None:
    """Do the work for each number, several at once."""
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await work(number)

    async with asyncio.TaskGroup() as workers:
        for _ in range(PARALLEL):
            workers.create_task(worker())


async def post(http: httpx2.AsyncClient, path: str, document: dict[str, Any]) -> dict[str, Any]:
    """Create an object; return it as it was stored."""
    answer = await http.post(path, json=document)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def make_nodes(plane: Real, http: httpx2.AsyncClient, nodes: int) -> None:
    """Create the nodes, the objects of their agents, and their Leases."""
    await plane.add_crd(yaml.safe_load(CRD.read_text()))
    await post(http, "/api/v1/namespaces", {"metadata": {"name": "k8s-rdma"}})

    async def make(index: int) -> None:
        await post(
            http, "/api/v1/nodes", node_object(node_name(index), f"10.0.{index >> 8}.{index & 255}", {})
        )
        published = rdma_node(index, 0, "alike")
        head = {"apiVersion": "k8s-rdma.io/v1alpha1", "kind": "RdmaNode"}
        made = await post(http, RDMA_NODES, {**head, "metadata": {"name": node_name(index)}})
        status = {**head, "metadata": made["metadata"], "status": published["status"]}
        answer = await http.put(f"{RDMA_NODES}/{node_name(index)}/status", json=status)
        assert answer.status_code == 200, answer.text
        renewal = lease(index, 0)
        await post(http, LEASES, {**renewal, "metadata": {"name": node_name(index)}})

    await for_all(make, nodes)


async def make_pods(http: httpx2.AsyncClient, prefix: str, *, with_interface: bool) -> None:
    """Create pods that wait for a scheduler."""

    async def make(index: int) -> None:
        pod = pod_object(f"{prefix}-{index}", "", [MB_S])
        meta = {"name": pod["metadata"]["name"], "labels": pod["metadata"]["labels"]}
        if with_interface:
            meta["annotations"] = pod["metadata"]["annotations"]
        spec = {**pod["spec"], "volumes": [], "automountServiceAccountToken": False}
        await post(http, "/api/v1/namespaces/default/pods", {"metadata": meta, "spec": spec})

    await for_all(make, PODS)


@asynccontextmanager
async def extender(directory: Path, plane: Real) -> AsyncIterator[tuple[Program, str]]:
    """Run one with all defaults; yield its process and its URL."""
    port = free_port()
    key, config = directory / "key", directory / "extender.yaml"
    key.write_bytes(KEY_FILE)
    kubeconfig = write_kubeconfig(directory / "extender.kubeconfig", plane, plane.admin_token)
    settings = {"kubeconfig": str(kubeconfig), "placementKeyFile": str(key), "port": port, "staleS": 3600}
    config.write_text(yaml.safe_dump(settings))
    command = (Path(sys.executable).with_name("k8s-rdma"), "extender", "--config", config)
    async with ready(directory / "extender.log", port, *command) as running_one:
        yield running_one


@asynccontextmanager
async def empty_extender(directory: Path, plane: Real) -> AsyncIterator[tuple[Program, str]]:
    """Run one without decisions; yield its process and its URL."""
    port = free_port()
    kubeconfig = write_kubeconfig(directory / "empty.kubeconfig", plane, plane.admin_token)
    command = (sys.executable, EMPTY_EXTENDER, kubeconfig, str(port))
    async with ready(directory / "empty.log", port, *command) as running_one:
        yield running_one


@asynccontextmanager
async def ready(log: Path, port: int, *command: str | Path) -> AsyncIterator[tuple[Program, str]]:
    """Run a program until the block ends; yield its process and URL when `/readyz` is well."""
    async with running(log, *command) as program, httpx2.AsyncClient() as http:

        async def is_ready() -> bool:
            try:
                return (await http.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200
            except httpx2.HTTPError:
                return False

        await program.until(is_ready)
        yield program, f"http://127.0.0.1:{port}"


async def bound(http: httpx2.AsyncClient, version: str) -> AsyncIterator[int]:
    """Yield the number of pods bound since a version, after each few."""
    query = {"watch": "true", "resourceVersion": version, "fieldSelector": "spec.nodeName!="}
    async with http.stream("GET", "/api/v1/pods", params=query, headers=AS_METADATA, timeout=120) as answer:
        count, rest = 0, b""
        async for chunk in answer.aiter_bytes():
            *lines, rest = (rest + chunk).split(b"\n")
            count += sum(line.startswith(b'{"type":"ADDED"') for line in lines)
            yield count


async def measure(
    plane: Real, http: httpx2.AsyncClient, configuration: dict[str, Any], programs: dict[str, int]
) -> Rate:
    """Run a scheduler until all pods are bound. programs: their process ids."""
    version = (await http.get("/api/v1/pods", params={"limit": 1})).json()["metadata"]["resourceVersion"]
    async with plane.scheduler({**configuration, **UNLIMITED}) as scheduler:
        pids = {"kube-scheduler": scheduler.process.pid, **programs}
        began, first, spent = 0.0, 0, {}
        async for count in bound(http, version):
            if count and not first:
                began, first = time.monotonic(), count
                spent = {name: processor_ms(pid) for name, pid in pids.items()}
            if count >= PODS:
                break
        took_s, number = time.monotonic() - began, PODS - first
        return Rate(
            number / took_s,
            {name: (processor_ms(pid) - spent[name]) / number for name, pid in pids.items()},
        )


async def measured(directory: Path, nodes: int) -> dict[str, Rate]:
    """Return the median of the rounds, each way: if a watch begins late, only the last binds are timed."""
    rates: dict[str, list[Rate]] = {WITHOUT: [], EMPTY: [], WITH: []}
    async with AsyncExitStack() as stack:
        plane = await stack.enter_async_context(real(directory))
        http = await stack.enter_async_context(plane.client())
        await make_nodes(plane, http, nodes)
        own, url = await stack.enter_async_context(extender(directory, plane))
        empty, empty_url = await stack.enter_async_context(empty_extender(directory, plane))
        control_plane = Programs(directory)
        programs = {"kube-apiserver": control_plane.api_server, "etcd": control_plane.etcd}
        alone = {key: value for key, value in registration().items() if key != "extenders"}
        ways = {
            WITHOUT: (alone, programs),
            EMPTY: (registration(empty_url), {**programs, "extender": empty.process.pid}),
            WITH: (registration(url), {**programs, "extender": own.process.pid}),
        }
        for number in range(ROUNDS):
            for at, (way, (configuration, counted)) in enumerate(ways.items()):
                await make_pods(http, f"pods-{number}-{at}", with_interface=way == WITH)
                rates[way].append(await measure(plane, http, configuration, counted))
    return {
        way: sorted(found, key=lambda rate: rate.pods_a_second)[ROUNDS // 2] for way, found in rates.items()
    }


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("nodes", [500, 5_000])
def test_scheduling_rate(record: Record, tmp_path: Path, nodes: int) -> None:
    if why := obstacle():
        pytest.skip(why)
    rates = asyncio.run(measured(tmp_path, nodes))
    what = f"pods bound by a real kube-scheduler, {nodes:,} nodes"
    for way, rate in rates.items():
        record(f"{what}, {way}", budget=None, measured=rate.pods_a_second, unit="1/s", note=str(rate))
    for other, name in ((WITHOUT, "without"), (EMPTY, "an empty one")):
        ratio = rates[WITH].pods_a_second / rates[other].pods_a_second
        beside = f"{what}, with the extender beside {name}"
        record(beside, budget=None, measured=ratio, unit="times", at_least=True)
