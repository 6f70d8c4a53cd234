"""The kubelet stand-in with a real container runtime, Debian's containerd, which it asks by CRI."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from e2e.containerd import IMAGE, Containerd
from e2e.cri import CriError
from k8s_rdma_demo.cluster.api import serving_api
from k8s_rdma_demo.cluster.kubelet import Kubelet, running_kubelet
from k8s_rdma_demo.cluster.node_devices import DevicesConfig, KubeletConfig
from k8s_rdma_demo.kubelet.device_manager import DeviceManagerConfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from e2e.node import Node

DEADLINE_S = 120
PODS = "/api/v1/namespaces/default/pods"
WISHES = [{"min_tx_rate": 100, "max_tx_rate": 200}, {}]


@pytest.fixture
def containerd(make_node: Callable[[int], Node]) -> Iterator[tuple[Node, Containerd]]:
    """It runs, beside the agent of a node."""
    for program in ("containerd", "runc", "ctr", "containerd-shim-runc-v2"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program} (Debian packages containerd, runc)")
    node = make_node(4)
    with Containerd(node.directory / "containerd", plugins=node.cni_path, deadline_s=60) as containerd:
        containerd.use(node.runtime(chained=True).conflist)
        node.enter = containerd.entering
        node.start_agent()
        yield node, containerd


class Cluster:
    """An API server, and the node's kubelet."""

    def __init__(self, http: httpx2.AsyncClient, kubelet: Kubelet) -> None:
        self.http, self.kubelet = http, kubelet

    async def create(self) -> str:
        annotations = {"rdma_interfaces_required": json.dumps(WISHES)}
        spec = {"nodeName": "w1", "containers": [{"name": "c", "image": IMAGE}]}
        pod = {"metadata": {"name": "p", "annotations": annotations}, "spec": spec}
        answer = await self.http.post(PODS, json=pod)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["metadata"]["uid"])

    async def running(self, *, other_than: str = "") -> dict[str, Any]:
        """The pod, in a sandbox of another id than that."""
        while True:
            pod = (await self.http.get(f"{PODS}/p")).json()
            sandbox = self.kubelet.sandbox_of("default", "p")
            if pod["status"].get("phase") == "Running" and sandbox and sandbox.container_id != other_than:
                return dict(pod)
            await asyncio.sleep(0.05)

    async def end(self) -> None:
        await self.http.delete(f"{PODS}/p")
        while (await self.http.get(f"{PODS}/p")).status_code != 404:  # noqa: ASYNC110  another process
            await asyncio.sleep(0.05)


@asynccontextmanager
async def cluster_of(node: Node, containerd: Containerd) -> AsyncIterator[Cluster]:
    sockets = node.directory / "kubelet"
    manager = DeviceManagerConfig(plugin_dir=sockets / "plugins", pod_resources=sockets / "pods.sock")
    config = KubeletConfig(
        node="w1",
        runtime_endpoint=containerd.socket,
        state_dir=sockets / "sandboxes",
        relist_s=0.1,
        start_retry_s=0.1,
        stop_retry_s=0.1,
        late_delete_s=None,
        devices=DevicesConfig(manager=manager),
    )
    async with (
        asyncio.timeout(DEADLINE_S),
        serving_api() as api,
        httpx2.AsyncClient(base_url=api.url, trust_env=False) as http,
        running_kubelet(api.url, config) as kubelet,
    ):
        yield Cluster(http, kubelet)


def given(node: Node) -> list[tuple[str, str]]:
    """Return the kernel's rates of the VFs that any pod has."""
    return sorted(rates for key, rates in node.rates().items() if node.pristine["rates"][key] != rates)


def test_pod_runs_with_its_container_and_gives_everything_back(containerd: tuple[Node, Containerd]) -> None:
    node, runtime = containerd

    async def scenario() -> None:
        async with cluster_of(node, runtime) as cluster:
            uid = await cluster.create()
            pod = await cluster.running()
            assert pod["status"]["podIP"].startswith("10.244.0.")
            sandbox = cluster.kubelet.sandbox_of("default", "p")
            assert sandbox is not None
            told = {each["name"] for each in sandbox.result["interfaces"]}
            assert told >= {"eth0", "rdma0", "rdma1"}
            assert ("100Mbit", "200Mbit") in given(node)
            (container,) = cluster.kubelet.containers_of("default", "p").values()
            with pytest.raises(CriError, match="/none: no such file"):  # one that does not run says that
                runtime.cri.execute(container.id, "/none")
            assert uid == sandbox.pod.uid
            await cluster.end()

    asyncio.run(scenario())
    assert runtime.cri.list_sandboxes() != []  # stopped, and kept for a while, as kubelet does
    assert node.leftovers() == {}


def test_sandbox_whose_process_died_is_made_anew_with_equal_interfaces(
    containerd: tuple[Node, Containerd],
) -> None:
    node, runtime = containerd

    async def scenario() -> None:
        async with cluster_of(node, runtime) as cluster:
            await cluster.create()
            await cluster.running()
            first = cluster.kubelet.sandbox_of("default", "p")
            before = given(node)
            os.kill(runtime.cri.sandbox_info(first.container_id)["pid"], signal.SIGKILL)
            await cluster.running(other_than=first.container_id)
            assert given(node) == before
            assert len(node.leases("rdma")) == len(WISHES)
            report = node.try_report()
            assert [allocation.pod.uid for allocation in report.allocations] == [first.pod.uid]
            await cluster.end()

    asyncio.run(scenario())
    assert node.leftovers() == {}
