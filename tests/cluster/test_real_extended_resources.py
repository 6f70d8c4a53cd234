"""Pods by limits alone, from a real kube-scheduler and kubelet to the interface in the container."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cluster.test_real_dra import (
    API,
    METADATA,
    WHY_NOT,
    build_dir,
    claims_cluster,
    make_node,
    node,
    prepared_on,
    program,
)
from cluster.test_real_kubelet import verbs, with_cdi
from e2e.container_runtime import IMAGE
from test_extended_resource_examples import EXAMPLES, objects

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.control_plane import Json
    from cluster.test_real_dra import Cluster
    from e2e.node import Node

__all__ = ["build_dir", "make_node", "node", "program"]

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)), with_cdi]

RESOURCE = "k8s-rdma.io/vf"
VARIABLE = "K8S_RDMA_CLAIM_EXTENDED_RESOURCES_CONTAINER_0_REQUEST_0"


def limited(name: str, count: int = 1) -> Json:
    """A container that asks for VFs by its limits."""
    return {
        "name": name,
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "resources": {"limits": {RESOURCE: str(count)}},
    }


async def name_resource(cluster: Cluster, **spec: object) -> None:
    """Give the DeviceClass the spec that the chart's has. spec: more of it."""
    [device_class] = [
        each
        for each in objects(EXAMPLES / "extended-resources" / "pod.yaml")
        if each["kind"] == "DeviceClass"
    ]
    assert device_class["spec"]["extendedResourceName"] == RESOURCE
    await cluster.kubelet.cluster.patch(
        f"{API}/deviceclasses/rdma", {"spec": {**device_class["spec"], **spec}}
    )


async def test_pod_gets_one_vf_by_its_limits_alone_and_gives_it_back(node: Node, tmp_path: Path):
    async with claims_cluster(node, tmp_path) as cluster:
        await cluster.until_published()
        await name_resource(cluster)
        plain = {"name": "other", "image": IMAGE, "imagePullPolicy": "Never"}
        await cluster.create_pod("p", containers=[limited("c"), plain], resourceClaims=[])
        assert await cluster.interfaces("p") == {"rdma0": (0, 0)}
        pod = await cluster.kubelet.running("p")
        claim_name = pod["status"]["extendedResourceClaimStatus"]["resourceClaimName"]
        look = cluster.kubelet.look(pod, "c")
        assert look.opens == {"rdma_cm", verbs(node)[look.env[VARIABLE]]}
        assert cluster.kubelet.look(pod, "other").opens == set()
        path = METADATA.replace("/p/net/", f"/{claim_name}/container-0-request-0/")
        assert look.env[VARIABLE] in cluster.kubelet.read(pod, "c", path)
        assert prepared_on(node) == [claim_name]
        await cluster.kubelet.delete_pod("p")
        await cluster.kubelet.until(lambda: not node.try_report().allocations)
        await cluster.kubelet.until(lambda: not prepared_on(node))
        await cluster.kubelet.until(lambda: not list(cluster.kubelet.cdi.glob("*claim*")))
        assert node.leftovers() == {}


async def test_class_caps_interfaces_by_limits_of_pods(node: Node, tmp_path: Path):
    """As `examples/extended-resources/mellanox.yaml`, with a cap below this link."""
    parameters = {"apiVersion": "k8s-rdma.io/v1", "kind": "InterfaceConfig", "maxTxRate": "200M"}
    config = [{"opaque": {"driver": "rdma.k8s-rdma.io", "parameters": parameters}}]
    async with claims_cluster(node, tmp_path) as cluster:
        await cluster.until_published()
        await name_resource(cluster, config=config)
        for name in ("p", "q"):
            await cluster.create_pod(name, containers=[limited("c")], resourceClaims=[])
            assert await cluster.interfaces(name) == {"rdma0": (0, 200)}
