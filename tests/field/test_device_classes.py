"""DeviceClasses of other drivers by the name that ours has by default."""

from __future__ import annotations

import json
from typing import Any

import pytest

from extender.node_server import PF0, pf, report
from k8s_rdma.core.inventory import CLAIMS_POOL
from k8s_rdma.doctor.cluster.claims import check_claims
from k8s_rdma.doctor.cluster.scheduler import SchedulerFacts
from k8s_rdma.doctor.collectors.processes import claim_facts
from k8s_rdma.extender.config import ExtenderConfig
from k8s_rdma.wire.claims import DRIVER
from k8s_rdma.wire.rdma_node import encode_status, status_of

OURS = f'device.driver == "{DRIVER}"'
DRANET = ['device.driver == "dra.net"', 'device.attributes["dra.net"].rdma']
"""Selectors as DRANET's users write them for RDMA devices, under whatever name they like."""
STATUS = json.loads(encode_status(status_of(report("w1", pf(PF0, vfs=0, pools={CLAIMS_POOL: 4})))))
NODE = {"metadata": {"name": "w1"}, "status": STATUS}


class Cluster:
    """Documents of an API server."""

    def __init__(self, **classes: list[str]) -> None:
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
        return self.classes if path.endswith("/deviceclasses") else []


def found(cluster: Cluster) -> dict[str, Any]:
    facts = claim_facts(cluster, [NODE], SchedulerFacts(files=(), extender=ExtenderConfig()))
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
