"""Addresses of whereabouts, which leases them in the cluster, for pods of real container runtimes."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from cluster.control_plane import write_kubeconfig
from cluster.real import obstacle
from cluster.world import cluster
from e2e.neighbours import folder, missing_plugins
from e2e.processes import pod
from e2e.real_pods import end, interfaces
from e2e.runtimes import RUNTIMES, runtime_obstacle

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from e2e.container_runtime import ContainerRuntime
    from e2e.node import Node

WHY_NOT = missing_plugins("whereabouts") or obstacle()

pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))


GROUP = "whereabouts.cni.cncf.io"
POOLS = f"/apis/{GROUP}/v1alpha1/namespaces/kube-system/ippools"


def definition(kind: str) -> dict[str, Any]:
    """Of a kind of object that whereabouts keeps its leases in."""
    plural = f"{kind.lower()}s"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": plural, "singular": kind.lower(), "kind": kind}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def use_whereabouts(node: Node, runtime: ContainerRuntime, kubeconfig: Path) -> None:
    """Ours is the only plugin, so that CHECK need not be off; its addresses are of the cluster."""
    file = node.directory / "whereabouts.conf"
    file.write_text(json.dumps({"datastore": "kubernetes", "kubernetes": {"kubeconfig": str(kubeconfig)}}))
    ours = {
        "ipam": {"type": "whereabouts", "range": "10.55.206.0/24", "configuration_path": str(file)},
        "interfaceNames": "rdma{i}",
        "delegate": json.loads(node.runtime(chained=True).conflist.read_text())["plugins"][0],
    }
    runtime.use(node.runtime(chained=False, ours=ours).conflist)
    runtime.wait(lambda: not runtime.cri.network_problem(), "no network")


@pytest.fixture
def node(make_node: Callable[[int], Node]) -> Node:
    return make_node(4)


@pytest.mark.parametrize("kind", RUNTIMES)
def test_interfaces_have_addresses_of_the_cluster_and_give_them_back(
    node: Node, tmp_path: Path, kind: str
) -> None:
    """Whereabouts has no CHECK, which CRI-O calls for every pod that it starts."""
    if why := runtime_obstacle(kind):
        pytest.skip(why)
    programs = [*node.cni_path, folder()]
    runtime = RUNTIMES[kind](node.directory / "c", plugins=programs, deadline_s=node.deadline_s)

    async def scenario() -> None:
        async with cluster("real", tmp_path) as made:
            for each in ("IPPool", "OverlappingRangeIPReservation"):
                await made.plane.add_crd(definition(each))
            kubeconfig = write_kubeconfig(tmp_path / "admin", made.plane, made.plane.admin_token)
            use_whereabouts(node, runtime, kubeconfig)
            sandbox = await asyncio.to_thread(runtime.cri.run_sandbox, pod("p", {}, {}))
            found = interfaces(node, runtime, sandbox)
            found.pop("eth0")
            assert sorted(found) == ["rdma0", "rdma1"]
            (pool,) = (await made.http.get(POOLS)).json()["items"]
            leases = pool["spec"]["allocations"]
            assert len(leases) == len({*found["rdma0"], *found["rdma1"]}) == 2
            assert {each["podref"] for each in leases.values()} == {"default/p"}
            await asyncio.to_thread(end, runtime, sandbox)
            (pool,) = (await made.http.get(POOLS)).json()["items"]
            assert pool["spec"]["allocations"] == {}

    with runtime:
        node.enter = runtime.entering
        node.start_agent()
        asyncio.run(scenario())
    assert node.leftovers() == {}
