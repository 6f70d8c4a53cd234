"""The node report: the document for an extender, and the agent's snapshot."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.report import NodeReport, decode_report, encode_report, require_node, without_vfs

DOCUMENT: dict[str, Any] = {
    "node": "w1",
    "generation": "4f.17",
    "agent_version": "0.1.0",
    "ledger": "ok",
    "pfs": [
        {
            "name": "enp3s0f0",
            "pci": "0000:03:00.0",
            "driver": "mlx5_core",
            "capacity_vfs": 1,
            "link_mbps": None,
            "rates": {"min": None, "max": None, "sum_checked": False, "needs_link": False, "weights": None},
            "foreign": [{"vf": 0, "why": "rated", "min_tx_rate": 5, "max_tx_rate": 0, "pool": "a.b/c"}],
            "vfs": [
                {
                    "vf": 0,
                    "mac": "0a:00:00:00:00:00",
                    "vlan": 0,
                    "qos": 0,
                    "vlan_proto": "N/A",
                    "spoof_check": "OFF",
                    "trust": "ON",
                    "link_state": "Follow",
                    "min_tx_rate": 0,
                    "max_tx_rate": 0,
                    "vgt_plus": "OFF",
                    "rate_group": 0,
                    "allocated": True,
                }
            ],
        }
    ],
    "allocations": [],
    "unreadable": ["enp4s0f0: no answer"],
    "problems": [],
    "mentions": [],
    "macs": [{"first": "0a:00:00:00:00:00"}, {"first": "0a:00:00:00:00:10", "number": 8}],
    "gpus": [
        {
            "resource": "nvidia.com/gpu",
            "pci": "0000:1b:00.0",
            "pcie_path": ["0000:15:01.0", "0000:16:00.0"],
            "numa_node": 0,
            "in_use": True,
        },
        {"resource": "nvidia.com/gpu", "pci": "0000:43:00.0"},
    ],
    "takes_placements": True,
}


def decoded(**changes: object) -> NodeReport:
    return decode_report(json.dumps({**DOCUMENT, **changes}).encode())


def test_report_survives_when_decoded_and_encoded() -> None:
    assert json.loads(encode_report(decoded())) == DOCUMENT


def test_report_is_read_when_a_newer_agent_says_more() -> None:
    assert decoded(more=1) == decoded()


def test_report_is_read_when_an_older_agent_knows_no_gpus() -> None:
    older = {name: value for name, value in DOCUMENT.items() if name != "gpus"}
    assert decode_report(json.dumps(older).encode()).gpus == ()


def test_report_is_refused_when_another_node_answers() -> None:
    require_node(decoded(), "w1")
    with pytest.raises(MalformedError, match="the address answers for node 'w1'"):
        require_node(decoded(), "w2")


def test_generation_of_a_report_is_refused_when_it_ends_in_a_newline_or_is_endless() -> None:
    for generation in ("4f.17\n", "4" * 254):
        with pytest.raises(MalformedError, match=re.escape("$.generation")):
            decoded(generation=generation)


def test_report_without_vfs_leaves_out_only_those() -> None:
    shown = json.loads(encode_report(without_vfs(decoded())))
    [pf] = DOCUMENT["pfs"]
    assert shown == {**DOCUMENT, "pfs": [{key: value for key, value in pf.items() if key != "vfs"}]}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"node": None}, "$.node"),
        ({"ledger": "maybe"}, "$.ledger"),
        ({"pfs": [{}]}, "$.pfs[0]"),
        ({"generation": 'a"b'}, "$.generation"),
        ({"generation": "a b"}, "$.generation"),
        ({"generation": "é"}, "$.generation"),
        ({"generation": ""}, "$.generation"),
    ],
)
def test_report_is_refused_naming_the_field_when_malformed(changes: dict[str, object], named: str) -> None:
    with pytest.raises(MalformedError) as refused:
        decoded(**changes)
    assert refused.value.message.startswith("node report: ")
    assert named in refused.value.message
