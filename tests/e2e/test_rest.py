"""The server's answers about a node, compared with the output of `ip` and `tc`."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import httpx2

from e2e.node import PFS, Node, pod
from k8s_rdma.linux.virtual.pf import FLOOR

if TYPE_CHECKING:
    from k8s_rdma_demo.cluster.sandboxes import Sandbox

URL = "http://127.0.0.1:54005"


def serve(node: Node, http: httpx2.Client) -> None:
    """Start the server; it has the agent's report when this returns."""
    config = node.directory / "server.yaml"
    config.write_text(json.dumps({"runDir": str(node.run_dir)}))
    node.start("server", config)

    def answers() -> bool:
        try:
            return http.get("/v1/node").is_success
        except httpx2.TransportError:
            return False

    node.wait("the server", answers)


def in_tc_words(min_mbps: int, max_mbps: int) -> tuple[str, str]:
    """As `tc` shows these rates; minimum 0 is the floor, maximum 0 a little more than the link."""
    floor = f"{FLOOR * 8 // 1000}Kbit"
    return f"{min_mbps}Mbit" if min_mbps else floor, f"{max_mbps}Mbit" if max_mbps else "1Gbit"


def macs(node: Node, sandboxes: list[Sandbox]) -> dict[str, str]:
    """MAC of every VF by ifname, those in sandboxes by container and ifname."""
    found = {link["ifname"]: link["address"] for link in node.ip("link", "show")}
    for sandbox in sandboxes:
        for link in node.ip("link", "show", netns=sandbox.netns):
            found[f"{sandbox.container_id}/{link['ifname']}"] = link["address"]
    return found


def check(node: Node, http: httpx2.Client, sandboxes: list[Sandbox]) -> None:
    """Both documents against the kernel."""
    shown, rates = macs(node, sandboxes), node.rates()
    pfs: list[dict[str, Any]] = http.get("/getpfs").raise_for_status().json()
    assert [pf["name"] for pf in pfs] == list(PFS)
    for pf in pfs:
        assert (pf["capacity_vfs"], pf["capacity_tx_rate"]) == (len(pf["vfs"]), 1000)
        assert pf["used_tx_rate"] == sum(vf["min_tx_rate"] for vf in pf["vfs"])
        for vf in pf["vfs"]:
            netdev = f"{pf['name']}v{vf['vf']}"
            assert vf["allocated"] == (netdev not in shown)
            assert shown.get(netdev, vf["mac"]) == vf["mac"]
            assert rates[pf["name"], vf["vf"]] == in_tc_words(vf["min_tx_rate"], vf["max_tx_rate"])
        assert pf["used_vfs"] == sum(vf["allocated"] for vf in pf["vfs"])
    node_document = http.get("/v1/node").raise_for_status().json()
    names = {pf["pci"]: pf["name"] for pf in node_document["pfs"]}
    assert {each["container_id"] for each in node_document["allocations"]} == {
        sandbox.container_id for sandbox in sandboxes
    }
    for allocation in node_document["allocations"]:
        for interface in allocation["interfaces"]:
            assert interface["mac"] == shown[f"{allocation['container_id']}/{interface['ifname']}"]
            of_tc = rates[names[interface["pf"]], interface["vf"]]
            assert of_tc == in_tc_words(interface["min_tx_rate"], interface["max_tx_rate"])


def test_server_agrees_with_the_kernel_before_during_and_after_pods(node: Node) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=True)
        with httpx2.Client(base_url=URL, trust_env=False) as http:
            serve(node, http)
            check(node, http, [])
            pods = [pod("a", {"min_tx_rate": 600, "max_tx_rate": 700}, {"min_tx_rate": 600}), pod("b", {})]
            sandboxes = [await runtime.add(each) for each in pods]
            node.wait("both pods in the server", lambda: len(allocations(http)) == 2)
            check(node, http, sandboxes)
            for sandbox in sandboxes:
                await runtime.delete(sandbox)
            node.wait("no pods in the server", lambda: allocations(http) == [])
            check(node, http, [])

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_server_says_that_the_ledger_is_unavailable_while_the_agent_is_dead(node: Node) -> None:
    with httpx2.Client(base_url=URL, trust_env=False) as http:
        serve(node, http)
        node.kill_agent()
        node.wait("the server's notice", lambda: http.get("/v1/node").status_code == 503)
        node.start_agent()
        node.wait("the server's recovery", lambda: http.get("/v1/node").is_success)
        check(node, http, [])


def allocations(http: httpx2.Client) -> list[Any]:
    return list(http.get("/v1/node").raise_for_status().json()["allocations"])
