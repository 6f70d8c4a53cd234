"""Schedulers, lists and clocks of other people's clusters, as these people report them."""

from __future__ import annotations

import json

import pytest

from extender.serving import BIND, FILTER, served
from extender.world import cluster
from k8s_rdma.wire.node_clock import clock_skew_s
from node_objects import skewed_node

META = {"name": "p", "namespace": "d", "uid": "u"}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("path", "document"),
    [
        (
            FILTER,
            {"Pod": {"metadata": {"name": "p", "namespace": "d", "uid": "u"}, "spec": {"priority": "9"}}},
        ),
        (BIND, {"PodName": "p", "PodNamespace": "d", "PodUID": "u", "Node": ""}),
    ],
)
async def test_scheduler_gets_the_reason_and_not_a_number(path: str, document: dict[str, object]):
    """Of any status but 200, kube-scheduler's event has the number alone.

    Sources: https://github.com/pingcap/tidb-operator/issues/1346 and issues/426 there (`code 500`, for 16 h),
    https://github.com/elastic-ai/elastic-gpu-scheduler/issues/8 (`code 400`).
    """
    async with cluster("w1") as c, served(c) as s:
        await s.ready()
        answer = await s.post(path, json.dumps({"NodeNames": ["w1"], **document}))
        assert answer.status_code == 200
        assert "$." in answer.json()["Error"]


def test_old_heartbeat_is_no_skewed_clock():
    """A check that compared the heartbeat with the time of now failed on every cluster since 1.17.

    Source: https://github.com/linkerd/linkerd2/issues/3943: kubelet writes it every 5 minutes.
    """
    assert clock_skew_s(skewed_node("w1", 0.0, age_s=299.0)) == 0.0


def test_clock_that_jumped_is_seen_by_the_heartbeat_after_it():
    """Source: https://github.com/kubernetes/kubernetes/issues/108844: the clock was set forward by a day."""
    assert clock_skew_s(skewed_node("w1", 86_400.0)) == 86_400.0
