"""Growth of capacity questions with the cluster: 500 to 5,000 nodes that are all different, 20 pods each.

Of each question the processor time at every size, and the exponent of its growth, as in test_growth.py.
"""

from __future__ import annotations

import json
import math
import random
import statistics
from collections import Counter
from time import thread_time
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.core.rate_ability import EVERY_RATE
from k8s_rdma.planning.manifest_workloads import read_workloads
from k8s_rdma.planning.planned_cluster import PlannedCluster
from k8s_rdma.planning.snapshot import (
    VERSION,
    NodeRecord,
    PodRecord,
    Snapshot,
    decode_snapshot,
    encode_snapshot,
)
from k8s_rdma.planning.whatif import ClusterChanges, PlannedFailures, fit, headroom, lose, with_changes
from k8s_rdma.wire.rdma_node import status_of
from k8s_rdma.wire.report import NodeReport, PfReport, rates_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Record

SIZES = (500, 1_000, 2_500, 5_000)
PODS = 20
LINEAR = 1.25
BUDGET_S = 10.0
"""Of each question on the largest cluster."""
PCIS = ("0000:03:00.0", "0000:03:00.1")
VF_RESOURCE = "k8s-rdma.io/vf"
RATES = (500, 1_000, 2_900, 4_000)


def snapshot_of(nodes: int, *, full: bool = False) -> bytes:
    """A cluster; full: all VFs of its PFs are in use."""
    rng = random.Random(nodes)
    records, pods = [], []
    for number in range(nodes):
        name = f"n{number:05}"
        places = [(rng.choice(RATES), rng.choice(PCIS)) for _ in range(PODS)]
        used = Counter(pci for _, pci in places)
        pfs = tuple(
            PfReport(
                name=f"enp3s0f{index}", pci=pci, driver="mlx5_core", link_mbps=100_000,
                capacity_vfs=used[pci] if full else 64, rates=rates_of(EVERY_RATE),
            )
            for index, pci in enumerate(PCIS)
        )  # fmt: skip
        report = NodeReport(node=name, generation="e.1", ledger="ok", pfs=pfs)
        records.append(NodeRecord(name=name, status=status_of(report)))
        pods += [pod(name, f"{name}-{index}", *place) for index, place in enumerate(places)]
    return encode_snapshot(
        Snapshot(version=VERSION, vf_resource=VF_RESOURCE, nodes=tuple(records), pods=tuple(pods))
    )


def pod(node: str, name: str, rate: int, pci: str) -> PodRecord:
    placed = {"pf": pci, "min_tx_rate": rate, "max_tx_rate": 0}
    placement = {"version": 1, "node": node, "uid": name, "interfaces": [placed]}
    annotations = {
        "rdma_interfaces_required": json.dumps([{"min_tx_rate": rate}]),
        "k8s-rdma.io/placement": json.dumps(placement),
    }
    return PodRecord(
        namespace="team",
        name=name,
        uid=name,
        node=node,
        annotations=annotations,
        devices={VF_RESOURCE: 1},
        requests={VF_RESOURCE: 1_000, "cpu": rate},
    )


def urgent_pod() -> str:
    """Two VFs, for which pods of lower priority may go."""
    annotations = {"rdma_interfaces_required": '[{"min_tx_rate": 20000}, {"min_tx_rate": 20000}]'}
    spec = {"priority": 1, "containers": [{"resources": {"limits": {VF_RESOURCE: "2"}}}]}
    return json.dumps({"kind": "Pod", "metadata": {"name": "p", "annotations": annotations}, "spec": spec})


def questions(data: bytes) -> dict[str, Callable[[PlannedCluster], object]]:
    one = '[{"min_tx_rate": 20000}, {"min_tx_rate": 20000}]'
    return {
        "read a snapshot": lambda _: PlannedCluster.from_snapshot(decode_snapshot(data, "cluster.json")),
        "fit of 64 pods": lambda planned: fit(planned, read_workloads(one, 64).workloads),
        "headroom of a pod": lambda planned: headroom(planned, read_workloads(one).workloads),
        "headroom of common shapes": lambda planned: headroom(planned, ()),
        "without a node": lambda planned: lose(planned, PlannedFailures(nodes=("n00007",))),
        "with fewer VFs": lambda planned: with_changes(
            planned, ClusterChanges(vfs=32), read_workloads(one).workloads
        ),
    }


def measured(nodes: int) -> dict[str, float]:
    data = snapshot_of(nodes)
    planned = PlannedCluster.from_snapshot(decode_snapshot(data, "cluster.json"))
    assert not planned.unreadable
    assert len(planned.cluster.pods()) == nodes * PODS
    times = {}
    for name, question in questions(data).items():
        before = thread_time()
        question(planned)
        times[name] = thread_time() - before
    full = PlannedCluster.from_snapshot(decode_snapshot(snapshot_of(nodes, full=True), "cluster.json"))
    before = thread_time()
    answer = fit(full, read_workloads(urgent_pod(), 64).workloads, preempt=True)
    times["fit of 64 pods by preemption"] = thread_time() - before
    assert answer.fits
    assert len(answer.evictions) >= 64
    return times


@pytest.mark.timeout(600)
def test_questions_take_seconds_and_grow_with_the_cluster(record: Record):
    times = {nodes: measured(nodes) for nodes in SIZES}
    logs = [math.log(nodes) for nodes in SIZES]
    for name in times[SIZES[0]]:
        found = {nodes: times[nodes][name] for nodes in SIZES}
        exponent = statistics.linear_regression(logs, [math.log(found[nodes]) for nodes in SIZES]).slope
        note = ", ".join(f"{nodes}: {seconds:.2f} s" for nodes, seconds in found.items())
        record(
            f"whatif, {name}, {SIZES[-1]} nodes",
            budget=BUDGET_S,
            measured=found[SIZES[-1]],
            unit="s",
            note=note,
        )
        record(f"whatif, {name}, exponent", budget=LINEAR, measured=exponent, unit="")
