"""Pods of a cluster with Multus: our plugin as one of several networks, and behind the cluster's own."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from cluster.control_plane import write_kubeconfig
from cluster.real import obstacle
from cluster.world import Cluster, cluster
from e2e.multus import CRD, NETWORKS, STATUS, definition, thin
from e2e.neighbours import folder, missing_plugins
from e2e.node import PFS, Node
from e2e.test_pools import RDMA, give, kubelet
from k8s_rdma_demo.cluster.cni_runtime import AttachError, CniRuntime
from k8s_rdma_demo.cluster.sandboxes import PodRef, Sandbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


WHY_NOT = missing_plugins("multus") or obstacle()

pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))

EXAMPLES = Path(__file__).parents[2] / "examples" / "cni" / "multus"
DEFINITIONS = "/apis/k8s.cni.cncf.io/v1/namespaces/default/network-attachment-definitions"
TWO = [{"min_tx_rate": 100, "max_tx_rate": 200}, {}]


@pytest.fixture
def node(make_node: Callable[[int], Node]) -> Node:
    return make_node(4)


@dataclass
class Site:
    """A node in a cluster, whose network is Multus'."""

    node: Node
    cluster: Cluster
    runtime: CniRuntime

    async def define(self, name: str, config: dict[str, Any], resource: str = "") -> None:
        """A network of that name."""
        made = await self.cluster.http.post(DEFINITIONS, json=definition(name, config, resource))
        assert made.status_code == 201, made.text

    async def add(self, name: str, wishes: list[dict[str, Any]], networks: str = "") -> Sandbox:
        """Make a pod, and its sandbox; Multus gets no annotations from the runtime."""
        annotations = {NETWORKS: networks} if networks else {}
        if wishes:
            annotations["rdma_interfaces_required"] = json.dumps(wishes)
        made = await self.cluster.create_pod(name, annotations=annotations, nodeName="w1")
        pod = PodRef(namespace="default", name=name, uid=made["metadata"]["uid"], annotations={})
        return await self.runtime.add(pod)

    async def status(self, name: str) -> list[dict[str, Any]]:
        """Return the network status that Multus wrote to a pod."""
        pod = await self.cluster.pod(name)
        return json.loads(pod["metadata"]["annotations"][STATUS])

    def interfaces(self, sandbox: Sandbox) -> dict[str, list[str]]:
        return {
            link["ifname"]: [each["local"] for each in link["addr_info"] if each["family"] == "inet"]
            for link in self.node.ip("address", "show", netns=sandbox.netns)
            if link["ifname"] != "lo"
        }


@asynccontextmanager
async def site(node: Node, directory: Path, *, chained: bool = False) -> AsyncIterator[Site]:
    """The node's agent runs; Multus' main network is `bridge`, with ours behind it if chained."""
    async with cluster("real", directory) as made:
        await made.plane.add_crd(CRD)
        kubeconfig = directory / "admin.kubeconfig"
        write_kubeconfig(kubeconfig, made.plane, made.plane.admin_token)
        node.settings |= {"kubeconfig": str(kubeconfig)}
        node.start_agent()
        main = json.loads(node.runtime(chained=True).conflist.read_text())["plugins"]
        path = node.directory / "00-multus.conflist"
        multus = thin(node, kubeconfig, *(main if chained else main[:1]))
        path.write_text(json.dumps({"cniVersion": "1.0.0", "name": multus["name"], "plugins": [multus]}))
        programs = [*node.cni_path, folder()]
        yield Site(node, made, CniRuntime(programs, path, node.directory / "netns"))


def element(device: str) -> str:
    """An element of the annotation that names a network and the device that it is to attach."""
    return json.dumps([{"name": "rdma", "namespace": "default", "deviceID": device}])


