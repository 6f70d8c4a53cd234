"""Addresses of pods by the reference IPAM plugins, as stations of the same network find them."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from e2e.node import DEADLINE_S, Node, pod
from k8s_rdma.linux.netns import entered
from k8s_rdma_demo.cluster.cni_plugin import CniError
from k8s_rdma_demo.cluster.cni_runtime import AttachError

if TYPE_CHECKING:
    from k8s_rdma_demo.cluster.sandboxes import Sandbox


def given(node: Node, sandbox: Sandbox) -> dict[str, list[str]]:
    """Addresses by interface as `ip` shows them; neither the loopback's nor a link's own."""
    return {
        link["ifname"]: [
            f"{each['local']}/{each['prefixlen']}" for each in link["addr_info"] if each["scope"] == "global"
        ]
        for link in node.ip("address", "show", netns=sandbox.netns)
        if link["ifname"] != "lo"
    }


def told(sandbox: Sandbox) -> dict[str, list[str]]:
    """The same as the result of ADD says it."""
    result = sandbox.result
    return {
        interface["name"]: [ip["address"] for ip in result["ips"] if ip["interface"] == index]
        for index, interface in enumerate(result["interfaces"])
        if interface.get("sandbox") == sandbox.netns
    }


def reaches(sandbox: Sandbox, address: str) -> None:
    """Check that a host is there and says that no process listens on that port."""
    with Path(sandbox.netns).open("rb") as namespace, entered(namespace.fileno()):
        client = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    client.settimeout(DEADLINE_S)
    with client, pytest.raises(ConnectionRefusedError):
        client.connect((address.partition("/")[0], 4711))


def host_local(node: Node, *subnets: str, name: str = "net", **more: object) -> dict[str, Any]:
    ranges = [[{"subnet": subnet}] for subnet in subnets]
    data = str(node.directory / "leases" / name)
    return {"type": "host-local", "ranges": ranges, "dataDir": data} | more


def static(*addresses: str) -> dict[str, Any]:
    return {"type": "static", "addresses": [{"address": address} for address in addresses]}


def leased(node: Node) -> list[str]:
    """Every lease: the network's name and the address."""
    files = (node.directory / "leases").glob("*/*/*")
    return sorted(f"{p.parent.name} {p.name}" for p in files if p.name[0].isdigit() or ":" in p.name)


def test_both_families_are_given_and_reach_another_pod_at_once(node: Node) -> None:
    async def scenario() -> None:
        ipam = host_local(node, "10.56.0.0/24", "fd00:56::/64", routes=[{"dst": "fd00:99::/32"}])
        runtime = node.runtime(chained=True, ours={"ipam": ipam})
        first, second = await runtime.add(pod("first", {}, {})), await runtime.add(pod("second", {}))
        for sandbox in (first, second):
            found = given(node, sandbox)
            assert found == told(sandbox)
            assert all(len(addresses) == 2 for name, addresses in found.items() if name != "eth0")
            assert {"dst": "fd00:99::/32", "gw": "fd00:56::1"} in sandbox.result["routes"]
        for address in given(node, first)["rdma0"]:
            reaches(second, address)
        assert len(leased(node)) == 6 + 2
        for sandbox in (first, second):
            await runtime.delete(sandbox)

    asyncio.run(scenario())
    assert leased(node) == []
    assert node.leftovers() == {}


def test_ipv6_alone_is_given(node: Node) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=False, ours={"ipam": host_local(node, "fd00:56::/64")})
        first, second = await runtime.add(pod("first", {})), await runtime.add(pod("second", {}))
        assert given(node, first) == told(first) == {"eth0": ["fd00:56::2/64"]}
        reaches(second, "fd00:56::2")
        for sandbox in (first, second):
            await runtime.delete(sandbox)

    asyncio.run(scenario())
    assert leased(node) == []


