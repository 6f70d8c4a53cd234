"""Findings on published nodes, beside the table of cases."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from doctor.cases.nodes import NODE, nodes
from doctor.cluster_findings import found_by_doctor, renewed_ago
from extender.node_server import PF0, PF1, pf
from k8s_rdma.wire.node_lease import silence
from node_objects import skewed_node

if TYPE_CHECKING:
    from pathlib import Path

    Json = dict[str, Any]


def test_problem_of_many_nodes_is_reported_once():
    shared = "placementKeyFile /key: is empty"
    found = nodes(*(replace(NODE, name=f"w{n}", problems=(shared, f"only {n}")) for n in range(100)))
    told = [each for each in found if each.id == "nodes-problem"]
    assert (told[0].about, told[0].found) == ("w0 and 99 more", shared)
    assert (len(told), told[-1].found) == (21, "and 81 other problems")


@pytest.mark.parametrize(
    ("lease", "finding"),
    [
        ({}, "nodes-ok"),
        ({"renewTime": renewed_ago(seconds=90)}, "nodes-stale"),
        ({"renewTime": renewed_ago(seconds=90), "leaseDurationSeconds": 3600}, "nodes-ok"),
        ({"renewTime": renewed_ago(hours=4), "leaseDurationSeconds": 10**9}, "nodes-stale"),
        ({"holderIdentity": "another.1"}, "nodes-stale"),
        ({"renewTime": None}, "nodes-no-lease"),
    ],
)
def test_lease_counts_as_it_does_for_the_extender(tmp_path: Path, lease: Json, finding: str):
    assert finding in found_by_doctor(tmp_path, pf(), lease=lease)


def test_status_that_the_extender_cannot_read_is_not_ready(tmp_path: Path):
    found = found_by_doctor(tmp_path, pf(), published={"gpus": [{"resource": "a.b/c", "pci": "x"}]})
    assert "nodes-ok" not in found
    assert "RdmaNode status: Expected `str` matching regex" in found["nodes-not-ready"]
    assert "gpus[0].pci" in found["nodes-not-ready"]


def test_status_of_another_form_ends_no_other_subject(tmp_path: Path):
    usual, odd = (found_by_doctor(tmp_path, pf(), published=status) for status in ({}, {"pfs": ["enp1s0f0"]}))
    assert "pfs[0]" in odd["nodes-not-ready"]
    assert odd.get("not-looked-at") == usual.get("not-looked-at")


@pytest.mark.parametrize(
    ("skew_s", "dead_for_s", "finding"),
    [(-3600.0, 10.0, "nodes-ok"), (30 * 86_400.0, 90.0, "nodes-stale"), (30 * 86_400.0, 10.0, "nodes-ok")],
)
def test_node_is_judged_by_one_clock_when_its_own_differs(
    tmp_path: Path, skew_s: float, dead_for_s: float, finding: str
):
    lease = {"renewTime": renewed_ago(seconds=dead_for_s - skew_s)}
    found = found_by_doctor(tmp_path, pf(), lease=lease, node=skewed_node("w1", skew_s))
    assert finding in found
    assert "the API server's" in found["nodes-clock-skew"]


SILENT = silence(61.0, 60.0, 0.0)


@pytest.mark.parametrize(
    ("renewed_s_ago", "word", "finding"), [(3600, "", "nodes-ok"), (0, SILENT, "nodes-stale")]
)
def test_answer_of_the_extender_counts_if_it_is_queried(
    tmp_path: Path, renewed_s_ago: float, word: str, finding: str
):
    lease = {"renewTime": renewed_ago(seconds=renewed_s_ago)}
    assert finding in found_by_doctor(tmp_path, pf(), lease=lease, extender={"w1": word})
    by_lease = "nodes-stale" if renewed_s_ago else "nodes-ok"
    assert by_lease in found_by_doctor(tmp_path, pf(), lease=lease, extender={"another": word})


def test_problem_of_a_pf_is_shown_with_those_of_its_node(tmp_path: Path):
    why = "PF eth1: 5000 Mb/s are reserved, and its link has 1000 Mb/s now"
    assert found_by_doctor(tmp_path, pf(PF0), pf(PF1, problems=(why,)))["nodes-problem"] == why
    assert "nodes-problem" not in found_by_doctor(tmp_path, pf(PF0))
