"""The ways to be attached, by real processes: with a delegate, in one of several networks, as RIT's."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from e2e.node import DEADLINE_S, Node, pod
from e2e.test_attachments import inside, told
from e2e.test_cluster import cluster_of
from k8s_rdma_demo.cluster.cni_plugin import CniError, Invocation, run_plugin
from k8s_rdma_demo.cluster.cni_runtime import AttachError, CniRuntime

if TYPE_CHECKING:
    from collections.abc import Callable

    from k8s_rdma_demo.cluster.sandboxes import PodRef, Sandbox

    MakeNode = Callable[[int], Node]

NETWORKS = "k8s.v1.cni.cncf.io/networks"


def subnet(node: Node, name: str, number: int) -> dict[str, object]:
    """host-local with leases that `Node.leftovers` looks at."""
    directory = str(node.directory / "leases" / name)
    return {"type": "host-local", "ranges": [[{"subnet": f"10.{number}.0.0/24"}]], "dataDir": directory}


def bridge(node: Node) -> dict[str, object]:
    return {"type": "bridge", "bridge": "cni0", "ipam": subnet(node, "pods", 244)}


def only_plugin(node: Node, version: str = "1.0.0", **ours: object) -> CniRuntime:
    """Alone, with bridge as delegate."""
    runtime = node.runtime(chained=False, ours={"delegate": bridge(node), **ours})
    conflist = json.loads(runtime.conflist.read_text())
    runtime.conflist.write_text(json.dumps(conflist | {"cniVersion": version}))
    return runtime


@pytest.mark.parametrize("version", ["0.3.1", "0.4.0", "1.0.0", "1.1.0"])
def test_only_plugin_has_its_delegate_give_ordinary_pods_their_eth0(node: Node, version: str) -> None:
    """Debian's bridge speaks 1.0.0 at most."""

    async def scenario() -> None:
        runtime = only_plugin(node, version)
        plain, sandbox = await runtime.add(pod("plain")), await runtime.add(pod("p", {"min_tx_rate": 100}))
        assert list(inside(node, plain)) == ["eth0"]
        assert inside(node, plain) == told(plain)
        assert plain.ips == ["10.244.0.2"]
        assert inside(node, sandbox) == told(sandbox)
        assert sandbox.ips == ["10.56.0.2"]
        assert node.leases("pods") == ["10.244.0.2"]
        assert {plain.result["cniVersion"], sandbox.result["cniVersion"]} == {version}
        for each in (plain, sandbox):
            await runtime.delete(each)

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_only_plugin_gives_a_pod_both_interfaces_if_names_differ(node: Node) -> None:
    async def scenario() -> None:
        runtime = only_plugin(node, interfaceNames="rdma{i}")
        sandbox = await runtime.add(pod("p", {"min_tx_rate": 100}, {}))
        found = inside(node, sandbox)
        assert sorted(found) == ["eth0", "rdma0", "rdma1"]
        assert found == told(sandbox)
        await runtime.check(sandbox)
        node.ip("address", "flush", "dev", "rdma1", netns=sandbox.netns)
        with pytest.raises(CniError, match=r"interface rdma1 has lost 10\.56\.0\."):
            await runtime.check(sandbox)
        await runtime.delete(sandbox)

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_delegates_del_is_made_up_for_when_the_agent_was_dead(node: Node) -> None:
    async def scenario() -> None:
        runtime = only_plugin(node)
        plain = await runtime.add(pod("plain"))
        node.kill_agent()
        await runtime.delete(plain)
        assert node.leases("pods") == ["10.244.0.2"]
        node.start_agent()

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_pod_that_would_have_no_interface_is_refused_with_advice(node: Node) -> None:
    async def scenario() -> None:
        with pytest.raises(AttachError, match="set `delegate`"):
            await node.runtime(chained=False).add(pod("plain"))

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_status_and_gc_of_the_only_plugin(node: Node) -> None:
    async def scenario() -> None:
        runtime = only_plugin(node, "1.1.0", interfaceNames="rdma{i}")
        await runtime.status()
        kept, gone = await runtime.add(pod("kept", {})), await runtime.add(pod("gone", {}))
        await runtime.gc([kept])
        assert sorted(inside(node, kept)) == ["eth0", "rdma0"]
        assert list(inside(node, gone)) == []
        node.kill_agent()
        with pytest.raises(CniError):
            await runtime.status()
        node.start_agent()
        for each in (kept, gone):
            await runtime.delete(each)
        # All but a STATUS that is well, for which containerd asks every 5 s.
        assert {each.get("command") for each in node.log() if "duration_ms" in each} == {"ADD", "GC", "DEL"}

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_interfaces_choose_among_the_networks_of_a_configuration(node: Node) -> None:
    async def scenario() -> None:
        storage = {"ipam": subnet(node, "storage", 57)}
        runtime = node.runtime(chained=True, ours={"networks": {"storage": storage}})
        text = json.dumps([{}, {"network": "storage", "name": "disks"}])
        sandbox = await runtime.add(pod("p", text=text))
        found = inside(node, sandbox)
        assert found == told(sandbox)
        assert found["rdma0"]["addresses"] == ["10.56.0.2/24"]
        assert found["disks"]["addresses"] == ["10.57.0.2/24"]
        await runtime.delete(sandbox)

    asyncio.run(scenario())
    assert node.leftovers() == {}


