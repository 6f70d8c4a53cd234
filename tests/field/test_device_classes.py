"""DeviceClasses of other drivers by the name that ours has by default."""

from __future__ import annotations

from typing import Any

import pytest

from deviceplugin.offered_pf import offer
from extender.node_server import PF0, pf, report
from k8s_rdma.config.extender import ExtenderConfig
from k8s_rdma.core.inventory import CLAIMS_POOL
from k8s_rdma.doctor.cluster.claims import check_claims
from k8s_rdma.doctor.cluster.scheduler import SchedulerFacts
from k8s_rdma.doctor.collectors.claims import claim_facts
from k8s_rdma.wire.claims import DRIVER, Offers
from k8s_rdma.wire.cluster_claims import API
from k8s_rdma.wire.rdma_node import status_of
from k8s_rdma.wire.resource_slice import slice_specs

OURS = f'device.driver == "{DRIVER}"'
DRANET = ['device.driver == "dra.net"', 'device.attributes["dra.net"].rdma']
"""Selectors as DRANET's users write them for RDMA devices, under whatever name they like."""
STATUS = status_of(report("w1", pf(PF0, vfs=0, pools={CLAIMS_POOL: 4})))


class Cluster:
    """Documents of an API server."""

    def __init__(self, **classes: list[str]) -> None:
        self.allocatable: dict[str, str] = {}
        self.slices: list[dict[str, Any]] = []
        self.classes = [
            {
                "metadata": {"name": name},
                "spec": {"selectors": [{"cel": {"expression": expression}} for expression in expressions]},
            }
            for name, expressions in classes.items()
        ]

    def get(self, _path: str, _query: object = None) -> dict[str, Any] | None:
        return {"items": []}

    def text(self, _path: str) -> str:
        return ""

    def items(self, path: str, _query: object = None) -> list[dict[str, Any]]:
        return {
            f"{API}/deviceclasses": self.classes,
            f"{API}/resourceslices": self.slices,
            "/api/v1/nodes": [{"metadata": {"name": "w1"}, "status": {"allocatable": self.allocatable}}],
        }.get(path, [])


def found(cluster: Cluster) -> dict[str, Any]:
    facts = claim_facts(cluster, {"w1": STATUS}, SchedulerFacts(files=(), extender=ExtenderConfig()))
    return {each.id: each for each in check_claims(facts)}


@pytest.mark.parametrize(
    ("expressions", "driver"),
    [(DRANET, "dra.net"), (["device.attributes['x'].y"], "device.attributes['x'].y")],
)
def test_class_of_another_driver_is_named_and_another_name_advised(expressions: list[str], driver: str):
    told = found(Cluster(rdma=expressions))
    assert driver in told["claims-class-taken"].found
    assert "dra.deviceClass" in told["claims-no-class"].fix


def test_class_of_another_driver_is_named_beside_ours():
    told = found(Cluster(**{"rdma": DRANET, "k8s-rdma": [OURS]}))
    assert "claims-no-class" not in told
    assert told["claims-class-taken"].expected == "claims that name k8s-rdma"


def test_our_own_class_is_not_of_another_driver():
    assert "claims-class-taken" not in found(Cluster(rdma=[OURS]))
    assert "dra.deviceClass" not in found(Cluster())["claims-no-class"].fix


@pytest.mark.parametrize(
    ("allocatable", "told"),
    [
        ({"rdma/hca_shared_devices_a": "1k"}, True),
        ({"rdma/hca_shared_devices_a": "0"}, False),
        ({"rdma/hca_shared_devices_b": "63", "cpu": "8"}, False),
    ],
)
def test_resource_that_a_device_plugin_still_has_is_named(allocatable: dict[str, str], *, told: bool):
    """Its DaemonSet stayed: github.com/Mellanox/k8s-rdma-shared-dev-plugin, deployment/k8s."""
    cluster = Cluster(rdma=[OURS])
    cluster.classes[0]["spec"]["extendedResourceName"] = "rdma/hca_shared_devices_a"
    [spec] = slice_specs(Offers(node="w1", pfs=(offer("f0", pci=PF0),)))
    cluster.slices = [{"spec": spec}]
    cluster.allocatable = allocatable
    findings = found(cluster)
    assert ("claims-resource-counted" in findings) is told
    if told:
        assert findings["claims-resource-counted"].found.startswith("is in status.allocatable of w1: ")
