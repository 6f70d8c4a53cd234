"""A ledger that is corrupt or lost, rebuilt from the knowledge of the kernel and the runtime."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from e2e.node import Node, pod
from e2e.processes import ANNOTATIONS
from k8s_rdma.config.devices import SLOT_RESOURCE
from k8s_rdma.core.devices.pod_devices import ContainerDevices, PodDevices
from k8s_rdma.kube import grpc_calls
from k8s_rdma.linux.receipts import Receipts
from k8s_rdma.wire.pod_resources import GET_METHOD, LIST, PodName
from k8s_rdma_demo.cluster.cni_plugin import CniError
from k8s_rdma_demo.cluster.cni_runtime import CniRuntime, remove_namespace_at

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from k8s_rdma_demo.cluster.sandboxes import Sandbox


def settings(node: Node) -> dict[str, object]:
    paths = {"cniCacheDirs": [str(cache(node))], "cniPath": ":".join(map(str, node.cni_path))}
    return node.document() | paths


def cache(node: Node) -> Path:
    return node.directory / "cni" / "results"


def keep(node: Node, runtime: CniRuntime, sandbox: Sandbox) -> None:
    """Write libcni's cache of an attachment, because the runtime here has no cache."""
    conflist = runtime.conflist.read_bytes()
    name = json.loads(conflist)["name"]
    document = {
        "kind": "cniCacheV1",
        "containerId": sandbox.container_id,
        "config": base64.b64encode(conflist).decode(),
        "ifName": "eth0",
        "networkName": name,
        "netns": sandbox.netns,
        "cniArgs": [
            ["IgnoreUnknown", "1"],
            ["K8S_POD_NAMESPACE", sandbox.pod.namespace],
            ["K8S_POD_NAME", sandbox.pod.name],
            ["K8S_POD_UID", sandbox.pod.uid],
        ],
        "capabilityArgs": {ANNOTATIONS: dict(sandbox.pod.annotations)},
        "result": sandbox.result,
    }
    cache(node).mkdir(parents=True, exist_ok=True)
    (cache(node) / f"{name}-{sandbox.container_id}-eth0").write_text(json.dumps(document))


