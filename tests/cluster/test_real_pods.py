"""Pods that come and go beside a real kubelet, while others end, and while the agent or kubelet does."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from cluster.extenders import registration
from cluster.kubelet import Kubelet, obstacle
from cluster.offering import offering
from cluster.policies import apply_policies
from cluster.publishers import AGENT, prepare
from cluster.test_policies_injection import SINCE
from cluster.test_real_kubelet import (
    PCI_VARIABLE,
    SEEN,
    VFS,
    asks,
    build_dir,
    interfaces,
    kubelet_of,
    make_node,
    node,
    plugin_config,
    program,
    slot,
    start_agent,
    start_exact,
    start_plugin,
    verbs,
    vfs,
    with_cdi,
)
from cluster.webhook import running_webhook
from cluster.world import placement
from e2e.container_runtime import IMAGE
from k8s_rdma.config.devices import HUSTCAT_RESOURCE, SLOT_RESOURCE, DevicePluginConfig
from k8s_rdma.config.files import load_config
from k8s_rdma.deviceplugin.modes import modes_of
from k8s_rdma.doctor.cluster.pods import PodFact

if TYPE_CHECKING:
    from e2e.node import Node

__all__ = ["build_dir", "make_node", "node", "program"]

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(obstacle() is not None, reason=str(obstacle()))]

ROLLS = 10
SUCCESSORS = 5
RESTARTS = 3
UNDER_WAY_S = 2
"""For kubelet to have the sandbox made: the CNI executable waits for the agent then."""


async def runs_with_its_own(kubelet: Kubelet, node: Node, name: str, *containers: str) -> None:
    """Wait until a pod runs: its containers can open the nodes of the VFs in their variable, no others."""
    pod = await kubelet.running(name)
    for look in [kubelet.look(pod, container) for container in containers]:
        assert look.opens == {"rdma_cm", *(verbs(node)[pci] for pci in look.env[PCI_VARIABLE].split(","))}


async def nothing_is_left(kubelet: Kubelet, node: Node) -> None:
    await kubelet.until(lambda: not node.try_report().allocations)
    await kubelet.until(lambda: not node.leases())  # DEL of the plugin before ours comes last
    assert list(kubelet.cdi.glob("*")) == []
    assert node.leftovers() == {}


@with_cdi
async def test_pods_that_are_rolled_have_their_own_devices(node: Node, tmp_path: Path):
    async with kubelet_of(node, tmp_path) as kubelet:
        start_agent(node, kubelet, start_plugin(node, [{"mode": "exact", "count": 5 * ROLLS}]))
        await kubelet.counted(SLOT_RESOURCE, capacity=5 * ROLLS, allocatable=5 * ROLLS)
        for number in range(ROLLS):
            entries = {"min_tx_rate": 100}, {}
            await kubelet.create_pod(f"p{number}", slot("c"), slot("d"), annotations=interfaces(*entries))
            await runs_with_its_own(kubelet, node, f"p{number}", "c", "d")
            if number:
                await kubelet.delete_pod(f"p{number - 1}")
        await kubelet.delete_pod(f"p{ROLLS - 1}")
        await nothing_is_left(kubelet, node)


async def test_successor_waits_for_the_devices_of_a_pod_deleted_without_grace(node: Node, tmp_path: Path):
    """Each has all of them; kubelet gives them on before the predecessor's DEL."""
    async with kubelet_of(node, tmp_path) as kubelet:
        resources = [{"mode": "exclusive", "select": {"pfs": [node.pfs[0].name]}, "cdi": False}]
        config = str(plugin_config(node, resources))
        start_agent(node, kubelet, config)
        seen = replace(SEEN, devices=vfs(node), allocated={}, held_slots=frozenset())
        async with offering(kubelet.plugins, seen, *modes_of(load_config(DevicePluginConfig, config, {}))):
            await kubelet.counted(HUSTCAT_RESOURCE, capacity=VFS, allocatable=VFS)
            for number in range(SUCCESSORS):
                await kubelet.create_pod(f"p{number}", asks("c", VFS))
                pod = await kubelet.running(f"p{number}")
                assert len(kubelet.look(pod, "c").opens) == VFS + 1
                (allocation,) = node.try_report().allocations
                assert allocation.pod.name == f"p{number}"
                await kubelet.delete_pod(f"p{number}")
            await nothing_is_left(kubelet, node)


