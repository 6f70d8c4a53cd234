"""The DaemonSet on a real kubelet, rolled by its real controller, with pods that send all the time."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import yaml

from cluster.controllers import controllers
from cluster.controllers import obstacle as controllers_obstacle
from cluster.kubelet import ADDRESS, Kubelet, programs, runtime_class, scratch
from cluster.publishers import CRD
from cluster.real import SERVICE
from cluster.server_side_apply import Applied
from cluster.test_real_daemonset import IMAGE, NAMESPACE, NODES, READY_S, REPOSITORY, image, leading_to, run
from cluster.test_real_daemonset import pytestmark as marks
from cluster.world import Cluster, cluster
from deploy.rendering.chart import CHART, documents, render
from e2e.conftest import build_dir, make_node, program
from e2e.facts import facts
from e2e.real_pods import without_us
from e2e.streams import Endpoint, Stream
from k8s_rdma import __version__

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from e2e.node import Node

__all__ = ["build_dir", "make_node", "program"]

pytestmark = [*marks, pytest.mark.skipif(bool(why := controllers_obstacle()), reason=str(why))]
Json = dict[str, Any]
DAEMONSETS = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
CONTROLLERS = "daemonset", "garbagecollector", "root-ca-cert-publisher"
SCHEDULER = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
PF = "enp1s0f0"
KEY = base64.b64encode(bytes(32)).decode()

OPEN = {"openPaths": ["/v1/node"]}
"""The path that scenarios ask without a token; a chart of before knows no such key, and closes no path."""


class Rollout:
    """A node with a kubelet, and the DaemonSet of the chart in its cluster."""

    def __init__(self, c: Cluster, kubelet: Kubelet, node: Node, place: Path, root: Path) -> None:
        self.c, self.kubelet, self.place = c, kubelet, place
        self._applied, self._node, self.root = Applied(c.http), node, root

    async def apply(
        self, *, chart: Path = CHART, tag: str = __version__, values: Json | None = None, **node: Any
    ) -> None:
        """As `helm upgrade` does it. tag: the image's. values: others; node: those below `node`."""
        cni = {"binDir": f"{self.place}/bin", "confDir": f"{self.place}/net.d"}
        ipam = {"type": "host-local", "ranges": [[{"subnet": "10.56.0.0/24"}]]}
        leases = {"dataDir": str(self._node.directory / "leases" / "rdma")}
        virtual = {
            "agent": {"config": {"kernel": "virtual", "allowUnplaced": True}},
            "server": {"config": {"kernel": "virtual"} | (OPEN if chart == CHART else {})},
        }
        values = (values or {}) | {
            "image": {"repository": REPOSITORY, "tag": tag},
            "placementKey": {"value": KEY},
            "node": {"cni": cni | {"plugin": {"ipam": ipam | leases}}} | virtual | node,
        }
        await self._applied.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        major, minor = self.c.plane.release
        for each in documents(render(values, kubernetes=f"v{major}.{minor}.0", chart=chart)):
            await self._applied.apply(each)

    async def rolled(self) -> Json:
        """Wait until the controller says that all is as the template has it; the only pod."""
        while True:
            (each,) = (await self.c.http.get(DAEMONSETS)).json()["items"]
            meta, status = each["metadata"], each["status"]
            counts = [status.get(key, 0) for key in ("updatedNumberScheduled", "numberAvailable")]
            if status.get("observedGeneration") == meta["generation"] and counts == [1, 1]:
                pods = await self.pods()
                if len(pods) == 1:
                    return pods[0]
            await asyncio.sleep(0.1)

    async def pods(self) -> list[Json]:
        return (await self.c.http.get(PODS)).json()["items"]

    async def said(self, container: str) -> str:
        """Wait until a container of the DaemonSet's pod has ended once; its log, as `kubectl logs` has it."""
        while True:
            for pod in await self.pods():
                for each in pod["status"].get("initContainerStatuses", ()):
                    state = each["state"] | each["lastState"]
                    if each["name"] == container and "terminated" in state:
                        meta = pod["metadata"]
                        name = f"{NAMESPACE}_{meta['name']}_{meta['uid']}/{container}"
                        logs = (self.place / "var-log" / "pods" / name).iterdir()
                        return "".join(log.read_text() for log in logs)
            await asyncio.sleep(0.1)

    async def start_pod(self, name: str, **wish: object) -> Endpoint:
        """A pod with an interface; its endpoint."""
        annotations = {"rdma_interfaces_required": json.dumps([{"pf": PF, **wish}])}
        await self.kubelet.create_pod(name, {"name": "c"}, annotations=annotations)
        pod = await self.kubelet.running(name)
        for netns in (self.root / "run/netns").iterdir():
            links = self._node.ip("address", "show", netns=str(netns))
            found = {each["ifname"]: [it["local"] for it in each["addr_info"]] for each in links}
            if pod["status"]["podIP"] in found["eth0"]:
                return Endpoint(str(netns), "rdma0", found["rdma0"][0])
        raise AssertionError(f"no namespace of {name}")

    async def end_pods(self, *names: str) -> None:
        """They have given all back when this returns."""
        for name in names:
            await self.kubelet.delete_pod(name)
            await self.c.gone(name)
        while await self.holders():  # noqa: ASYNC110  kubelet has them go
            await asyncio.sleep(0.1)

    async def delete(self) -> None:
        """As `helm uninstall` does it; the pods are gone when this returns."""
        await self.c.http.delete(f"{DAEMONSETS}/k8s-rdma-node")
        while await self.pods():  # noqa: ASYNC110  another process makes them go
            await asyncio.sleep(0.1)

    async def holders(self) -> set[str]:
        """Pods that hold something, by the node's server."""
        async with httpx2.AsyncClient(trust_env=False) as http:
            report = (await http.get(f"http://{ADDRESS}:54005/v1/node")).json()
        return {each["pod"]["name"] for each in report["allocations"]}


