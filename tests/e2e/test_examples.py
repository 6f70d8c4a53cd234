"""The configurations of examples/cni on a node: ours as it is there, after a stand-in for the cluster's own.

`bridge` and `ptp` stand for plugins that need a cluster, `host-local` for `whereabouts`, whose leases are in
one; plugins for ports and limits of pods are left out.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from e2e.node import Node, pod
from e2e.test_cluster import cluster_of
from k8s_rdma_demo.cluster.cni_plugin import Invocation, decode_result, run_plugin
from k8s_rdma_demo.cluster.cni_runtime import AttachError, CniRuntime

if TYPE_CHECKING:
    from collections.abc import Callable

    from k8s_rdma_demo.cluster.sandboxes import Sandbox

EXAMPLES = Path(__file__).parents[2] / "examples" / "cni"
LEGACY = "rit-k8s-rdma-cni-linux-amd64"
CHAINED = ["10-pods", "calico", "cilium", "cilium-chained", "flannel"]
OURS = ("k8s-rdma-cni", LEGACY)
WISH = ({"min_tx_rate": 100, "max_tx_rate": 200}, {})
STAND_INS = {"flannel": "bridge", "calico": "ptp", "cilium-cni": "ptp", "bridge": "bridge", "ptp": "ptp"}
SUBNET = "10.244.1.0/24"


def ipam_on(node: Node, ipam: dict[str, Any]) -> dict[str, Any]:
    """The same addresses, leased here."""
    leases = {"dataDir": str(node.directory / "leases" / "rdma")}
    if ipam["type"] == "whereabouts":
        return {"type": "host-local", "ranges": [[{"subnet": ipam["range"]}]]} | leases
    return ipam | leases


def stand_in(node: Node, plugin: dict[str, Any]) -> dict[str, Any]:
    leases = str(node.directory / "leases" / "pods")
    ipam = {"type": "host-local", "ranges": [[{"subnet": SUBNET}]], "dataDir": leases}
    return {"type": STAND_INS[plugin["type"]], "ipam": ipam}


def ours_on(node: Node, plugin: dict[str, Any]) -> dict[str, Any]:
    found = plugin | {"runDir": str(node.run_dir), "ipam": ipam_on(node, plugin["ipam"])}
    if "delegate" in plugin:
        found["delegate"] = stand_in(node, plugin["delegate"])
    return found


def runtime_of(node: Node, example: str) -> CniRuntime:
    """A runtime with the example's chain: the first plugin's stand-in, and ours."""
    conflist = json.loads((EXAMPLES / f"{example}.conflist").read_text())
    *before, ours = conflist["plugins"]
    assert ours["type"] in OURS
    plugins = [*(stand_in(node, plugin) for plugin in before[:1]), ours_on(node, ours)]
    path = node.directory / f"{example}.conflist"
    path.write_text(json.dumps(conflist | {"plugins": plugins}))
    return CniRuntime(node.cni_path, path, node.directory / "netns")


def links(node: Node, netns: str) -> dict[str, list[str]]:
    return {
        link["ifname"]: [each["local"] for each in link["addr_info"] if each["family"] == "inet"]
        for link in node.ip("address", "show", netns=netns)
        if link["ifname"] != "lo"
    }


@pytest.mark.parametrize("example", [*CHAINED, "only-plugin"])
def test_example_gives_pods_their_interfaces_and_takes_them_back(node: Node, example: str) -> None:
    async def scenario() -> None:
        runtime = runtime_of(node, example)
        plain, sandbox = await runtime.add(pod("plain")), await runtime.add(pod("rdma", *WISH))
        assert list(links(node, plain.netns)) == ["eth0"]
        found = links(node, sandbox.netns)
        assert list(found) == ["eth0", "rdma0", "rdma1"]
        assert all(address.startswith("10.244.1.") for address in found["eth0"])
        assert all(address.startswith("10.55.206.") for address in found["rdma0"] + found["rdma1"])
        assert [len(addresses) for addresses in found.values()] == [1, 1, 1]
        for each in (sandbox, plain):
            await runtime.delete(each)

    asyncio.run(scenario())
    assert node.leftovers() == {}


@pytest.mark.parametrize("example", CHAINED)
def test_example_starts_and_stops_ordinary_pods_when_the_agent_never_ran(
    make_node: Callable[[int], Node], example: str
) -> None:
    node = make_node(1)

    async def scenario() -> None:
        runtime = runtime_of(node, example)
        await runtime.status()
        await runtime.delete(await runtime.add(pod("plain")))
        with pytest.raises(AttachError, match="agent of this node cannot be reached"):
            await runtime.add(pod("rdma", {}))

    asyncio.run(scenario())
    assert node.leases("pods") == []


def test_only_plugin_is_not_ready_and_starts_no_pod_while_the_agent_is_dead(node: Node) -> None:
    async def scenario() -> None:
        runtime = runtime_of(node, "only-plugin")
        await runtime.status()
        sandbox = await runtime.add(pod("plain"))
        node.kill_agent()
        for call in (runtime.status(), runtime.add(pod("later"))):
            with pytest.raises(Exception, match="agent of this node cannot be reached"):
                await call
        await runtime.delete(sandbox)
        node.start_agent()
        await runtime.status()

    asyncio.run(scenario())
    assert node.leftovers() == {}


async def attach(node: Node, conf: dict[str, Any], sandbox: Sandbox, ifname: str) -> dict[str, Any]:
    """Return the result of ADD of one plugin, which gets only the pod's name."""
    return decode_result(await call(node, "ADD", conf, sandbox, ifname))


