"""Deployments: the bounds of a roll-out, its steps, and its history."""

from __future__ import annotations

import pytest

from demo.cluster.workload_objects import deployment, names, replica_set
from k8s_rdma_demo.cluster import deployments


@pytest.mark.parametrize(
    ("replicas", "surge", "unavailable", "expected"),
    [
        (3, "25%", "25%", (1, 0)),
        (4, "25%", "25%", (1, 1)),
        (10, "30%", "30%", (3, 3)),
        (3, 0, "25%", (0, 1)),
        (3, 2, 0, (2, 0)),
        (0, "25%", "25%", (0, 0)),
        (1, 0, 5, (0, 1)),
    ],
)
def test_bounds_are_rounded_as_kubernetes_does(
    replicas: int, surge: int | str, unavailable: int | str, expected: tuple[int, int]
) -> None:
    rolling = {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}
    bounds = deployments.Bounds.parse(deployment(replicas, strategy=rolling))
    assert (bounds.surge, bounds.unavailable) == expected


@pytest.mark.parametrize(
    ("new", "old", "expected"),
    [
        ((0, 0), (3, 3), {"new": 1}),
        ((1, 0), (3, 3), {}),
        ((1, 1), (3, 3), {"old": 2}),
        ((1, 1), (2, 3), {"new": 2}),
        ((2, 2), (2, 2), {"old": 1}),
        ((3, 3), (1, 1), {"old": 0}),
        ((3, 3), (0, 0), {}),
        ((1, 0), (3, 1), {}),
        ((5, 5), (0, 0), {"new": 3}),
    ],
)
def test_rollout_keeps_all_replicas_available(
    new: tuple[int, int], old: tuple[int, int], expected: dict[str, int]
) -> None:
    planned = deployments.scales(deployment(3), replica_set("new", *new), [replica_set("old", *old)])
    assert planned == expected


def test_recreation_waits_for_the_end_of_former_pods() -> None:
    recreating = deployment(3, strategy={"type": "Recreate"})
    new, old = replica_set("new", 0), replica_set("old", 3)
    assert deployments.scales(recreating, new, [old]) == {"old": 0}
    ending = old | {"spec": old["spec"] | {"replicas": 0}}
    assert deployments.scales(recreating, new, [ending]) == {}
    assert deployments.scales(recreating, new, [replica_set("old", 0)]) == {"new": 3}


def test_history_keeps_the_newest_empty_sets() -> None:
    sets = [
        replica_set(f"r{number}", 0, annotations={deployments.REVISION: str(number)}) for number in (3, 1, 2)
    ]
    found = deployments.outdated(deployment(revisionHistoryLimit=2), [*sets, replica_set("used", 1)])
    assert names(found) == ["r1"]
