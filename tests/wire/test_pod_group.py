"""PodGroups as Kubernetes 1.36 and 1.37 write them, to the value that decides about their pods."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from k8s_rdma.core.pod_group import PodGroup
from k8s_rdma.wire.pod_group import decode_coscheduling_group, decode_pod_group

GANG = {"schedulingPolicy": {"gang": {"minCount": 4}}}


def decoded(**spec: Any) -> PodGroup:
    return decode_pod_group(json.dumps({"kind": "PodGroup", "spec": spec, "status": {}}).encode())


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param(GANG, PodGroup(min_count=4), id="gang"),
        pytest.param({"schedulingPolicy": {"basic": {}}}, PodGroup(), id="policy-basic-is-no-gang"),
        pytest.param({**GANG, "disruptionMode": "Pod"}, PodGroup(min_count=4), id="1.36-pod-by-pod"),
        pytest.param(
            {**GANG, "disruptionMode": "PodGroup"},
            PodGroup(min_count=4, disrupted_together=True),
            id="1.36-together",
        ),
        pytest.param({**GANG, "disruptionMode": {"single": {}}}, PodGroup(min_count=4), id="1.37-single"),
        pytest.param(
            {**GANG, "disruptionMode": {"all": {}}},
            PodGroup(min_count=4, disrupted_together=True),
            id="1.37-all",
        ),
        pytest.param(
            {**GANG, "priority": 0, "priorityClassName": "low", "preemptionPolicy": "Never"},
            PodGroup(min_count=4, priority=0, preempts=False),
            id="priority-of-the-group-may-be-zero",
        ),
        pytest.param(
            {**GANG, "preemptionPolicy": "PreemptLowerPriority", "workloadRef": {"workloadName": "w"}},
            PodGroup(min_count=4),
            id="1.37-preempts",
        ),
        pytest.param(
            {**GANG, "parentCompositePodGroupName": "tree"},
            PodGroup(min_count=4, parent="tree"),
            id="1.37-part-of-a-tree",
        ),
    ],
)
def test_pod_group_of_every_version_is_one_value(spec: dict[str, Any], expected: PodGroup):
    assert decoded(**spec) == expected


@pytest.mark.parametrize("document", [b"", b"[]", b'{"spec": {"priority": "high"}}'])
def test_document_that_is_no_pod_group_is_refused(document: bytes):
    with pytest.raises(msgspec.MsgspecError):
        decode_pod_group(document)


def test_group_of_coscheduling_has_a_number_alone():
    assert decode_coscheduling_group(b'{"spec": {"minMember": 3}}') == PodGroup(min_count=3)
