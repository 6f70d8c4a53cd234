"""docs/cni.md has every key of the configuration and every code of an error."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from k8s_rdma.agent.cni.grant import Policy, read_grant
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.errors import STATUS, K8sRdmaError, Reason
from k8s_rdma.wire.cni_request import INHERITED_KEYS, OWN_KEYS
from k8s_rdma.wire.placement_keys import FixedKeys, PlacementKeys

PAGE = (Path(__file__).parents[2] / "docs" / "cni.md").read_text()
ROWS = re.findall(r"^\| `?([\w]+)`? \|", PAGE, re.M)
OF_THE_EXECUTABLE = {5}
"""An I/O failure (CNI specification 1.1.0, section 5): see `cni/cni_error.h`."""


def test_every_key_of_ours_is_documented() -> None:
    assert set(ROWS) >= OWN_KEYS | INHERITED_KEYS


def test_the_codes_of_errors_are_those_that_are_documented() -> None:
    documented = [int(row) for row in ROWS if row.isdigit()]
    assert documented == sorted({status.cni for status in STATUS.values()} | OF_THE_EXECUTABLE)


def test_a_pod_that_the_extender_did_not_place_is_refused_in_the_words_of_the_table() -> None:
    (row,) = re.findall(rf"^\| {STATUS[Reason.STALE_PLACEMENT].cni} \|.*", PAGE, re.M)
    asked = {"rdma_interfaces_required": "[{}]"}
    policy = Policy(keys=FixedKeys(PlacementKeys.shared(b"key")))
    with pytest.raises(K8sRdmaError) as caught:
        read_grant(asked, uid=PodUid("u"), node=NodeName("w1"), policy=policy)
    cause, _, _ = caught.value.message.partition(";")
    assert cause in row.replace("`", "")