async def call(node: Node, command: str, conf: dict[str, Any], sandbox: Sandbox, ifname: str) -> bytes:
    pod_ref = sandbox.pod
    names = {"K8S_POD_NAMESPACE": pod_ref.namespace, "K8S_POD_NAME": pod_ref.name, "K8S_POD_UID": pod_ref.uid}
    invocation = Invocation(
        command=command,
        path=tuple(node.cni_path),
        container_id=sandbox.container_id,
        netns=sandbox.netns,
        ifname=ifname,
        args=";".join(["IgnoreUnknown=1", *(f"{key}={value}" for key, value in names.items())]),
    )
    stdin = json.dumps(ours_on(node, conf)).encode()
    return await run_plugin(conf["type"], invocation, stdin, node.deadline_s)


def test_configuration_of_the_plugin_before_gives_its_interfaces(make_node: Callable[[int], Node]) -> None:
    """No capabilities, its name: the annotation comes from the API server."""
    node = make_node(4)
    conf = json.loads((EXAMPLES / "rit.conf").read_text())
    plugins = node.directory / "plugins"
    plugins.mkdir()
    subprocess.run(
        [sys.executable, "-m", "k8s_rdma", "install-cni", plugins],
        env=os.environ | {"K8S_RDMA_CNI": str(node.cni_path[0] / "k8s-rdma-cni")},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    node.cni_path[0] = plugins

    async def scenario() -> None:
        async with cluster_of(node) as cluster:
            node.start_agent()
            sandbox = await node.runtime(chained=False).create(await cluster.bound("p", *WISH))
            result = await attach(node, conf, sandbox, "eth0")
            assert result["cniVersion"] == "0.4.0"
            assert result["ips"][0]["gateway"] == "10.55.206.1"
            found = links(node, sandbox.netns)
            assert list(found) == ["eth0", "eth1"]
            assert f"{found['eth0'][0]}/24" == result["ips"][0]["address"]
            assert await call(node, "DEL", conf, sandbox, "eth0") == b""

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_network_of_multus_gives_the_requested_interfaces(make_node: Callable[[int], Node]) -> None:
    node = make_node(4)
    network = yaml.safe_load((EXAMPLES / "multus" / "network.yaml").read_text())
    manifest = yaml.safe_load((EXAMPLES / "multus" / "pod.yaml").read_text())
    annotations = manifest["metadata"]["annotations"]
    assert annotations["k8s.v1.cni.cncf.io/networks"] == network["metadata"]["name"]
    conf = json.loads(network["spec"]["config"])

    async def scenario() -> None:
        async with cluster_of(node) as cluster:
            node.start_agent()
            wish = json.loads(annotations["rdma_interfaces_required"])
            sandbox = await node.runtime(chained=True).create(await cluster.bound("p", *wish))
            result = await attach(node, conf, sandbox, "net1")
            assert [each["name"] for each in result["interfaces"]] == ["net1", "net1-1"]
            assert list(links(node, sandbox.netns)) == ["net1", "net1-1"]
            assert await call(node, "DEL", conf, sandbox, "net1") == b""

    asyncio.run(scenario())
    assert node.leftovers() == {}