def rebuild(node: Node) -> subprocess.CompletedProcess[str]:
    config = node.config("agent", settings(node) | node.settings)
    command = [sys.executable, "-m", "k8s_rdma", "agent", "--rebuild-ledger", "--config", str(config)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def spoilt(node: Node, spoil: Callable[[Path], None]) -> None:
    """Spoil the file, and remove the files beside it from which SQLite could restore it."""
    ledger = node.directory / "state" / "ledger.db"
    for beside in ledger.parent.glob("ledger.db-*"):
        beside.unlink()
    spoil(ledger)


def corrupt(ledger: Path) -> None:
    ledger.write_bytes(b"what a broken disk leaves of it" * 1000)


def lost(ledger: Path) -> None:
    ledger.unlink()


def emptied(ledger: Path) -> None:
    ledger.write_bytes(b"")


def inside(node: Node, sandbox: Sandbox) -> list[dict[str, object]]:
    """Interfaces and addresses, without the state of links, which the kernel may tell late."""
    found = node.ip("address", "show", "scope", "global", netns=sandbox.netns)
    return [{key: link[key] for key in link if key not in {"flags", "operstate"}} for link in found]


def held(node: Node) -> dict[str, tuple[object, list[object]]]:
    return {
        each.container_id: (
            each.pod,
            [
                (it.ifname, it.pf, it.vf, it.min_tx_rate, it.max_tx_rate, it.software_max_tx_rate)
                for it in each.interfaces
            ],
        )
        for each in node.try_report().allocations
    }


@pytest.mark.parametrize("spoil", [corrupt, lost, emptied])
@pytest.mark.parametrize("chained", [False, True])
def test_node_goes_on_with_a_rebuilt_ledger(node: Node, chained: bool, spoil: Callable[[Path], None]) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=chained)
        pods = [
            pod("p", {"min_tx_rate": 100, "max_tx_rate": 200}, {"mtu": 1400, "trust": True}),
            pod("q", {"min_tx_rate": 50}, {"max_tx_rate": 300, "enforce": "software"}),
        ]
        sandboxes = [await runtime.add(each) for each in pods]
        for each in sandboxes:
            keep(node, runtime, each)
        assert [cap for _, given in held(node).values() for *_, cap in given] == [0, 0, 0, 300]
        before = held(node), node.kernel_state(), [inside(node, each) for each in sandboxes]
        node.kill_agent()
        spoilt(node, spoil)
        refused = node.start("agent", node.config("agent", node.document()))
        assert refused.wait(node.deadline_s) == 2
        assert "k8s-rdma agent --rebuild-ledger" in (node.directory / "agent.log").read_text()
        with pytest.raises(CniError, match="cannot be reached"):  # it is made from the pods' state
            await runtime.detach(sandboxes[0])
        done = rebuild(node)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "2 attachments rebuilt" in done.stdout
        (node.directory / "agent.log").unlink()
        node.start_agent()
        assert (held(node), node.kernel_state(), [inside(node, each) for each in sandboxes]) == before
        for each in sandboxes:
            await runtime.delete(each)

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_interfaces_of_a_pod_without_its_sandbox_come_back_after_the_rebuild(node: Node) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        sandbox = await runtime.add(pod("p", {"min_tx_rate": 100}, {}))
        keep(node, runtime, sandbox)
        node.kill_agent()
        remove_namespace_at(Path(sandbox.netns))
        spoilt(node, corrupt)
        done = rebuild(node)
        assert "its sandbox is gone" in done.stdout, done.stdout + done.stderr
        node.start_agent()

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_vf_that_cannot_be_rebuilt_is_reported_and_stays_foreign(node: Node) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        sandbox = await runtime.add(pod("p", {"min_tx_rate": 100}))
        node.kill_agent()
        spoilt(node, corrupt)
        (cache(node)).mkdir(parents=True)
        (cache(node) / "net-x-eth0").write_text("{")
        done = rebuild(node)
        assert done.returncode == 1
        assert "of no attachment that is known" in done.stdout
        assert "net-x-eth0" in done.stdout
        assert "0 attachments rebuilt" in done.stdout
        node.start_agent()
        [foreign] = [vf for pf in node.try_report().pfs for vf in pf.foreign]
        assert "another network namespace" in foreign.why
        remove_namespace_at(Path(sandbox.netns))

    asyncio.run(scenario())


@pytest.mark.parametrize("refused_before", [False, True])
def test_end_that_was_left_to_the_agent_is_reported_if_the_runtime_forgot_its_pod(
    node: Node, refused_before: bool
) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=True)
        sandbox = await runtime.add(pod("p", {"min_tx_rate": 100}))
        cache(node).mkdir(parents=True)
        node.kill_agent()
        await runtime.delete(sandbox)
        [left] = node.deferred_deletions()
        spoilt(node, lost)
        if refused_before:
            refused = node.start("agent", node.config("agent", node.document()))
            assert refused.wait(node.deadline_s) == 2
        done = rebuild(node)
        assert done.returncode == 1, done.stderr
        assert f"{left}  " in done.stdout
        assert "its addresses stay leased" in done.stdout

    asyncio.run(scenario())


def test_ledger_is_not_rebuilt_while_an_agent_runs_or_when_it_is_in_order(node: Node) -> None:
    done = rebuild(node)
    assert done.returncode == 2
    assert "an agent is running" in done.stderr
    node.kill_agent()
    done = rebuild(node)
    assert done.returncode == 2
    assert "in order, with 0 attachments; start the agent" in done.stderr
    assert not list((node.directory / "state").glob("*spoilt*"))


def test_ledger_is_not_rebuilt_without_a_cache(node: Node) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=True)
        sandbox = await runtime.add(pod("p", {"min_tx_rate": 100}))
        node.kill_agent()
        spoilt(node, corrupt)
        done = rebuild(node)
        assert done.returncode == 2
        assert f"cniCacheDirs: none is there ({cache(node)})" in done.stderr
        assert not list((node.directory / "state").glob("*spoilt*"))
        keep(node, runtime, sandbox)
        assert "1 attachments rebuilt" in rebuild(node).stdout
        node.start_agent()
        await runtime.delete(sandbox)

    asyncio.run(scenario())
    assert node.leftovers() == {}


