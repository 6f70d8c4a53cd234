"""Findings on CNI configuration, beside the table of cases."""

from __future__ import annotations

import json

import pytest

from doctor.cases.cni import CHAIN, PLAIN, cni


@pytest.mark.parametrize(
    ("change", "calls_check"),
    [
        ({}, False),
        ({"disableCheck": True}, True),
        ({"cniVersion": "0.3.1"}, True),
        ({"plugins": [{"type": "flannel"}, *CHAIN["plugins"][1:]]}, True),
    ],
    ids=["containerd", "not to be checked", "no CHECK yet", "checks nothing"],
)
def test_list_is_in_order_if_no_plugin_fails_its_check(change, calls_check):
    file = ("00-k8s-rdma.conflist", json.dumps(CHAIN | change))
    found = cni(file, PLAIN, calls_check=calls_check)
    assert "cni-checked" not in {each.id for each in found}