@pytest.fixture
def node(make_node: Callable[[int], Node]) -> Node:
    node = make_node(4)
    for address in (ADDRESS, SERVICE):
        run("ip", "address", "replace", f"{address}/32", "dev", "lo")
    return node


@asynccontextmanager
async def rollout(node: Node, directory: Path, images: Mapping[str, Path]) -> AsyncIterator[Rollout]:
    """images: archives by the names that the cluster has for them."""
    place = node.directory / "c"
    prepare = scratch(place, NODES) + " mount --make-rshared / &&"
    with runtime_class()(
        place, plugins=node.cni_path[1:], deadline_s=60, programs=programs(), prepare=prepare
    ) as runtime:
        for name, archive in images.items():
            runtime.import_oci(archive, name)
        runtime.use(without_us(node.runtime(chained=True).conflist))
        async with cluster("real", directory, deadline_s=2 * READY_S) as c:
            kubelet = Kubelet(c, runtime, place)
            root = Path(runtime.entering[-1].partition("=")[2]).parents[1] / "root"
            try:
                async with (
                    leading_to(int(c.plane.url.rpartition(":")[2])),
                    controllers(c.plane, *CONTROLLERS),
                    c.plane.scheduler(SCHEDULER),
                ):
                    await kubelet.start()
                    await c.plane.add_crd(yaml.safe_load(CRD.read_text()))
                    yield Rollout(c, kubelet, node, place, root)
            except BaseException:
                for log in sorted((place / "var-log" / "pods").glob("*/*/*.log")):
                    sys.stderr.write(f"{log}:\n{log.read_text()[-2000:]}\n")
                raise
            finally:
                await kubelet.end()


@pytest.mark.timeout(600)
async def test_pods_keep_their_interfaces_while_the_daemonset_is_rolled_until_they_end_and_it_uninstalls(
    node: Node, tmp_path: Path
):
    async with rollout(node, tmp_path, {IMAGE: image()}) as it:
        await it.apply()
        first = await it.rolled()
        sender = await it.start_pod("sender", min_tx_rate=50, max_tx_rate=100)
        receiver = await it.start_pod("receiver")
        names = {"sender", "receiver"}
        namespaces = {"sender": sender.netns, "receiver": receiver.netns}
        assert await it.holders() == names
        had = facts(node, namespaces)
        with Stream(sender, receiver) as stream:
            await it.apply(podAnnotations={"example/of": "a change"})
            second = await it.rolled()
            assert second["metadata"]["uid"] != first["metadata"]["uid"]
            assert await it.holders() == names
            assert facts(node, namespaces) == had

            await it.apply(uninstall=True)
            refused = await it.said("uninstall")
            assert "pods hold interfaces: default/receiver, default/sender; end them" in refused
            assert (it.place / "bin/k8s-rdma-cni").exists()
            assert facts(node, namespaces) == had

            await it.apply()
            await it.rolled()
            assert await it.holders() == names
            assert facts(node, namespaces) == had
        assert stream.lost() == []
        assert stream.sent > 0

        await it.end_pods(*names)
        await it.apply(uninstall=True)
        await it.rolled()
        assert not (it.place / "bin/k8s-rdma-cni").exists()
        assert [path.name for path in (it.place / "net.d").iterdir()] == ["10-net.conflist"]
        assert not (it.root / "run/k8s-rdma").exists()
        assert node.kernel_state() == node.pristine
        await it.delete()

        await it.apply()
        await it.rolled()
        await it.start_pod("again", min_tx_rate=100)
        assert await it.holders() == {"again"}
        await it.end_pods("again")
        assert node.kernel_state() == node.pristine
