"""Interfaces that pods find in their namespaces, and the remains when pods go."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from e2e.node import PFS, Node, pod
from k8s_rdma_demo.cluster.cni_plugin import Invocation, run_plugin
from k8s_rdma_demo.cluster.cni_runtime import remove_namespace_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from k8s_rdma_demo.cluster.sandboxes import Sandbox

SHAPES = {
    1: [{"min_tx_rate": 100, "max_tx_rate": 200}],
    60: [{"min_tx_rate": 10, "max_tx_rate": 20}] * 60,
}


def inside(node: Node, sandbox: Sandbox) -> dict[str, dict[str, Any]]:
    """A pod's links but `lo`, by name, with MAC, state and IPv4 addresses as `ip` shows them."""
    return {
        link["ifname"]: {
            "mac": link["address"],
            "up": "UP" in link["flags"],
            "addresses": [
                f"{each['local']}/{each['prefixlen']}"
                for each in link["addr_info"]
                if each["family"] == "inet"
            ],
        }
        for link in node.ip("address", "show", netns=sandbox.netns)
        if link["ifname"] != "lo"
    }


def told(sandbox: Sandbox) -> dict[str, dict[str, Any]]:
    """The same as the result of ADD says it: interfaces in the sandbox, with their addresses."""
    result = sandbox.result
    return {
        interface["name"]: {
            "mac": interface["mac"],
            "up": True,
            "addresses": [ip["address"] for ip in result["ips"] if ip["interface"] == index],
        }
        for index, interface in enumerate(result["interfaces"])
        if interface.get("sandbox") == sandbox.netns
    }


def rated(node: Node) -> list[tuple[str, str]]:
    """Rates that differ from those of free VFs, sorted."""
    free = set(node.pristine["rates"].values())
    return sorted(rates for rates in node.rates().values() if rates not in free)


@pytest.mark.parametrize("count", [1, 60])
def test_add_alone_gives_the_interfaces_of_its_result(make_node: Callable[[int], Node], count: int) -> None:
    node = make_node(32)
    node.start_agent()
    vfs = {mac for mac, *_ in node.pristine["links"].values()}

    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        sandbox = await runtime.add(pod("p", *SHAPES[count]))
        found = inside(node, sandbox)
        assert list(found) == [f"eth{index}" for index in range(count)]
        assert found == told(sandbox)
        addresses = {address for each in found.values() for address in each["addresses"]}
        assert addresses == {f"10.56.0.{index + 2}/24" for index in range(count)}
        assert {each["mac"] for each in found.values()} <= vfs
        assert sandbox.result["interfaces"][0]["sandbox"] == sandbox.netns
        assert len(sandbox.result["interfaces"]) == len(sandbox.result["ips"]) == count
        wanted = ("100Mbit", "200Mbit") if count == 1 else ("10Mbit", "20Mbit")
        assert rated(node) == [wanted] * count
        assert node.markers() == [sandbox.container_id]
        await runtime.delete(sandbox)

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_add_behind_bridge_passes_on_the_result_of_bridge(node: Node) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=True)
        plain = await runtime.add(pod("plain"))
        sandbox = await runtime.add(pod("p", {"min_tx_rate": 100}, {}))
        found = inside(node, sandbox)
        assert sorted(found) == ["eth0", "rdma0", "rdma1"]
        assert found == told(sandbox)
        by_bridge = [each["name"] for each in plain.result["interfaces"]]
        names = [each["name"] for each in sandbox.result["interfaces"]]
        assert names[0] == by_bridge[0] == "cni0"
        assert names[1].startswith("veth")
        assert names[2:] == ["eth0", "rdma0", "rdma1"]
        assert sandbox.ips == ["10.244.0.3"]
        assert sandbox.result["ips"][0]["gateway"] == "10.244.0.1"
        assert list(inside(node, plain)) == ["eth0"]
        for each in (sandbox, plain):
            await runtime.delete(each)

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_interfaces_of_one_pod_are_on_the_pfs_that_have_the_bandwidth(node: Node) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        sandbox = await runtime.add(pod("p", {"min_tx_rate": 900}, {"min_tx_rate": 900}))
        used = {pf for (pf, _), rates in node.rates().items() if rates[0] == "900Mbit"}
        assert used == set(PFS)
        await runtime.delete(sandbox)

    asyncio.run(scenario())
    assert node.leftovers() == {}


async def _delete(node: Node, sandbox: Sandbox, *, netns: str) -> None:
    """DEL by our plugin alone."""
    runtime = node.runtime(chained=False)
    conf = json.loads(runtime.conflist.read_text())
    stdin = {"cniVersion": conf["cniVersion"], "name": conf["name"], **conf["plugins"][0]}
    invocation = Invocation(
        command="DEL",
        path=tuple(runtime.cni_path),
        container_id=sandbox.container_id,
        netns=netns,
        ifname="eth0",
    )
    await run_plugin("k8s-rdma-cni", invocation, json.dumps(stdin).encode(), 30)


def test_del_twice_is_del_once(node: Node) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        sandbox = await runtime.add(pod("p", {"min_tx_rate": 100}))
        await runtime.detach(sandbox)
        assert node.leftovers() == {}
        await runtime.detach(sandbox)
        await runtime.delete(sandbox)

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_second_del_leaves_a_vf_alone_that_serves_another_pod(make_node: Callable[[int], Node]) -> None:
    node = make_node(1)
    node.start_agent()

    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        first = await runtime.add(pod("first", {"min_tx_rate": 900}, {"min_tx_rate": 900}))
        await runtime.detach(first)
        second = await runtime.add(pod("second", {"min_tx_rate": 800}, {"min_tx_rate": 800}))
        before = inside(node, second), node.rates()
        await runtime.delete(first)
        assert (inside(node, second), node.rates()) == before
        await runtime.delete(second)

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_del_without_netns_brings_everything_home(node: Node) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        sandbox = await runtime.add(pod("p", {"min_tx_rate": 100}, {}))
        await _delete(node, sandbox, netns="")
        assert inside(node, sandbox) == {}
        await runtime.delete(sandbox)

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_del_after_the_namespace_was_destroyed_makes_the_vfs_anew(node: Node) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=True)
        sandbox = await runtime.add(pod("p", {"min_tx_rate": 100}, {}))
        remove_namespace_at(Path(sandbox.netns))
        await runtime.delete(sandbox)

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_two_pods_at_once_get_different_functions(node: Node) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=True)
        pods = [pod(name, {"min_tx_rate": 300, "max_tx_rate": 400}, {"min_tx_rate": 300}) for name in "ab"]
        sandboxes = await asyncio.gather(*map(runtime.add, pods))
        found = [inside(node, sandbox) for sandbox in sandboxes]
        assert found == [told(sandbox) for sandbox in sandboxes]
        macs = [each[name]["mac"] for each in found for name in ("rdma0", "rdma1")]
        addresses = [each[name]["addresses"][0] for each in found for name in ("rdma0", "rdma1")]
        assert len(set(macs)) == len(set(addresses)) == 4
        assert len(rated(node)) == 4
        await asyncio.gather(*map(runtime.delete, sandboxes))

    asyncio.run(scenario())
    assert node.leftovers() == {}
