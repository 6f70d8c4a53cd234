"""Settings that pods request besides rates, on virtual SR-IOV: set while they run, and gone with them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from e2e.node import PFS, Node, pod
from k8s_rdma_demo.cluster.cni_runtime import AttachError, remove_namespace_at

if TYPE_CHECKING:
    from k8s_rdma_demo.cluster.sandboxes import PodRef

MAC = "02:11:22:33:44:55"
ASKED = {
    "name": "storage",
    "min_tx_rate": 100,
    "mac": MAC,
    "mtu": 1400,
    "trust": True,
    "spoof_check": False,
    "link_state": "enable",
    "pf": PFS[1],
}
SAID = {"mac": MAC, "trust": True, "spoof_check": False, "link_state": "enable"}
"""By the port of such a VF."""


def asking(name: str, *interfaces: dict[str, Any]) -> PodRef:
    return pod(name, text=json.dumps(interfaces))


def said_by_ports(node: Node) -> list[dict[str, Any]]:
    """Return the settings of ports that no new VF has."""
    aliases = (link.get("ifalias") for link in node.ip("link", "show") if link["ifname"].startswith(PFS[1]))
    said = [json.loads(alias) for alias in aliases if alias and "pci" not in alias]
    return [settings for each in said if (settings := {k: v for k, v in each.items() if k != "given"})]


@pytest.mark.parametrize("namespace", ["lives", "is destroyed"])
def test_pod_has_requested_settings_and_none_of_them_stays(node: Node, namespace: str) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        sandbox = await runtime.add(asking("p", {"min_tx_rate": 10}, ASKED))
        (link,) = node.ip("link", "show", "storage", netns=sandbox.netns)
        assert (link["address"], link["mtu"], "UP" in link["flags"]) == (MAC, 1400, True)
        told = {each["name"]: each["mac"] for each in sandbox.result["interfaces"]}
        assert told["storage"] == MAC
        assert said_by_ports(node) == [SAID]
        if namespace == "is destroyed":
            remove_namespace_at(Path(sandbox.netns))
        await runtime.delete(sandbox)

    asyncio.run(scenario())
    assert said_by_ports(node) == []
    assert node.leftovers() == {}


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"driver": "vfio-pci"}, "vfio-pci"),
        ({"vlan": 5, "qos": 3}, "qos"),
        ({"vlan": 5, "vlan_proto": "802.1ad"}, "vlan_proto"),
        ({"guid": "00:11:22:33:44:55:66:77"}, "guid"),
        ({"mtu": 9000}, "9000"),
    ],
    ids=str,
)
def test_pod_is_refused_with_the_reason_when_its_interface_cannot_be_so(
    node: Node, asked: dict[str, Any], why: str
) -> None:
    async def scenario() -> None:
        with pytest.raises(AttachError, match=why) as caught:
            await node.runtime(chained=False).add(asking("p", asked))
        assert caught.value.leftover is None

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_pod_is_refused_the_mac_of_a_pf_because_it_would_get_traffic_of_the_node(node: Node) -> None:
    [pf] = node.ip("link", "show", "dev", PFS[0])

    async def scenario() -> None:
        with pytest.raises(AttachError, match=f"which PF {PFS[0]} itself has"):
            await node.runtime(chained=False).add(asking("p", {"mac": pf["address"]}))

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_vf_of_a_killed_agent_comes_home_with_its_settings_of_before(node: Node) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        sandbox = await runtime.add(asking("p", {"min_tx_rate": 10}, ASKED))
        node.kill_agent()
        node.start_agent()
        assert said_by_ports(node) == [SAID]
        await runtime.delete(sandbox)

    asyncio.run(scenario())
    assert said_by_ports(node) == []
    assert node.leftovers() == {}
