"""Many pods of a node at the same time, through the real executable and agent."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from e2e.node import Node, pod
from e2e.test_attachments import inside, rated, told

if TYPE_CHECKING:
    from collections.abc import Callable

    from k8s_rdma_demo.cluster.cni_runtime import CniRuntime
    from k8s_rdma_demo.cluster.sandboxes import Sandbox

PODS = 16
SLOW = """#!/bin/sh
# An IPAM plugin that stands still in every ADD until its test says go on.
if [ "$CNI_COMMAND" = ADD ]; then
  touch "{directory}/waiting"
  while ! [ -e "{directory}/go-on" ]; do sleep 0.02; done
fi
exec "{host_local}"
"""


@pytest.fixture
def node(make_node: Callable[[int], Node]) -> Node:
    node = make_node(PODS)
    node.start_agent()
    return node


def wishes() -> list[tuple[dict[str, int], ...]]:
    """Of each pod, all different: 1 or 2 interfaces, and rates that add up to less than the links."""
    return [
        ({"min_tx_rate": 20 + number, "max_tx_rate": 100 + number},) + ({},) * (number % 2)
        for number in range(PODS)
    ]


def wanted(wish: tuple[dict[str, int], ...]) -> list[tuple[str, str]]:
    """Rates of a pod's reserved interfaces as `tc` prints them."""
    return [(f"{each['min_tx_rate']}Mbit", f"{each['max_tx_rate']}Mbit") for each in wish if each]


def test_sixteen_pods_at_once_get_requested_interfaces_and_all_come_home(node: Node) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        pods = [pod(f"p{number}", *wish) for number, wish in enumerate(wishes())]
        sandboxes = await asyncio.gather(*map(runtime.add, pods))
        found = [inside(node, sandbox) for sandbox in sandboxes]
        assert found == [told(sandbox) for sandbox in sandboxes]
        assert [len(each) for each in found] == [len(wish) for wish in wishes()]
        macs = [link["mac"] for each in found for link in each.values()]
        addresses = [link["addresses"][0] for each in found for link in each.values()]
        assert len(macs) == len(set(macs)) == len(set(addresses)) == PODS + PODS // 2
        assert rated(node) == sorted(rate for wish in wishes() for rate in wanted(wish))
        await asyncio.gather(*map(runtime.delete, sandboxes))

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_pods_that_come_while_others_go_share_no_function(node: Node) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        first = [pod(f"a{number}", {"min_tx_rate": 50, "max_tx_rate": 60}, {}) for number in range(PODS // 2)]
        second = [pod(f"b{number}", {"min_tx_rate": 70, "max_tx_rate": 80}) for number in range(PODS // 2)]
        old = await asyncio.gather(*map(runtime.add, first))
        outcome = await asyncio.gather(*map(runtime.delete, old), *map(runtime.add, second))
        new: list[Sandbox] = outcome[len(old) :]
        found = [inside(node, sandbox) for sandbox in new]
        assert found == [told(sandbox) for sandbox in new]
        assert len({link["mac"] for each in found for link in each.values()}) == len(second)
        assert rated(node) == [("70Mbit", "80Mbit")] * len(second)
        await asyncio.gather(*map(runtime.delete, new))

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_as_many_as_there_is_room_for_start_of_pods_that_want_too_much(node: Node) -> None:
    """The links carry 2,000 Mb/s: six of 300 fit, whichever come first, and no seventh."""

    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        pods = [pod(f"p{number}", {"min_tx_rate": 300}) for number in range(PODS)]
        outcome = await asyncio.gather(*map(runtime.add, pods), return_exceptions=True)
        started = [each for each in outcome if not isinstance(each, BaseException)]
        refused = [each for each in outcome if isinstance(each, BaseException)]
        assert len(started) == 6
        assert all("300 Mb/s" in str(each) for each in refused), refused
        assert [rates[0] for rates in rated(node)] == ["300Mbit"] * 6
        await asyncio.gather(*map(runtime.delete, started))

    asyncio.run(scenario())
    assert node.leftovers() == {}


def runtime_with_slow_addresses(node: Node) -> CniRuntime:
    """As `node.runtime`, with SLOW before its IPAM plugin; its output is in the node's directory."""
    host_local = shutil.which("host-local", path=":".join(map(str, node.cni_path)))
    plugin = node.directory / "plugins" / "slow-host-local"
    plugin.parent.mkdir()
    plugin.write_text(SLOW.format(directory=node.directory, host_local=host_local))
    plugin.chmod(0o755)
    ipam = {"type": plugin.name, "ranges": [[{"subnet": "10.57.0.0/24"}]], "dataDir": str(plugin.parent)}
    usual = node.runtime(chained=False, ours={"ipam": ipam})
    conflist = usual.conflist.rename(node.directory / "slow.conflist")
    return replace(usual, conflist=conflist, cni_path=[*usual.cni_path, plugin.parent])


def test_pod_whose_ipam_plugin_stands_still_holds_up_no_other(node: Node) -> None:
    async def scenario() -> None:
        slow = runtime_with_slow_addresses(node)
        waiting = asyncio.create_task(slow.add(pod("slow", {"min_tx_rate": 100, "max_tx_rate": 200})))
        while not (node.directory / "waiting").exists():
            assert not waiting.done(), waiting.result()
            await asyncio.sleep(0.01)
        quick = node.runtime(chained=False)
        others = await asyncio.gather(*(quick.add(pod(f"p{n}", {"min_tx_rate": 10})) for n in range(4)))
        found = [inside(node, sandbox) for sandbox in others]
        await asyncio.gather(*map(quick.delete, others))
        assert not waiting.done()
        (node.directory / "go-on").touch()
        sandbox = await waiting
        assert inside(node, sandbox) == told(sandbox)
        macs = [link["mac"] for each in (*found, inside(node, sandbox)) for link in each.values()]
        assert len(set(macs)) == len(macs) == 5
        await slow.delete(sandbox)

    asyncio.run(scenario())
    assert node.leftovers() == {}
