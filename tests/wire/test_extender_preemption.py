from __future__ import annotations

import json
from pathlib import Path

import pytest

from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.extender import (
    ExtenderPreemptionResult,
    decode_preemption,
    encode_preemption,
)

RECORDINGS = Path(__file__).parents[1] / "recordings" / "extender"


@pytest.mark.parametrize("name", ["preempt-full-nodes-007-preempt", "preempt-node-names-007-preempt"])
def test_preemption_is_read_and_answered_as_recorded(name):
    recorded = json.loads((RECORDINGS / f"{name}.json").read_text())
    args = decode_preemption(json.dumps(recorded["body"]).encode())
    assert args.pod.priority == 100_000
    result = ExtenderPreemptionResult(node_name_to_meta_victims=args.by_uid())
    assert json.loads(encode_preemption(result)) == recorded["reply"]


def test_preemption_keeps_the_needed_fields_of_whole_victims():
    recorded = json.loads((RECORDINGS / "preempt-full-nodes-007-preempt.json").read_text())
    victim = decode_preemption(json.dumps(recorded["body"]).encode()).node_name_to_victims["node-1"].pods[0]
    assert (victim.metadata.name, victim.spec.priority) == ("low-1", 100)


META = {"NodeNameToMetaVictims": {"w1": {"Pods": None, "NumPDBViolations": 2}}}
POD = {"metadata": {"name": "p", "namespace": "d", "uid": "u"}}


def test_preemption_reads_a_node_without_victims():
    victims = decode_preemption(json.dumps({"Pod": POD, **META}).encode()).by_uid()["w1"]
    assert (victims.uids, victims.num_pdb_violations) == ((), 2)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"Pod": POD}, "neither NodeNameToVictims nor"),
        (META, "Pod"),
        ({"Pod": POD, "NodeNameToMetaVictims": {"w1": {"Pods": [{}]}}}, "UID"),
        ({"Pod": POD, "NodeNameToVictims": {"w1": {"Pods": [{"metadata": {}}]}}}, "uid"),
        ({"Pod": POD, "NodeNameToVictims": []}, "NodeNameToVictims"),
    ],
)
def test_preemption_is_refused_by_the_name_of_the_field(body, says):
    with pytest.raises(MalformedError, match=says):
        decode_preemption(json.dumps(body).encode())
