"""Traffic of pods, as the server shows it beside `ip`; and VFs left behind, adopted by the command line."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import httpx2

from e2e.node import PFS, Node, pod
from e2e.test_rest import URL, serve
from server.exposition_reader import Family, read
from warm_program import run

BROADCAST_100_KB = """
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
    out.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    for _ in range(100):
        out.sendto(bytes(1000), ("10.56.0.255", 9))
"""


def broadcast(netns: str) -> None:
    subprocess.run(["nsenter", f"--net={netns}", sys.executable, "-c", BROADCAST_100_KB], check=True)


def sent(node: Node, netns: str, ifname: str) -> int:
    """By `ip`, from within the pod."""
    link = next(each for each in node.ip("-s", "link", "show", netns=netns) if each["ifname"] == ifname)
    return int(link["stats64"]["tx"]["bytes"])


def of_pod(families: dict[str, Family], metric: str, name: str) -> float:
    """The value of the one sample that has this pod."""
    samples = families[f"k8s_rdma_{metric}_total"].samples
    (value,) = [value for (_, labels), value in samples.items() if ("pod", name) in labels]
    return value


def test_metrics_have_the_traffic_of_a_pod(node: Node) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        sandbox = await runtime.add(pod("a", {}))
        with httpx2.Client(base_url=URL, trust_env=False) as http:
            serve(node, http)
            broadcast(sandbox.netns)
            (ifname,) = [each["name"] for each in sandbox.result["interfaces"]]
            before = sent(node, sandbox.netns, ifname)
            assert before > 100_000
            found = read(http.get("/metrics").text)
            assert before <= of_pod(found, "vf_transmitted_bytes", "a") <= sent(node, sandbox.netns, ifname)
            assert of_pod(found, "vf_transmitted_packets", "a") >= 100
            assert len(found["k8s_rdma_vf_transmitted_bytes_total"].samples) == 1
            assert found["k8s_rdma_scan_duration_seconds"].samples
        await runtime.delete(sandbox)

    asyncio.run(scenario())


def leave_behind(pf: str, vf: int) -> None:
    """Set rates that the agent does not know; no event reports them either."""
    change = ["tc", "class", "change", "dev", f"{pf}-tx", "classid", f"1:{0x10 + vf:x}"]
    subprocess.run([*change, "htb", "rate", "50mbit", "ceil", "60mbit", "quantum", "60000"], check=True)


def adopt(node: Node, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(["agent", "adopt", "--run-dir", str(node.run_dir), *arguments])


def test_adopt_resets_settings_of_another_program(node: Node) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        held = await runtime.add(pod("a", {"min_tx_rate": 100}))
        before = node.rates()
        for pf in PFS:
            leave_behind(pf, 3)
        with node.reports() as reports:
            next(reports)
            done = adopt(node, "--all")
            assert done.returncode == 0, done.stderr
            assert done.stdout.count("reset") == 2
            assert node.rates() == before
        told = [line for line in node.log() if line["event"] == "vf_adoption"]
        assert [(line["pf"], line["vf"], line["outcome"]) for line in told] == [
            (pf, 3, "reset") for pf in PFS
        ]
        assert told[0]["previous"] == {"min_tx_rate": 50, "max_tx_rate": 60, "vlan": 0}
        named = adopt(node, "--pf", PFS[0], "--vf", str(held_index(node)))
        assert (named.returncode, "held by pod" in named.stdout) == (1, True)
        await runtime.delete(held)

    asyncio.run(scenario())
    assert node.leftovers() == {}


def held_index(node: Node) -> int:
    report = node.try_report()
    assert report is not None
    return report.allocations[0].interfaces[0].vf


def test_adopt_refuses_when_the_agent_is_dead(node: Node) -> None:
    node.kill_agent()
    refused = adopt(node, "--all")
    assert refused.returncode == 2
    assert "the agent is not running" in refused.stderr
