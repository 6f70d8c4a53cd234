"""Findings on the extender and on keys, beside the table of cases."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from doctor.cluster_findings import for_claims, found_by_doctor, pod
from extender.node_server import PF0, PF1, pf
from k8s_rdma.cli.doctor import query_extender
from k8s_rdma.cli.extender_client import ExtenderAddress
from k8s_rdma.core.types import PodUid
from k8s_rdma.doctor.cluster.components import KeyFacts, check_keys
from k8s_rdma.doctor.collectors.processes import key_usage_in_metrics
from k8s_rdma.extender.metrics import Metrics
from k8s_rdma.extender.pod_store import PodStore
from k8s_rdma.http_server import Answer
from k8s_rdma.wire.placement_keys import FixedKeys, PlacementKeys
from web.serving import listening

if TYPE_CHECKING:
    from pathlib import Path


def test_keys_are_those_that_the_extender_verified_if_it_was_queried():
    keys = PlacementKeys.shared(b"a secret of a cluster")
    pods, metrics = PodStore(FixedKeys(keys)), Metrics()
    for uid, key in (("a", keys.accepted[0].id), ("b", "0123456789abcdef"), ("c", None)):
        pods.on_signature(PodUid(uid), key)
    metrics.add(pods.readings())
    found = key_usage_in_metrics(metrics.render())
    ok, *removed = check_keys(KeyFacts(named=("hmac",), usage=found))
    assert f"1 by hmac-sha256 key {keys.accepted[0].id} (signs)" in ok.found
    assert [each.id for each in removed] == ["keys-removed", "keys-removed"]
    [unasked] = check_keys(KeyFacts(named=("hmac",)))
    assert "1 by a secret (HMAC)" in unasked.found


def test_malformed_numbers_of_keys_are_left_out():
    labels = 'k8s_rdma_extender_pods_signed{key="a",algorithm="b",use="c"}'
    assert key_usage_in_metrics(f"{labels} NaN\n{labels} +Inf\n") == ()


@pytest.mark.anyio
async def test_extender_is_judged_whatever_bytes_it_answers():
    async with listening(Answer(b"\xff warning: \xff")) as url:
        facts = await asyncio.to_thread(query_extender, ExtenderAddress(url=url))
    assert (facts.warning, facts.version, facts.key_usage) == ("\ufffd", "", ())


def test_extender_is_needed_for_annotations_alone(tmp_path: Path):
    found = found_by_doctor(tmp_path, for_claims(PF0))
    assert {"extender-not-needed", "scheduler-not-needed"} <= found.keys()
    assert not {"extender-no-pod", "extender-not-asked", "scheduler-not-seen"} & found.keys()
    assert "extender-no-pod" in found_by_doctor(tmp_path, for_claims(PF0), pf(PF1))
    annotated = pod("a", "one")
    annotated["metadata"]["annotations"] = {"rdma_interfaces_required": "[{}]"}
    assert "extender-no-pod" in found_by_doctor(tmp_path, for_claims(PF0), pods=(annotated,))