@asynccontextmanager
async def kubelet_with_slot(socket: Path) -> AsyncIterator[None]:
    """Says that pod p has a slot."""
    held = ContainerDevices(container="app", resource=SLOT_RESOURCE, ids=("slot-3",))
    known = PodDevices(namespace="default", name="p", devices=(held,))

    async def one(_: PodName) -> PodDevices:
        return known

    async def every(_: None) -> tuple[PodDevices, ...]:
        return (known,)

    server = grpc_calls.new_server()
    handlers = {GET_METHOD: grpc_calls.handler(GET_METHOD, one), LIST: grpc_calls.handler(LIST, every)}
    grpc_calls.add_service(server, handlers)
    server.add_insecure_port(grpc_calls.address(socket))
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


def test_slots_are_known_again_after_a_rebuild_if_kubelet_answers(node: Node) -> None:
    plugin, kubelet, cdi = (node.directory / name for name in ("plugin.yaml", "kubelet.sock", "cdi"))
    plugin.write_text(json.dumps({"podResources": str(kubelet), "resources": [{"mode": "exact"}]}))
    node.settings = {"devicePlugin": str(plugin), "cdiDir": str(cdi), "podResourcesTimeoutS": 1}
    node.kill_agent()
    node.start_agent()

    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        async with kubelet_with_slot(kubelet):
            sandbox = await runtime.add(pod("p", {"min_tx_rate": 100}))
            [told] = cdi.iterdir()
            assert told.name == "k8s-rdma.io-slot_k8s-rdma.io_slot.slot-3.json"
            before = told.read_bytes()
            keep(node, runtime, sandbox)
            node.kill_agent()
            told.unlink()
            spoilt(node, corrupt)
            done = await asyncio.to_thread(rebuild, node)
            assert done.returncode == 0, done.stdout + done.stderr
        node.start_agent()  # without kubelet, which it does not need now
        assert told.read_bytes() == before
        node.kill_agent()
        spoilt(node, corrupt)
        done = rebuild(node)
        assert done.returncode == 1
        assert "slots" in done.stdout
        node.start_agent()
        assert list(cdi.iterdir()) == []
        await runtime.delete(sandbox)

    asyncio.run(scenario())
    assert node.leftovers() == {}


def test_slots_of_two_pods_of_one_name_are_the_newer_ones_after_a_rebuild(node: Node) -> None:
    """Kubelet knows pods by their names: the old one's sandbox is still there, its slot is given on."""
    plugin, kubelet, cdi = (node.directory / name for name in ("plugin.yaml", "kubelet.sock", "cdi"))
    plugin.write_text(json.dumps({"podResources": str(kubelet), "resources": [{"mode": "exact"}]}))
    node.settings = {"devicePlugin": str(plugin), "cdiDir": str(cdi), "podResourcesTimeoutS": 1}
    node.kill_agent()
    node.start_agent()

    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        async with kubelet_with_slot(kubelet):
            old = await runtime.add(pod("p", {"min_tx_rate": 100}))
            new = await runtime.add(replace(pod("p", {"min_tx_rate": 200}), uid="uid-new"))
            keep(node, runtime, old)
            keep(node, runtime, new)
            [told] = cdi.iterdir()
            before = told.read_bytes()
            node.kill_agent()
            spoilt(node, corrupt)
            done = await asyncio.to_thread(rebuild, node)
            assert done.returncode == 0, done.stdout + done.stderr
        with closing(Receipts(node.directory / "state" / "ledger.db")) as receipts:
            rebuilt = receipts.load().receipts.values()
        assert {each.pod.uid: len(each.slots) for each in rebuilt} == {"uid-p": 0, "uid-new": 1}
        node.start_agent()
        await runtime.delete(old)
        assert told.read_bytes() == before
        await runtime.delete(new)
        assert list(cdi.iterdir()) == []

    asyncio.run(scenario())
    assert node.leftovers() == {}
