"""The agent dies, is absent, is stopped; pods and their annotations that cannot be served."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from e2e.node import ANNOTATIONS, DEADLINE_S, Node, pod
from e2e.test_attachments import inside
from k8s_rdma_demo.cluster.cni_plugin import CniError, Invocation, run_plugin
from k8s_rdma_demo.cluster.cni_runtime import AttachError, remove_namespace_at

if TYPE_CHECKING:
    from collections.abc import Callable

INVALID_ENVIRONMENT = 4
TRY_AGAIN_LATER = 11
MALFORMED_ANNOTATION = 100


@pytest.mark.parametrize(
    "moment",
    [lambda node: bool(node.leases("rdma")), Node.vf_away],
    ids=["first address leased", "first VF moved"],
)
def test_agent_killed_during_an_add_leaves_no_state_behind(
    make_node: Callable[[int], Node], moment: Callable[[Node], bool]
) -> None:
    node = make_node(32)
    node.start_agent()

    async def scenario() -> None:
        runtime = node.runtime(chained=True)
        adding = asyncio.create_task(runtime.add(pod("p", *[{"min_tx_rate": 10}] * 60)))
        await asyncio.to_thread(node.wait, "the moment", lambda: moment(node))
        node.kill_agent()
        with pytest.raises(AttachError) as failed:
            await adding
        # The runtime's own DEL found no agent either, and is left to the next one.
        assert failed.value.leftover is None
        [container] = node.markers()
        assert node.deferred_deletions() == [f"{container}:eth0:net"]
        assert node.leases("pods") == []
        node.start_agent()

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_agent_started_after_a_crash_needs_no_del_to_take_everything_back(node: Node) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        sandbox = await runtime.add(pod("p", {"min_tx_rate": 100}))
        node.kill_agent()
        remove_namespace_at(Path(sandbox.netns))
        node.start_agent()

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_network_that_is_taken_from_a_pod_while_the_agent_is_dead_is_gone_once_it_serves(node: Node) -> None:
    """The pod runs on: only the DEL says that it shall lose the network."""

    async def scenario() -> None:
        runtime = node.runtime(chained=True)
        sandbox = await runtime.add(pod("p", {"min_tx_rate": 100, "max_tx_rate": 200}))
        node.kill_agent()
        for _ in range(2):
            await runtime.detach(sandbox)
        assert node.deferred_deletions() == [f"{sandbox.container_id}:eth0:net"]
        assert node.rates() != node.pristine["rates"]
        node.start_agent()
        assert node.leftovers() == {}
        assert [each["ifname"] for each in node.ip("link", "show", netns=sandbox.netns)] == ["lo"]
        await runtime.attach(sandbox)
        assert node.leases("rdma") == ["10.56.0.3"]
        await runtime.delete(sandbox)

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_agent_killed_while_it_carries_out_left_deletions_continues_them(node: Node) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=True)
        sandboxes = [await runtime.add(pod(f"p{number}", {"min_tx_rate": 10})) for number in range(4)]
        node.kill_agent()
        for each in sandboxes:
            await runtime.detach(each)
        left, deaths = node.deferred_deletions(), 0
        while len(left) > 1:
            starting = node.start("agent", node.config("agent", node.document()))
            node.wait("the next one", lambda before=left: node.deferred_deletions() != before)
            starting.kill()
            starting.wait(node.deadline_s)
            left, deaths = node.deferred_deletions(), deaths + 1
        assert deaths
        node.start_agent()
        assert node.leftovers() == {}

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_running_pods_outlive_a_crash_of_the_agent(node: Node) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        sandbox = await runtime.add(pod("p", {"min_tx_rate": 100}))
        before = node.kernel_state(), node.ip("address", "show", "scope", "global", netns=sandbox.netns)
        node.kill_agent()
        node.start_agent()
        assert (
            node.kernel_state(),
            node.ip("address", "show", "scope", "global", netns=sandbox.netns),
        ) == before
        report = node.try_report()
        assert [each.container_id for each in report.allocations] == [sandbox.container_id]
        await runtime.delete(sandbox)

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_pod_with_a_request_is_to_be_tried_again_while_the_agent_is_dead(node: Node) -> None:
    node.kill_agent()

    async def scenario() -> None:
        for chained in (True, False):
            with pytest.raises(AttachError) as failed:
                await node.runtime(chained=chained).add(pod("p", {"min_tx_rate": 100}))
            assert failed.value.code == TRY_AGAIN_LATER
            assert failed.value.leftover is None

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_pods_without_requests_start_and_end_while_the_agent_is_dead(node: Node) -> None:
    node.kill_agent()

    async def scenario() -> None:
        runtime = node.runtime(chained=True)
        sandbox = await runtime.add(pod("plain"))
        assert [each["name"] for each in sandbox.result["interfaces"]][-1] == "eth0"
        assert sandbox.ips == ["10.244.0.2"]
        await runtime.delete(sandbox)

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_namespace_that_is_the_nodes_own_is_refused_and_its_del_succeeds(node: Node) -> None:
    async def scenario() -> None:
        own = f"/proc/{os.getpid()}/task/{threading.get_native_id()}/ns/net"
        conf = {"cniVersion": "1.0.0", "name": "net", "type": "k8s-rdma-cni", "runDir": str(node.run_dir)}
        asked = {ANNOTATIONS: {"rdma_interfaces_required": "[{}]"}}
        stdin = json.dumps(conf | {"runtimeConfig": asked}).encode()

        def call(command: str) -> Invocation:
            where = {"container_id": "c1", "netns": own, "ifname": "eth0"}
            return Invocation(command=command, path=tuple(node.cni_path), **where)

        with pytest.raises(CniError, match=r"CNI_NETNS /proc/.* is the node's own network namespace") as told:
            await run_plugin("k8s-rdma-cni", call("ADD"), stdin, node.deadline_s)
        assert told.value.code == INVALID_ENVIRONMENT
        assert await run_plugin("k8s-rdma-cni", call("DEL"), stdin, node.deadline_s) == b""

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_version_is_answered_while_the_agent_is_dead(node: Node) -> None:
    node.kill_agent()
    invocation = Invocation(command="VERSION", path=tuple(node.cni_path))
    stdout = asyncio.run(run_plugin("k8s-rdma-cni", invocation, b'{"cniVersion": "1.0.0"}', DEADLINE_S))
    assert {"0.4.0", "1.0.0", "1.1.0"} <= set(json.loads(stdout)["supportedVersions"])


def test_agent_stopped_by_a_signal_ends_with_0_and_leaves_pods_their_rates(node: Node) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        sandbox = await runtime.add(pod("p", {"min_tx_rate": 100, "max_tx_rate": 200}))
        before = node.kernel_state(), inside(node, sandbox)
        assert ("100Mbit", "200Mbit") in before[0]["rates"].values()
        node.agent.terminate()
        assert node.agent.wait(DEADLINE_S) == 0
        assert (node.kernel_state(), inside(node, sandbox)) == before
        assert node.log()[-1]["event"] == "agent_stopped"
        node.start_agent()
        await runtime.delete(sandbox)

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_agent_stopped_during_an_add_undoes_it(make_node: Callable[[int], Node]) -> None:
    node = make_node(32)
    node.start_agent()

    async def scenario() -> None:
        adding = asyncio.create_task(node.runtime(chained=False).add(pod("p", *[{"min_tx_rate": 10}] * 60)))
        await asyncio.to_thread(node.wait, "the first address", lambda: bool(node.leases("rdma")))
        node.agent.terminate()
        assert await asyncio.to_thread(node.agent.wait, DEADLINE_S) == 0
        with pytest.raises(AttachError) as failed:
            await adding
        assert failed.value.leftover is None

    asyncio.run(scenario())
    assert node.leftovers() == {}


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('[{"min_tx_rate": 100}, {"min_tx_rate": "fast"}]', "[1].min_tx_rate"),
        ('[{"min_tx_rate": 300, "max_tx_rate": 200}]', "[0]"),
        ("[{", "rdma_interfaces_required"),
    ],
)
def test_malformed_annotation_is_refused_by_field_without_effect(node: Node, text: str, field: str) -> None:
    with pytest.raises(AttachError) as failed:
        asyncio.run(node.runtime(chained=True).add(pod("p", text=text)))
    assert failed.value.code == MALFORMED_ANNOTATION
    assert field in failed.value.message
    assert "rdma_interfaces_required" in failed.value.message
    assert [line["pod"] for line in node.log() if line["event"] == "cni_call_refused"] == ["default/p"]
    assert failed.value.leftover is None
    assert node.leftovers() == {}


def test_pod_that_does_not_fit_is_refused_with_numbers_without_effect(node: Node) -> None:
    with pytest.raises(AttachError, match="needs 3 interfaces of 600 Mb/s; 2 PFs have 2000 Mb/s") as failed:
        asyncio.run(node.runtime(chained=False).add(pod("p", *[{"min_tx_rate": 600}] * 3)))
    assert failed.value.leftover is None
    assert node.leftovers() == {}


def test_ipam_plugin_without_free_addresses_fails_the_add_and_returns_its_addresses(node: Node) -> None:
    ipam = {
        "type": "host-local",
        "ranges": [[{"subnet": "10.56.0.0/24", "rangeStart": "10.56.0.2", "rangeEnd": "10.56.0.3"}]],
        "dataDir": str(node.directory / "leases" / "rdma"),
    }
    with pytest.raises(AttachError, match=r"host-local: ADD of eth\d") as failed:
        asyncio.run(node.runtime(chained=False, ours={"ipam": ipam}).add(pod("p", {}, {}, {})))
    assert failed.value.leftover is None
    assert node.leftovers() == {}
