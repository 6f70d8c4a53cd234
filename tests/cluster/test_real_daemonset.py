"""The DaemonSet's pod on a real kubelet, of the image that `K8S_RDMA_IMAGE` names."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import yaml

from cluster.kubelet import (
    ADDRESS,
    NODE,
    Kubelet,
    obstacle,
    programs,
    runtime_class,
    scratch,
)
from cluster.publishers import CRD
from cluster.real import SERVICE
from cluster.server_side_apply import Applied
from cluster.world import Cluster, cluster
from deploy.rendering.chart import documents, render
from e2e.conftest import PLUGINS
from k8s_rdma import __version__

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(obstacle() is not None, reason=str(obstacle())),
    pytest.mark.skipif("K8S_RDMA_IMAGE" not in os.environ, reason="needs an image: make image"),
]
Json = dict[str, Any]
NAMESPACE = "k8s-rdma"
NODES = {"rdma_cm": (10, 122)}
REPOSITORY = "docker.io/library/k8s-rdma"
IMAGE = f"{REPOSITORY}:{__version__}"
OTHER = {"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "ptp"}]}
READY_S = 240
"""Seven containers start, on processors that others use as well."""


def run(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def image(variable: str = "K8S_RDMA_IMAGE") -> Path:
    """The archive that it names."""
    return Path(os.environ[variable]).resolve()


@asynccontextmanager
async def leading_to(port: int, at: int = 443) -> AsyncIterator[None]:
    """The Service of the API server, as kube-proxy has it; at another port a node that it runs on."""
    under_way: set[asyncio.Future[Any]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", port)
        work = asyncio.gather(copied(reader, there[1]), copied(there[0], writer))
        under_way.add(work)
        with suppress(asyncio.CancelledError):
            await work
        under_way.discard(work)

    try:
        async with await asyncio.start_server(connected, SERVICE, at):
            yield
    finally:
        for each in tuple(under_way):
            each.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)


async def copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """From one end to the other, until either is gone."""
    try:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
    finally:
        writer.close()


@asynccontextmanager
async def node(directory: Path) -> AsyncIterator[tuple[Cluster, Kubelet]]:
    """A kubelet whose node has the image and another network; its root is shared, as systemd has it."""
    for address in (ADDRESS, SERVICE):
        run("ip", "address", "replace", f"{address}/32", "dev", "lo")
    place = directory / "c"
    prepare = scratch(place, NODES) + " mount --make-rshared / &&"
    plugins = [Path(each) for each in PLUGINS.split(":")]
    with runtime_class()(
        place, plugins=plugins, deadline_s=60, programs=programs(), prepare=prepare
    ) as runtime:
        runtime.import_oci(image(), IMAGE)
        other = directory / "other.conflist"
        other.write_text(json.dumps(OTHER))
        runtime.use(other)
        async with cluster("real", directory, deadline_s=READY_S) as c:
            kubelet = Kubelet(c, runtime, place)
            try:
                async with leading_to(int(c.plane.url.rpartition(":")[2])):
                    await kubelet.start()
                    yield c, kubelet
            finally:
                await kubelet.end()


async def start_pod(c: Cluster, values: Json) -> Json:
    """Apply the chart, and act for controllers: the DaemonSet's pod, and its namespace's authority."""
    applied = Applied(c.http)
    await applied.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    authority = {"ca.crt": c.plane.ca_file.read_text()}
    meta = {"name": "kube-root-ca.crt", "namespace": NAMESPACE}
    await applied.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": authority})
    major, minor = c.plane.release
    values = {"image": {"repository": REPOSITORY}} | values
    objects = documents(render(values, kubernetes=f"v{major}.{minor}.0"))
    for each in objects:
        await applied.apply(each)
    (template,) = (each["spec"]["template"] for each in objects if each["kind"] == "DaemonSet")
    meta = template["metadata"] | {"name": "node", "namespace": NAMESPACE}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta}
    await applied.apply({**pod, "spec": template["spec"] | {"nodeName": NODE}})
    return pod


async def ready(c: Cluster) -> Json:
    """Wait until all of its containers are; the pod."""
    while True:
        pod = (await c.http.get(f"/api/v1/namespaces/{NAMESPACE}/pods/node")).json()
        conditions = {each["type"]: each["status"] for each in pod["status"].get("conditions", ())}
        if conditions.get("Ready") == "True":
            return pod
        await asyncio.sleep(0.1)


async def published(c: Cluster) -> Json:
    """Wait until the agent has published its node; the object."""
    while True:
        answer = await c.http.get(f"/apis/k8s-rdma.io/v1alpha1/rdmanodes/{NODE}")
        if answer.status_code == 200 and "conditions" in answer.json().get("status", {}):
            return answer.json()
        await asyncio.sleep(0.1)


async def end_pod(c: Cluster) -> None:
    """As the DaemonSet's controller does it before the next one; it is gone when this returns."""
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/node"
    await c.http.delete(path)
    while (await c.http.get(path)).status_code != 404:  # noqa: ASYNC110  kubelet has it go
        await asyncio.sleep(0.1)


async def test_pod_of_the_daemonset_works_with_its_rights_and_another_takes_all_away(tmp_path: Path):
    place = tmp_path / "c"
    cni = {"binDir": f"{place}/bin", "confDir": f"{place}/net.d"}
    async with node(tmp_path) as (c, _):
        await c.plane.add_crd(yaml.safe_load(CRD.read_text()))
        await start_pod(c, {"node": {"cni": cni, "server": {"config": {"openPaths": ["/v1/node"]}}}})
        pod = await ready(c)
        statuses = {each["name"]: each for each in pod["status"]["containerStatuses"]}
        assert sorted(statuses) == ["agent", "cni", "device-plugin", "server"]
        assert {each["restartCount"] for each in statuses.values()} == {0}
        assert (place / "bin/k8s-rdma-cni").exists()
        ours = json.loads((place / "net.d/00-k8s-rdma.conflist").read_text())
        assert [each["type"] for each in ours["plugins"]] == ["ptp", "k8s-rdma-cni"]
        async with httpx2.AsyncClient(trust_env=False) as http:
            report = (await http.get(f"http://{ADDRESS}:54005/v1/node")).json()
        assert (report["node"], report["allocations"]) == (NODE, [])

        made = await published(c)
        assert made["status"]["conditions"][0]["type"] == "Ready"
        leases = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{NODE}"
        assert (await c.http.get(leases)).status_code == 200

        await end_pod(c)
        await start_pod(c, {"node": {"cni": cni, "uninstall": True}})
        await ready(c)
        assert not (place / "bin/k8s-rdma-cni").exists()
        assert [path.name for path in (place / "net.d").iterdir()] == ["10-net.conflist"]
