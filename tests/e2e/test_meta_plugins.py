"""Real plugins behind ours, as networks of sriov-network-operator have them (`metaPlugins`): tuning, sbr."""

from __future__ import annotations

import asyncio
import json
import subprocess
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from e2e.node import Node, pod
from k8s_rdma_demo.cluster.cni_plugin import CniError
from k8s_rdma_demo.cluster.cni_runtime import remove_namespace_at

if TYPE_CHECKING:
    from k8s_rdma_demo.cluster.cni_runtime import CniRuntime
    from k8s_rdma_demo.cluster.sandboxes import Sandbox

META = ("tuning", "sbr")
SYSCTL = "net.ipv4.conf.eth0.rp_filter"


@pytest.fixture(autouse=True)
def _need_plugins(node: Node) -> None:
    missing = [name for name in META if not any((directory / name).exists() for directory in node.cni_path)]
    if missing:
        pytest.skip(f"no CNI plugins {', '.join(missing)}: containernetworking-plugins has them")


def runtime_of(node: Node, meta: tuple[str, ...] = META) -> CniRuntime:
    """A network of one interface, as its NetworkAttachmentDefinition would have it."""
    runtime = node.runtime(chained=False)
    network = json.loads(runtime.conflist.read_text())
    plugins = [
        {
            "type": "tuning",
            "dataDir": str(node.directory / "tuning"),
            "sysctl": {SYSCTL: "2"},
            "mtu": 1400,
            "promisc": True,
            "allmulti": True,
        },
        {"type": "sbr"},
    ]
    network["plugins"] += [plugin for plugin in plugins if plugin["type"] in meta]
    runtime.conflist.write_text(json.dumps(network))
    return runtime


def within(sandbox: Sandbox, *command: str) -> str:
    entered = ["nsenter", f"--net={sandbox.netns}", *command]
    return subprocess.run(entered, capture_output=True, text=True, check=True).stdout


def settings(node: Node, sandbox: Sandbox) -> dict[str, Any]:
    [link] = node.ip("link", "show", "eth0", netns=sandbox.netns)
    rules = node.ip("rule", "show", netns=sandbox.netns)
    return {
        "mtu": link["mtu"],
        "promisc": "PROMISC" in link["flags"],
        "allmulti": "ALLMULTI" in link["flags"],
        "rp_filter": within(sandbox, "cat", f"/proc/sys/{SYSCTL.replace('.', '/')}").strip(),
        "rules": [rule["src"] for rule in rules if rule["src"] != "all"],
    }


TUNED = {"mtu": 1400, "promisc": True, "allmulti": True, "rp_filter": "2", "rules": ["10.56.0.2"]}


def test_tuning_and_sbr_act_on_our_interface_and_leave_no_trace(node: Node) -> None:
    async def scenario() -> None:
        runtime = runtime_of(node)
        sandbox = await runtime.add(pod("p", {"min_tx_rate": 100}))
        assert settings(node, sandbox) == TUNED
        await runtime.check(sandbox)
        await runtime.delete(sandbox)

    asyncio.run(scenario())
    assert node.leftovers() == {}


@pytest.mark.parametrize("meta", [("tuning",), META])
def test_pod_whose_namespace_is_gone_leaves_no_tuning_to_the_next(node: Node, meta: tuple[str, ...]) -> None:
    """The VF's home state is ours to restore then. `sbr` 1.1.1 fails DEL, so that ours is not called at all.

    Source: https://github.com/containernetworking/plugins/pull/892.
    """

    async def scenario() -> None:
        runtime = runtime_of(node, meta)
        sandbox = await runtime.add(pod("p", {"min_tx_rate": 100}))
        remove_namespace_at(Path(sandbox.netns))
        with suppress(CniError) if "sbr" in meta else nullcontext():
            await runtime.detach(sandbox)
        node.wait("the VF is free again", lambda: node.leftovers() == {})
        alone = node.runtime(chained=False)
        again = await alone.add(pod("q", {"min_tx_rate": 100}))
        [link] = node.ip("link", "show", "eth0", netns=again.netns)
        assert link["mtu"] == 1500
        assert not {"PROMISC", "ALLMULTI"} & set(link["flags"])
        await alone.delete(again)

    asyncio.run(scenario())
    assert node.leftovers() == {}