@with_cdi
async def test_pod_that_was_admitted_while_the_agent_was_dead_starts_once_it_is_back(
    node: Node, tmp_path: Path
):
    async with kubelet_of(node, tmp_path) as kubelet:
        await start_exact(node, kubelet)
        node.kill_agent()
        await kubelet.create_pod("p", slot("c"), annotations=interfaces({}))
        said = "FailedCreatePodSandBox", await kubelet.event("p", "FailedCreatePodSandBox")
        stuck = PodFact(name="default/p", node="n1", placed=True, running=False, events=(said,))
        assert stuck.last_said()[1].startswith("the k8s-rdma agent of this node cannot be reached at ")
        node.start_agent()
        await runs_with_its_own(kubelet, node, "p", "c")
        await kubelet.delete_pod("p")
        await nothing_is_left(kubelet, node)


@with_cdi
async def test_pod_ends_while_the_agent_is_dead(node: Node, tmp_path: Path):
    async with kubelet_of(node, tmp_path) as kubelet:
        await start_exact(node, kubelet)
        await kubelet.create_pod("p", slot("c"), annotations=interfaces({"min_tx_rate": 100}))
        await kubelet.running("p")
        node.kill_agent()
        await kubelet.delete_pod("p")
        await kubelet.until(lambda: len(node.deferred_deletions()) == 1)
        node.start_agent()
        assert node.deferred_deletions() == []
        await nothing_is_left(kubelet, node)


@with_cdi
async def test_pod_starts_whose_attachment_outlasted_kubelet(node: Node, tmp_path: Path):
    async with kubelet_of(node, tmp_path) as kubelet:
        await start_exact(node, kubelet)
        names = [f"p{number}" for number in range(RESTARTS)]
        for name in names:
            node.agent.send_signal(signal.SIGSTOP)
            await kubelet.create_pod(name, slot("c"), annotations=interfaces({}))
            await asyncio.sleep(UNDER_WAY_S)
            await kubelet.end()
            node.agent.send_signal(signal.SIGCONT)
            await kubelet.start()
            await runs_with_its_own(kubelet, node, name, "c")
        assert len(node.try_report().allocations) == RESTARTS
        for name in names:
            await kubelet.delete_pod(name)
        await nothing_is_left(kubelet, node)


EXAMPLES = Path(__file__).parents[2] / "examples/pods"


@with_cdi
async def test_example_pods_run_with_their_annotation_alone(node: Node, tmp_path: Path):
    """Slot and scheduler are of the policy or, before its release, of the webhook; all else is real."""
    async with kubelet_of(node, tmp_path) as kubelet, AsyncExitStack() as webhook:
        c = kubelet.cluster
        await prepare(c)
        if c.plane.release < SINCE:
            await webhook.enter_async_context(running_webhook(c, tmp_path))
        else:
            await apply_policies(c, "inject")
        node.settings = {
            "kubeconfig": str(c.directory / f"{AGENT}.kubeconfig"),
            "publish": {"rdmaNode": True, "leaseNamespace": "k8s-rdma"},
        }
        await start_exact(node, kubelet)
        extender = await c.running_extender(source="crd", nodePort=54005)
        profiles = [{"schedulerName": name} for name in ("default-scheduler", "rdma-scheduler")]
        async with c.plane.scheduler({**registration(extender.url), "profiles": profiles}):
            for name, count in (
                ("reservations-and-caps", 4),
                ("one-interface-a-rail", 2),
                ("without-rdma", 0),
            ):
                pod = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
                assert "schedulerName" not in pod["spec"]
                [container] = pod["spec"]["containers"]
                assert "resources" not in container
                container |= {
                    "image": IMAGE,
                    "imagePullPolicy": "Never",
                }  # which no registry need be asked for
                del container["command"]
                pod["spec"]["automountServiceAccountToken"] = False
                await c.create(pod)
                running = await kubelet.running(pod["metadata"]["name"])
                look = kubelet.look(running, container["name"])
                assert len(look.opens) == (count + 1 if count else 0)
                assert len([each for each in look.opens if each.startswith("uverbs")]) == count
                assert len(placement(running)) == count
                await kubelet.delete_pod(pod["metadata"]["name"])
            await nothing_is_left(kubelet, node)
