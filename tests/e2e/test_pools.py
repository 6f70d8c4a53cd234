"""Pods that hold devices of an exclusive resource, on virtual SR-IOV, asked about at a kubelet's socket.

Virtual VFs have no RDMA devices, so no device plugin would offer them; kubelet names them here by address.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from e2e.node import PFS, Node, pod
from e2e.test_rebuild_ledger import keep, lost, rebuild, spoilt
from fakes.nodes import FakePodResources
from k8s_rdma.kube import grpc_calls
from k8s_rdma.wire.pod_resources import GET_METHOD, LIST, PodName
from k8s_rdma_demo.cluster.cni_plugin import CniError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from k8s_rdma.core.devices.pod_devices import PodDevices
    from k8s_rdma.wire.report import Interface
    from k8s_rdma_demo.cluster.sandboxes import Sandbox

RDMA = "tencent.com/rdma"


@pytest.fixture
def node(node: Node) -> Node:
    """VFs 0 to 2 of the first PF are in the pool."""
    resource = {"mode": "exclusive", "name": RDMA, "select": {"pfs": [f"{PFS[0]}#0-2"]}}
    plugin = {"resources": [resource], "podResources": str(node.directory / "kubelet.sock")}
    node.settings = {"devicePlugin": str(node.config("device-plugin", plugin))}
    node.kill_agent()
    node.start_agent()
    return node


@asynccontextmanager
async def kubelet(node: Node) -> AsyncIterator[FakePodResources]:
    """One that answers at its socket."""
    held = FakePodResources()

    async def get(asked: PodName) -> PodDevices:
        return await held.of_pod(*asked)

    async def every(_: None) -> Sequence[PodDevices]:
        return await held.all()

    server = grpc_calls.new_server()
    handlers = {GET_METHOD: grpc_calls.handler(GET_METHOD, get), LIST: grpc_calls.handler(LIST, every)}
    grpc_calls.add_service(server, handlers)
    server.add_insecure_port(grpc_calls.address(node.directory / "kubelet.sock"))
    await server.start()
    try:
        yield held
    finally:
        await server.stop(None)


def give(held: FakePodResources, node: Node, name: str, *vfs: int) -> None:
    held.allocate("default", name, RDMA, *(node.pfs[0].vf_pci(vf) for vf in vfs))


def interfaces(node: Node, name: str) -> list[Interface]:
    found = [each.interfaces for each in node.try_report().allocations if each.pod.name == name]
    return [interface for each in found for interface in each]


def names(node: Node, sandbox: Sandbox) -> list[str]:
    return sorted(link["ifname"] for link in node.ip("link", "show", netns=sandbox.netns))


def test_pod_gets_just_its_devices_behind_bridge_without_annotations(node: Node) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=True)
        async with kubelet(node) as held:
            give(held, node, "p", 2, 0)
            give(held, node, "rated", 1)
            sandbox = await runtime.add(pod("p"))
            assert names(node, sandbox) == ["eth0", "lo", "rdma0", "rdma1"]
            given = [(each.pf, each.vf, each.pool) for each in interfaces(node, "p")]
            assert given == [(node.pfs[0].pci, 0, RDMA), (node.pfs[0].pci, 2, RDMA)]
            rated = await runtime.add(pod("rated", {"min_tx_rate": 100, "max_tx_rate": 200}))
            assert node.rates()[PFS[0], 1] == ("100Mbit", "200Mbit")
            asking = await runtime.add(pod("asking", *({},) * 5))
            assert {each.pool for each in interfaces(node, "asking")} == {""}
            with pytest.raises(CniError, match="0 of 5 VFs free"):
                await runtime.add(pod("late", {}))
            ordinary = await runtime.add(pod("ordinary"))
            assert names(node, ordinary) == ["eth0", "lo"]
            (first, *_) = node.try_report().pfs
            assert (first.capacity_vfs, first.pools) == (1, {RDMA: 3})
            for each in (sandbox, rated, asking, ordinary):
                await runtime.delete(each)

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_no_pod_starts_while_the_agent_is_dead_and_all_end(node: Node) -> None:
    """Because their devices are unknown; this lasts until an agent starts without such a resource."""

    async def scenario() -> None:
        runtime = node.runtime(chained=True, ours={"timeoutMs": 2000})
        async with kubelet(node) as held:
            ordinary = await runtime.add(pod("ordinary"))
            node.kill_agent()
            give(held, node, "p", 0)
            for name in ("p", "another"):
                with pytest.raises(CniError) as refused:
                    await runtime.add(pod(name))
                assert refused.value.code == 11
            await runtime.delete(ordinary)
            node.start_agent()
            sandbox = await runtime.add(pod("p"))
            assert names(node, sandbox) == ["eth0", "lo", "rdma0"]
            await runtime.delete(sandbox)
            node.kill_agent()
            del node.settings["devicePlugin"]
            node.start_agent()
            node.kill_agent()
            await runtime.delete(await runtime.add(pod("another")))

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_no_pod_starts_while_kubelet_does_not_answer(node: Node) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=True)
        with pytest.raises(CniError) as refused:
            await runtime.add(pod("p"))
        assert refused.value.code == 11
        assert "kubelet" in str(refused.value)

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_rebuilt_ledger_knows_whose_devices_pods_hold(node: Node) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=True)
        async with kubelet(node) as held:
            give(held, node, "p", 1)
            give(held, node, "rated", 0, 2)
            sandboxes = [
                await runtime.add(pod("p")),
                await runtime.add(pod("rated", {"min_tx_rate": 50}, {"min_tx_rate": 70})),
                await runtime.add(pod("ordinary")),
            ]
            for each in sandboxes:
                keep(node, runtime, each)
            before = node.try_report().allocations
            node.kill_agent()
            spoilt(node, lost)
            done = await asyncio.to_thread(rebuild, node)  # which asks the kubelet of this loop
            assert done.returncode == 0, done.stdout + done.stderr
            node.start_agent()
            after = {each.container_id: each.interfaces for each in node.try_report().allocations}
            for each in before:
                now = [(it.vf, it.pool, it.entry, it.min_tx_rate) for it in after[each.container_id]]
                assert now == [(it.vf, it.pool, it.entry, it.min_tx_rate) for it in each.interfaces]
            for each in sandboxes:
                await runtime.delete(each)

    asyncio.run(scenario())
    assert node.leftovers() == {}
