"""Agent and server from the image, as the DaemonSet runs them, on virtual PFs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import pytest

from e2e.node import pod
from image.contained_node import AGENT, ContainedNode
from k8s_rdma_demo.cluster.cni_plugin import CniError

if TYPE_CHECKING:
    from collections.abc import Callable

    from k8s_rdma_demo.cluster.cni_runtime import CniRuntime

    MakeNode = Callable[..., ContainedNode]

DOCUMENT = Path(__file__).parents[2] / "docs/image.md"
SERVER = "http://127.0.0.1:54005"
CONFLICT_FREE = {"type": "host-local", "ranges": [[{"subnet": "10.56.0.0/24"}], [{"subnet": "fd00:56::/64"}]]}


def dual_stack(node: ContainedNode) -> CniRuntime:
    """Its pods have addresses of both kinds, by a plugin of the node that the agent runs."""
    ipam = CONFLICT_FREE | {"dataDir": str(node.directory / "leases" / "rdma")}
    return node.runtime(chained=True, ours={"ipam": ipam})


def addresses(node: ContainedNode, netns: str) -> dict[str, list[int]]:
    """By interface: lengths of the prefixes of its addresses that are not link-local."""
    return {
        link["ifname"]: sorted(each["prefixlen"] for each in link["addr_info"] if each["scope"] == "global")
        for link in node.ip("address", "show", netns=netns)
        if link["ifname"] != "lo"
    }


def serve(node: ContainedNode, http: httpx2.Client) -> None:
    """Start the server; it answers when this returns."""
    node.start("server", node.config("server", {"runDir": str(node.run_dir)}))

    def answers() -> bool:
        try:
            return http.get("/healthz").status_code == 200
        except httpx2.TransportError:
            return False

    node.wait("the server", answers)


@pytest.mark.usefixtures("not_emulated")
def test_pods_get_bandwidth_and_addresses_and_everything_comes_home(make_node: MakeNode) -> None:
    node = make_node()
    node.start_agent()

    async def scenario() -> None:
        runtime = dual_stack(node)
        sandbox = await runtime.add(pod("p", {"min_tx_rate": 100, "max_tx_rate": 200}, {"min_tx_rate": 50}))
        assert addresses(node, sandbox.netns) == {"eth0": [24], "rdma0": [24, 64], "rdma1": [24, 64]}
        programmed = sorted(
            node.rates()[key] for key, free in node.pristine["rates"].items() if node.rates()[key] != free
        )
        assert programmed == [("100Mbit", "200Mbit"), ("50Mbit", "1Gbit")]
        node.kill_agent()
        node.start_agent()
        report = node.try_report()
        assert report is not None
        assert [len(each.interfaces) for each in report.allocations] == [2]
        await runtime.delete(sandbox)
        assert node.leftovers() == {}

    asyncio.run(scenario())


@pytest.mark.usefixtures("not_emulated")
def test_server_shows_interfaces_of_pods_without_any_privilege(make_node: MakeNode) -> None:
    node = make_node()
    with httpx2.Client(base_url=SERVER, trust_env=False) as http:
        serve(node, http)
        assert http.get("/readyz").status_code == 503
        node.start_agent()
        node.wait("the agent's report", lambda: http.get("/readyz").status_code == 200)

        async def scenario() -> None:
            runtime = dual_stack(node)
            sandbox = await runtime.add(pod("p", {"min_tx_rate": 100}))
            node.wait("the pod", lambda: bool(http.get("/v1/node").json()["allocations"]))
            assert sorted(pf["used_tx_rate"] for pf in http.get("/getpfs").json()) == [0, 100]
            assert "k8s_rdma_agent_reachable 1" in http.get("/metrics").text
            await runtime.delete(sandbox)

        asyncio.run(scenario())


def test_server_reaches_the_agent_and_the_agent_ends_at_a_signal(make_node: MakeNode) -> None:
    node = make_node()
    node.start_agent()
    with httpx2.Client(base_url=SERVER, trust_env=False) as http:
        serve(node, http)
        node.wait("the agent", lambda: "k8s_rdma_agent_reachable 1" in http.get("/metrics").text)
    assert node.agent is not None
    node.agent.terminate()
    assert node.agent.wait(node.deadline_s) == 0


FAILS_WITHOUT = {
    "NET_ADMIN": "rates of VF 0: EPERM",
    "NET_RAW": "announcing IPv6 addresses needs CAP_NET_RAW",
    "SYS_ADMIN": "setns: EPERM",
    "SYS_CHROOT": "unshare: cannot change root directory to '/host'",
}


def test_agent_has_no_capability_but_those_that_it_is_shown_to_need() -> None:
    assert set(AGENT) == set(FAILS_WITHOUT)


@pytest.mark.parametrize("capability", FAILS_WITHOUT)
def test_document_has_the_purpose_of_every_capability(capability: str) -> None:
    rows = [line for line in DOCUMENT.read_text().splitlines() if f"| `{capability}` |" in line]
    assert len(rows) == 1
    assert FAILS_WITHOUT[capability] in rows[0]


@pytest.mark.usefixtures("not_emulated")
@pytest.mark.parametrize("missing", AGENT)
def test_pod_is_refused_when_the_agent_lacks_a_capability(make_node: MakeNode, missing: str) -> None:
    node = make_node(tuple(each for each in AGENT if each != missing))

    async def scenario() -> None:
        node.start_agent()
        await dual_stack(node).add(pod("p", {"min_tx_rate": 100}))

    with pytest.raises(CniError) as refusal:
        asyncio.run(scenario())
    assert FAILS_WITHOUT[missing] in str(refusal.value)
