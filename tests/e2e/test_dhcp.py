"""Addresses by the dhcp plugin, which leases them through the interface itself."""

from __future__ import annotations

import asyncio
import shutil
import subprocess

import pytest

from e2e.conftest import PLUGINS
from e2e.dhcp_server import DhcpServer
from e2e.node import Node, pod
from k8s_rdma_demo.cluster.cni_runtime import AttachError

DHCP = shutil.which("dhcp", path=PLUGINS)
pytestmark = pytest.mark.skipif(
    DHCP is None, reason="no CNI plugin dhcp: needs Debian's containernetworking-plugins"
)


def test_addresses_are_leased_by_dhcp_through_each_interface(node: Node) -> None:
    socket = node.directory / "dhcp.sock"
    daemon = subprocess.Popen(
        [str(DHCP), "daemon", "-socketpath", str(socket), "-broadcast"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    static = {"type": "static", "addresses": [{"address": "10.59.0.1/24"}]}
    ours = {
        "ipam": {"type": "dhcp", "daemonSocketPath": str(socket)},
        "networks": {"server": {"ipam": static}},
    }

    async def scenario() -> None:
        runtime = node.runtime(chained=True, ours=ours)
        station = await runtime.add(pod("station", text='[{"network": "server"}]'))
        with DhcpServer(station.netns, "rdma0", "10.59.0.0/24") as server:
            sandbox = await runtime.add(pod("p", {}, {}))
            addresses = {ip["address"] for ip in sandbox.result["ips"]} - {f"{sandbox.ips[0]}/24"}
            assert addresses == {"10.59.0.2/24", "10.59.0.3/24"}
            for name in ("rdma0", "rdma1"):
                [link] = node.ip("address", "show", name, netns=sandbox.netns)
                mac = bytes.fromhex(link["address"].replace(":", ""))
                [found] = [each["local"] for each in link["addr_info"] if each["family"] == "inet"]
                assert found == str(server.leases[mac])
            await runtime.delete(sandbox)
        await runtime.delete(station)

    try:
        node.wait("the dhcp daemon", socket.exists)
        asyncio.run(scenario())
        assert node.leftovers() == {}
    finally:
        daemon.kill()
        daemon.wait()


def test_add_says_so_when_the_dhcp_daemon_does_not_run(node: Node) -> None:
    ours = {"ipam": {"type": "dhcp", "daemonSocketPath": str(node.directory / "nowhere.sock")}}

    async def scenario() -> None:
        runtime = node.runtime(chained=True, ours=ours)
        with pytest.raises(AttachError, match="plugin dhcp: ADD of rdma0: error dialing DHCP daemon"):
            await runtime.add(pod("p", {}))

    asyncio.run(scenario())
    # Whether an address was leased is unknown, too. That is tried again, and ends the chain; the VF is home.
    left = node.leftovers()
    assert left["markers"]
    assert not [what for what in left if what.startswith(("links", "rates"))]