def ours(node: Node, **more: object) -> dict[str, Any]:
    """The network of the example, whose addresses are leased here."""
    network = yaml.safe_load((EXAMPLES / "network.yaml").read_text())
    ipam = {
        "type": "host-local",
        "ranges": [[{"subnet": "10.56.0.0/24"}]],
        "dataDir": str(node.directory / "leases" / "rdma"),
    }
    return json.loads(network["spec"]["config"]) | {"runDir": str(node.run_dir), "ipam": ipam, **more}


def test_network_gives_the_interfaces_and_multus_reports_them(node: Node, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(node, tmp_path) as s:
            await s.define("rdma", ours(node))
            plain, wants = await s.add("plain", []), await s.add("wants", TWO, "rdma")
            assert list(s.interfaces(plain)) == ["eth0"]
            found = s.interfaces(wants)
            assert sorted(found) == ["eth0", "net1", "net1-1"]
            assert ("100Mbit", "200Mbit") in node.rates().values()
            told = {each["interface"]: each for each in await s.status("wants")}
            assert told["eth0"]["default"]
            assert told["net1"]["name"] == "default/rdma"
            assert found["net1"][0] in told["net1"]["ips"]
            for each in (plain, wants):
                await s.runtime.delete(each)

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_each_network_gives_the_interfaces_that_name_it(node: Node, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with site(node, tmp_path) as s:
            for name in ("red", "blue"):
                await s.define(name, ours(node, name=name))
            wishes = [{"network": "blue", "min_tx_rate": 100}, {"network": "red"}]
            sandbox = await s.add("p", wishes, "red,blue@b0")
            assert sorted(s.interfaces(sandbox)) == ["b0", "eth0", "net1"]
            given = [each for allocation in node.try_report().allocations for each in allocation.interfaces]
            assert {each.ifname: each.min_tx_rate for each in given} == {"b0": 100, "net1": 0}
            await s.runtime.delete(sandbox)

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_plugin_behind_the_main_network_asks_for_the_annotations(node: Node, tmp_path: Path) -> None:
    """Its network asks for them, and Multus does not hand them on."""

    async def scenario() -> None:
        async with site(node, tmp_path, chained=True) as s:
            plain, wants = await s.add("plain", []), await s.add("wants", TWO)
            assert list(s.interfaces(plain)) == ["eth0"]
            assert sorted(s.interfaces(wants)) == ["eth0", "rdma0", "rdma1"]
            for each in (plain, wants):
                await s.runtime.delete(each)

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_network_attaches_the_device_that_multus_names_with_its_information(
    node: Node, tmp_path: Path
) -> None:
    """A pod's owner may name devices to Multus, too: one that the pod does not hold is refused."""
    resource = {"mode": "exclusive", "name": RDMA, "select": {"pfs": [f"{PFS[0]}#0-2"]}}
    plugin = {"resources": [resource], "podResources": str(node.directory / "kubelet.sock")}
    node.settings = {"devicePlugin": str(node.config("device-plugin", plugin))}
    capabilities = {"deviceID": True, "CNIDeviceInfoFile": True}
    held, another = (node.pfs[0].vf_pci(vf) for vf in (2, 1))

    async def scenario() -> None:
        async with kubelet(node) as devices, site(node, tmp_path) as s:
            await s.define("rdma", ours(node, capabilities=capabilities))
            for name in ("p", "greedy"):
                give(devices, node, name, 2 if name == "p" else 0)
            sandbox = await s.add("p", [{"min_tx_rate": 100}], element(held))
            assert sorted(s.interfaces(sandbox)) == ["eth0", "net1"]
            assert node.rates()[PFS[0], 2][0] == "100Mbit"
            (told,) = (each for each in await s.status("p") if each["interface"] == "net1")
            assert told["device-info"]["pci"]["pci-address"] == held
            with pytest.raises(AttachError, match=f"{another}"):
                await s.add("greedy", [], element(another))
            await s.runtime.delete(sandbox)

    asyncio.run(scenario())
    assert node.leftovers() == {}