def test_each_interface_has_addresses_of_the_network_that_it_names(node: Node) -> None:
    networks = {
        "storage": {"ipam": host_local(node, "10.57.0.0/24")},
        "fixed": {"ipam": static("10.58.0.9/24", "fd00:58::9/64")},
        "bare": {"l2enable": True},
    }

    async def scenario() -> None:
        ours = {"ipam": host_local(node, "10.56.0.0/24"), "networks": networks}
        runtime = node.runtime(chained=False, ours=ours)
        wish = [{}, *({"network": network} for network in networks)]
        sandbox = await runtime.add(pod("p", text=json.dumps(wish)))
        assert given(node, sandbox) == told(sandbox)
        assert list(given(node, sandbox).values()) == [
            ["10.56.0.2/24"],
            ["10.57.0.2/24"],
            ["10.58.0.9/24", "fd00:58::9/64"],
            [],
        ]
        [bare] = node.ip("link", "show", "eth3", netns=sandbox.netns)
        assert "UP" in bare["flags"]
        await runtime.check(sandbox)
        await runtime.delete(sandbox)

    asyncio.run(scenario())
    assert leased(node) == []
    assert node.leftovers() == {}


def test_leases_are_apart_from_those_of_the_plugin_before_in_the_same_directory(node: Node) -> None:
    """Both are called host-local's `net`, and would take one address for each other's."""
    (node.directory / "leases" / "pods").mkdir(parents=True)
    ours = {"ipam": host_local(node, "10.244.0.0/24", name="pods")}

    async def scenario() -> None:
        runtime = node.runtime(chained=True, ours=ours)
        sandbox = await runtime.add(pod("p", {}, {}))
        assert sorted(lease.split()[0] for lease in leased(node)) == ["net", "net-rdma", "net-rdma"]
        await runtime.delete(sandbox)

    asyncio.run(scenario())
    assert leased(node) == []


def test_address_that_another_pod_has_fails_by_name_and_leaves_no_interface(node: Node) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=False, ours={"ipam": static("fd00:58::9/64", "10.58.0.9/24")})
        first = await runtime.add(pod("first", {}))
        with pytest.raises(AttachError, match=r"address fd00:58::9/64 of eth0: in use by another station"):
            await runtime.add(pod("second", {}))
        assert node.markers() == [first.container_id]
        reaches(first, "fd00:58::9")
        await runtime.delete(first)
        second = await runtime.add(pod("second", {}))
        await runtime.delete(second)

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_station_that_talked_to_the_last_holder_reaches_the_new_one(node: Node) -> None:
    """Its neighbour entry says otherwise, and by itself would for up to a minute."""

    async def scenario() -> None:
        networks = {"a": {"ipam": static("10.58.0.1/24", "fd00:58::1/64")}}
        ours = {"ipam": static("10.58.0.9/24", "fd00:58::9/64"), "networks": networks}
        runtime = node.runtime(chained=True, ours=ours)
        station = await runtime.add(pod("station", text='[{"network": "a"}]'))
        for address in ("10.58.0.9", "fd00:58::9"):
            stale = ["lladdr", "02:00:00:00:00:99", "nud", "reachable", "dev", "rdma0"]
            node.ip("neighbour", "add", address, *stale, netns=station.netns)
        sandbox = await runtime.add(pod("new", {}))
        [link] = node.ip("link", "show", "rdma0", netns=sandbox.netns)
        for address in ("10.58.0.9", "fd00:58::9"):
            [entry] = node.ip("neighbour", "show", address, netns=station.netns)
            assert entry["lladdr"] == link["address"]
        for each in (station, sandbox):
            await runtime.delete(each)

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_check_finds_a_removed_lease(node: Node) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=False, ours={"ipam": host_local(node, "10.56.0.0/24")})
        sandbox = await runtime.add(pod("p", {}))
        await runtime.check(sandbox)
        [lease] = (node.directory / "leases").glob("net/net/10.*")
        lease.unlink()
        with pytest.raises(CniError, match="plugin host-local: CHECK of eth0"):
            await runtime.check(sandbox)
        await runtime.delete(sandbox)

    asyncio.run(scenario())
    assert node.leftovers() == {}