async def call(
    node: Node, command: str, sandbox: Sandbox, conf: dict[str, Any], ifname: str
) -> dict[str, Any]:
    """Call our plugin once, as a program that is no runtime's library does, and return its output."""
    ref: PodRef = sandbox.pod
    invocation = Invocation(
        command=command,
        path=tuple(node.cni_path),
        container_id=sandbox.container_id,
        netns=sandbox.netns,
        ifname=ifname,
        args=f"IgnoreUnknown=true;K8S_POD_NAMESPACE=default;K8S_POD_NAME={ref.name};K8S_POD_UID={ref.uid}",
    )
    stdin = json.dumps(conf | {"runDir": str(node.run_dir)}).encode()
    return json.loads(await run_plugin("k8s-rdma-cni", invocation, stdin, DEADLINE_S) or b"{}")


def test_several_networks_of_a_pod_give_their_shares_and_end_one_by_one(make_node: MakeNode) -> None:
    """As Multus calls: once a network, without annotations, after the cluster's own plugin."""
    node = make_node(4)

    async def scenario() -> None:
        async with cluster_of(node) as cluster:
            node.start_agent()
            runtime = node.runtime(chained=True, ours={"capabilities": {}})
            conflist = json.loads(runtime.conflist.read_text())
            runtime.conflist.write_text(json.dumps(conflist | {"plugins": conflist["plugins"][:1]}))
            interfaces = [{"network": "fabric-b"}, {"min_tx_rate": 100}, {"network": "fabric-a"}]
            ref = await cluster.bound("p", *interfaces)
            await cluster.annotate("p", NETWORKS, "fabric-a,fabric-b")
            sandbox = await runtime.add(ref)
            a, b = (
                {
                    "cniVersion": "1.0.0",
                    "name": f"fabric-{letter}",
                    "type": "k8s-rdma-cni",
                    "ipam": subnet(node, letter, number),
                }
                for letter, number in (("a", 58), ("b", 59))
            )
            first = await call(node, "ADD", sandbox, a, "net1")
            second = await call(node, "ADD", sandbox, b, "net2")
            assert [each["name"] for each in first["interfaces"]] == ["net1", "net1-1"]
            assert [each["name"] for each in second["interfaces"]] == ["net2"]
            found = inside(node, sandbox)
            assert sorted(found) == ["eth0", "net1", "net1-1", "net2"]
            assert found["net2"]["addresses"] == ["10.59.0.2/24"]
            await call(node, "DEL", sandbox, a, "net1")
            assert sorted(inside(node, sandbox)) == ["eth0", "net2"]
            assert node.markers() == [sandbox.container_id]
            await call(node, "DEL", sandbox, b, "net2")
            await runtime.delete(sandbox)

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_configuration_of_the_replaced_plugin_works_as_it_stands(make_node: MakeNode) -> None:
    """No `cniVersion`, no `capabilities`, an empty `dpdk`; the annotation comes from the API server."""
    node = make_node(4)

    async def scenario() -> None:
        async with cluster_of(node) as cluster:
            node.start_agent()
            runtime = node.runtime(chained=False)
            ref = await cluster.bound("p", {"min_tx_rate": 150, "max_tx_rate": 200}, {})
            sandbox = await runtime.create(ref)
            legacy = {
                "name": "mynet",
                "type": "rit-k8s-rdma-cni-linux-amd64",
                "cniDir": "/var/lib/cni",
                "vlan": 0,
                "dpdk": {"pci_addr": "", "dpdk_driver": ""},
                "ipam": {
                    "type": "host-local",
                    "subnet": "10.55.206.0/24",
                    "rangeStart": "10.55.206.1",
                    "rangeEnd": "10.55.206.254",
                    "routes": [{"dst": "0.0.0.0/0"}],
                    "gateway": "10.55.206.1",
                    "dataDir": str(node.directory / "leases" / "legacy"),
                },
            }
            result = await call(node, "ADD", sandbox, legacy, "eth0")
            assert result["cniVersion"] == "0.1.0"
            found = inside(node, sandbox)
            assert sorted(found) == ["eth0", "eth1"]
            assert [result["ip4"]["ip"]] == found["eth0"]["addresses"]
            assert result["ip4"]["gateway"] == "10.55.206.1"
            assert ("150Mbit", "200Mbit") in node.rates().values()
            await call(node, "DEL", sandbox, legacy, "eth0")
            await runtime.delete(sandbox)

    asyncio.run(scenario())
    assert node.leftovers() == {}
