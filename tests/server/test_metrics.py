"""The exposition, line by line."""

from __future__ import annotations

from msgspec.structs import replace

from k8s_rdma.server.metrics import render_metrics
from server.serving import foreign, report

EXPOSITION = """\
# HELP k8s_rdma_agent_reachable Whether the node's agent answers.
# TYPE k8s_rdma_agent_reachable gauge
k8s_rdma_agent_reachable 1
# HELP k8s_rdma_allocations Sandboxes that hold interfaces.
# TYPE k8s_rdma_allocations gauge
k8s_rdma_allocations{node="w1"} 1
# HELP k8s_rdma_unreadable What the last look at the hardware could not see.
# TYPE k8s_rdma_unreadable gauge
k8s_rdma_unreadable{node="w1"} 1
# HELP k8s_rdma_pf_vfs Virtual functions that exist.
# TYPE k8s_rdma_pf_vfs gauge
k8s_rdma_pf_vfs{node="w1",pf="enp3s0f0",pci="0000:03:00.0"} 2
# HELP k8s_rdma_pf_vfs_taken Virtual functions that are taken, by whomever.
# TYPE k8s_rdma_pf_vfs_taken gauge
k8s_rdma_pf_vfs_taken{node="w1",pf="enp3s0f0",pci="0000:03:00.0"} 2
# HELP k8s_rdma_pf_reserved_bits_per_second Reserved bandwidth, by whomever.
# TYPE k8s_rdma_pf_reserved_bits_per_second gauge
k8s_rdma_pf_reserved_bits_per_second{node="w1",pf="enp3s0f0",pci="0000:03:00.0"} 400000000
# HELP k8s_rdma_pf_link_bits_per_second Link speed; absent while it is unknown.
# TYPE k8s_rdma_pf_link_bits_per_second gauge
k8s_rdma_pf_link_bits_per_second{node="w1",pf="enp3s0f0",pci="0000:03:00.0"} 1000000000
"""


def test_exposition_counts_what_pods_and_others_hold() -> None:
    told = report(unreadable=("enp4s0: no answer",))
    told = replace(told, pfs=(replace(told.pfs[0], foreign=(foreign(1, 100),)),))
    assert render_metrics(told).decode() == EXPOSITION


def test_exposition_has_no_link_speed_when_it_is_unknown() -> None:
    told = report()
    told = replace(told, pfs=(replace(told.pfs[0], link_mbps=None),))
    assert "k8s_rdma_pf_link_bits_per_second{" not in render_metrics(told).decode()


def test_exposition_has_no_allocations_when_the_ledger_is_unavailable() -> None:
    exposition = render_metrics(report(ledger="unavailable", allocations=())).decode()
    assert "k8s_rdma_allocations" not in exposition
    assert "k8s_rdma_agent_reachable 0\n" in exposition


def test_exposition_says_only_that_the_agent_is_away_when_nothing_is_known() -> None:
    samples = [line for line in render_metrics(None).decode().splitlines() if not line.startswith("#")]
    assert samples == ["k8s_rdma_agent_reachable 0"]


def test_label_is_escaped_when_it_holds_what_would_end_it() -> None:
    exposition = render_metrics(report(node='a"b\\c\nd')).decode()
    assert r'k8s_rdma_allocations{node="a\"b\\c\nd"} 1' in exposition
