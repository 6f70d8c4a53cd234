"""Growth of the extender's work with the cluster: 100 to 10,000 nodes that are all different, 10 pods each.

Of each kind of work the run time at every size, and the exponent of its growth: the slope of the straight
line through the logarithms (least squares) from 1,000 nodes on, below which the fixed part of a request hides
it. 1 is linear.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from large_cluster import new_pod, node_name
from test_extender import Caller
from test_large_cluster import api_server, extender

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from conftest import Record
    from test_large_cluster import Large

SIZES = (100, 1_000, 5_000, 10_000)
FITTED = 1_000
PODS = 10
ROUNDS = 15
BINDS = 200
LINEAR = 1.15
"""Measured exponents of linear work are between 0.85 and this."""

FILTER, PRIORITIZE, BIND = "/scheduler/rdma_scheduling", "/scheduler/prioritize", "/scheduler/bind"


def ran_ms(cluster: Large, path: str, bodies: Callable[[], bytes]) -> float:
    """The median run time of the extender for a request."""
    times = []
    for _ in range(ROUNDS):
        body = bodies()
        before = cluster.ran_ms()
        cluster.post(path, body)
        times.append(cluster.ran_ms() - before)
    return statistics.median(times)


def bind_ms(cluster: Large, api: int) -> float:
    """The mean run time of a bind, with the pod's events."""
    with closing(Caller(api)) as caller:
        caller.post(f"/create-pods?count={BINDS}", b"")
    before = cluster.ran_ms()
    for index in range(BINDS):
        meta = new_pod(index)["metadata"]
        args = {
            "PodName": meta["name"],
            "PodNamespace": meta["namespace"],
            "PodUID": meta["uid"],
            "Node": node_name(index % cluster.count),
        }
        assert not json.loads(cluster.post(BIND, json.dumps(args).encode()))["Error"]
    return (cluster.ran_ms() - before) / BINDS


def measured(nodes: int, directory: Path) -> dict[str, float]:
    """Each kind of work with so many nodes."""
    directory.mkdir()
    rates, tight = itertools.count(2_001), itertools.count(95_001)
    with api_server(nodes, "distinct", PODS) as api, extender(api, directory, nodes) as cluster:
        seen, whole = cluster.body([1_000] * 8), cluster.body([1_000] * 8, full=True)
        return {
            "start to ready, processor, s": cluster.ready_processor_s,
            "filter of names, request not seen before, ms": ran_ms(
                cluster, FILTER, lambda: cluster.body([next(rates)] * 8)
            ),
            "the same, refused by all, ms": ran_ms(cluster, FILTER, lambda: cluster.body([next(tight)])),
            "filter of names, request seen before, ms": ran_ms(cluster, FILTER, lambda: seen),
            "prioritize of names, request seen before, ms": ran_ms(cluster, PRIORITIZE, lambda: seen),
            "filter of whole nodes, request seen before, ms": ran_ms(cluster, FILTER, lambda: whole),
            "bind, ms": bind_ms(cluster, api),
            "resident memory, MiB": cluster.resident_mib(),
        }


def exponent(values: Mapping[int, float]) -> float:
    """The slope of the line through the logarithms of sizes and values."""
    points = [(math.log(size), math.log(value)) for size, value in values.items() if size >= FITTED]
    return statistics.linear_regression(*zip(*points, strict=True)).slope


@pytest.mark.timeout(900)
def test_growth(record: Record, tmp_path: Path) -> None:
    found = {nodes: measured(nodes, tmp_path / str(nodes)) for nodes in SIZES}
    for what in found[SIZES[0]]:
        values = {nodes: found[nodes][what] for nodes in SIZES}
        note = "; ".join(f"{nodes:,}: {value:.3g}" for nodes, value in values.items())
        name = f"growth with nodes, {what}"
        record(name, budget=LINEAR, measured=exponent(values), unit="exponent", note=note)
