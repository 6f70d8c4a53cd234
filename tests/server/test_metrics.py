"""The exposition, family by family."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from k8s_rdma import __version__
from k8s_rdma.server.agent_link import render_age, render_metrics, render_traffic
from k8s_rdma.wire.report import NodeReport, ReportedPod
from k8s_rdma.wire.state_socket import (
    CapCounts,
    Counters,
    PfPauses,
    RateChangeCounts,
    ScanCounts,
    VfTraffic,
    decode_counters,
    encode_counters,
)
from server.exposition_reader import Family, read, value
from server.serving import foreign, report

NODE = {"node": "w1"}
PF = {"node": "w1", "pf": "enp3s0f0", "pci": "0000:03:00.0"}
HELD = PF | {"vf": "0", "namespace": "default", "pod": "p", "interface": "rdma0"}


def shown(told: NodeReport | None) -> dict[str, Family]:
    return read(render_metrics(told).decode())


def with_pf(**changes: object) -> NodeReport:
    told = report()
    return replace(told, pfs=(replace(told.pfs[0], **changes),))


def counters(*vfs: VfTraffic, age_s: float | None = 1.5) -> Counters:
    scans = ScanCounts(total=7, failed=2, seconds=0.25)
    return Counters(node="w1", age_s=age_s, failed_samples=3, scans=scans, vfs=vfs)


def traffic(**changes: object) -> VfTraffic:
    made = VfTraffic(
        pf="0000:03:00.0", pf_name="enp3s0f0", vf=0, tx_bytes=1, rx_bytes=2, tx_packets=3, rx_packets=4
    )
    return replace(made, **changes)


def test_exposition_counts_vfs_of_pods_and_foreign_ones() -> None:
    told = replace(
        with_pf(foreign=(foreign(1, 100),)), unreadable=("enp4s0: no answer",), problems=("a", "b")
    )
    found = shown(told)
    assert value(found, "k8s_rdma_agent_reachable") == 1
    assert value(found, "k8s_rdma_allocations", **NODE) == 1
    assert value(found, "k8s_rdma_unreadable", **NODE) == 1
    assert value(found, "k8s_rdma_problems", **NODE) == 2
    assert {
        name.removeprefix("k8s_rdma_pf_"): value(found, name, **PF) for name in found if "_pf_" in name
    } == {
        "vfs": 2,
        "vfs_used": 2,
        "vfs_free": 0,
        "link_bits_per_second": 1_000_000_000,
        "reserved_bits_per_second": 400_000_000,
        "free_bits_per_second": 600_000_000,
        "overcommitted_bits_per_second": 0,
    }
    assert {family.kind for family in found.values()} == {"gauge"}


def versions(told: NodeReport) -> set[tuple[str, str]]:
    samples = shown(told)["k8s_rdma_build_info"].samples
    return {(labels["process"], labels["version"]) for labels in (dict(found) for _, found in samples)}


def test_exposition_has_the_version_of_each_program_that_is_known() -> None:
    told = replace(report(), agent_version="0.2.0")
    assert versions(told) == {("server", __version__), ("agent", "0.2.0")}
    assert value(shown(told), "k8s_rdma_build_info", **NODE, process="agent", version="0.2.0") == 1
    assert versions(replace(told, agent_version="")) == {("server", __version__)}


def test_exposition_has_the_generation_that_all_interfaces_of_a_pod_have() -> None:
    told = report()
    [held] = told.allocations
    sandboxes = [(held.pod.uid, 3), (held.pod.uid, 2), ("other", 0)]
    allocations = tuple(
        replace(
            held,
            pod=replace(held.pod, uid=uid, name=f"p-{uid}"),
            generation=generation,
            interfaces=(replace(held.interfaces[0], vf=vf),),
        )
        for vf, (uid, generation) in enumerate(sandboxes)
    )
    name = "k8s_rdma_rates_generation"
    labels = NODE | {"namespace": held.pod.namespace, "pod": f"p-{held.pod.uid}"}
    samples = shown(replace(told, allocations=allocations))[name].samples
    assert samples == {(name, frozenset(labels.items())): 2}


def test_exposition_has_no_bandwidth_of_a_link_whose_speed_is_unknown() -> None:
    found = shown(with_pf(link_mbps=None))
    for name in ("link", "free", "overcommitted"):
        assert not found[f"k8s_rdma_pf_{name}_bits_per_second"].samples
    assert value(found, "k8s_rdma_pf_reserved_bits_per_second", **PF) == 300_000_000


def test_exposition_has_the_rate_reserved_beyond_a_link_that_slowed_down() -> None:
    found = shown(with_pf(link_mbps=100))
    assert value(found, "k8s_rdma_pf_overcommitted_bits_per_second", **PF) == 200_000_000
    assert value(found, "k8s_rdma_pf_free_bits_per_second", **PF) == 0


def test_exposition_has_no_vfs_free_when_pods_hold_some_that_are_gone() -> None:
    assert value(shown(with_pf(capacity_vfs=0, vfs=())), "k8s_rdma_pf_vfs_free", **PF) == 0


def test_exposition_counts_vfs_of_exclusive_resources_by_resource() -> None:
    rdma, fast = "tencent.com/rdma", "example.com/fast"
    pooled = replace(foreign(1, 100), pool=rdma)
    told = with_pf(capacity_vfs=1, pools={rdma: 3, fast: 2}, foreign=(pooled,))
    allocation = told.allocations[0]
    more = replace(
        allocation, interfaces=(*allocation.interfaces, replace(allocation.interfaces[0], vf=1, pool=rdma))
    )
    found = shown(replace(told, allocations=(more,)))
    for name, resource, number in (
        ("pool_vfs", rdma, 3),
        ("pool_vfs_used", rdma, 2),
        ("pool_vfs", fast, 2),
        ("pool_vfs_used", fast, 0),
    ):
        assert value(found, f"k8s_rdma_{name}", **PF, resource=resource) == number
    assert [value(found, f"k8s_rdma_pf_{name}", **PF) for name in ("vfs", "vfs_used", "vfs_free")] == [
        1,
        1,
        0,
    ]
    assert value(found, "k8s_rdma_pf_reserved_bits_per_second", **PF) == 700_000_000


def test_exposition_has_no_allocations_when_the_ledger_is_unavailable() -> None:
    found = shown(report(ledger="unavailable", allocations=()))
    assert "k8s_rdma_allocations" not in found
    assert value(found, "k8s_rdma_agent_reachable") == 0


def test_exposition_says_only_that_the_agent_is_away_without_a_state() -> None:
    found = shown(None)
    assert list(found) == ["k8s_rdma_agent_reachable"]
    assert value(found, "k8s_rdma_agent_reachable") == 0


def test_label_is_escaped_if_it_holds_a_quote() -> None:
    name = 'a"b\\c\nd'
    assert value(shown(report(node=name)), "k8s_rdma_allocations", node=name) == 1


def test_traffic_is_exposed_for_every_vf_with_the_pod_that_holds_it() -> None:
    held = traffic(
        pod=ReportedPod(namespace="default", name="p", uid="u"), ifname="rdma0", rdma={"out_of_buffer": 9}
    )
    told = counters(replace(held, tx_dropped=5, tx_bytes=2**63), traffic(vf=1))
    found = read(render_traffic(told).decode())
    names = ("transmitted_bytes", "received_bytes", "transmitted_packets", "received_packets")
    totals = [value(found, f"k8s_rdma_vf_{name}_total", **HELD) for name in names]
    assert totals == [2**63, 2, 3, 4]
    assert value(found, "k8s_rdma_vf_transmitted_dropped_total", **HELD) == 5
    assert not found["k8s_rdma_vf_received_dropped_total"].samples
    assert value(found, "k8s_rdma_vf_rdma_counter_total", **HELD, counter="out_of_buffer") == 9
    assert len(found["k8s_rdma_vf_rdma_counter_total"].samples) == 1


def test_pause_frames_are_those_of_each_pf_and_priority() -> None:
    paused = PfPauses(pf="0000:03:00.0", pf_name="enp3s0f0", priority=3, tx_frames=4, rx_frames=5)
    told = decode_counters(encode_counters(replace(counters(), pauses=(paused,))))
    found = read(render_traffic(told).decode())
    assert value(found, "k8s_rdma_pf_transmitted_pause_frames_total", **PF, priority="3") == 4
    assert value(found, "k8s_rdma_pf_received_pause_frames_total", **PF, priority="3") == 5


def test_free_vfs_have_no_series_however_many_there_are() -> None:
    found = read(render_traffic(counters(*(traffic(vf=vf) for vf in range(1000)))).decode())
    assert not [name for name in found if "_vf_" in name and found[name].samples]


def test_rates_are_those_of_interfaces_that_pods_hold() -> None:
    told = report()
    [held] = told.allocations[0].interfaces
    capped = replace(held, set_min_tx_rate=320, max_tx_rate=700)
    allocation = replace(told.allocations[0], interfaces=(capped, replace(held, vf=1)))
    found = shown(replace(told, allocations=(allocation,)))
    assert value(found, "k8s_rdma_vf_reserved_bits_per_second", **HELD) == 320_000_000
    assert value(found, "k8s_rdma_vf_cap_bits_per_second", **HELD) == 700_000_000
    assert len(found["k8s_rdma_vf_reserved_bits_per_second"].samples) == 2
    assert len(found["k8s_rdma_vf_cap_bits_per_second"].samples) == 1


def test_looks_of_the_agent_are_counted_and_timed() -> None:
    found = read(render_traffic(counters()).decode())
    assert value(found, "k8s_rdma_scan_duration_seconds_sum", **NODE) == 0.25
    assert value(found, "k8s_rdma_scan_duration_seconds_count", **NODE) == 7
    assert value(found, "k8s_rdma_scan_errors_total", **NODE) == 2
    assert value(found, "k8s_rdma_sample_errors_total", **NODE) == 3


def test_caps_of_software_are_counted_that_were_put_back_and_that_do_not_hold() -> None:
    told = replace(counters(), caps=CapCounts(restored=12, lost=1))
    found = read(render_traffic(decode_counters(encode_counters(told))).decode())
    assert value(found, "k8s_rdma_software_caps_restored_total", **NODE) == 12
    assert value(found, "k8s_rdma_software_caps_lost", **NODE) == 1
    of_an_older_agent = encode_counters(counters()).replace(b'"caps"', b'"what it knows nothing of"')
    found = read(render_traffic(decode_counters(of_an_older_agent)).decode())
    assert value(found, "k8s_rdma_software_caps_restored_total", **NODE) == 0


def test_changes_of_rates_are_counted_that_were_made_and_that_were_refused_or_wait() -> None:
    told = replace(counters(), rate_changes=RateChangeCounts(made=12, refused=3, waiting=1))
    found = read(render_traffic(decode_counters(encode_counters(told))).decode())
    assert value(found, "k8s_rdma_rate_changes_total", **NODE) == 12
    assert value(found, "k8s_rdma_rate_change_errors_total", **NODE) == 3
    assert value(found, "k8s_rdma_rate_changes_waiting", **NODE) == 1


def test_traffic_is_absent_when_no_sample_was_ever_taken() -> None:
    found = read(render_traffic(counters(age_s=None)).decode())
    assert not [name for name in found if name.startswith("k8s_rdma_vf_")]
    assert value(found, "k8s_rdma_scan_errors_total", **NODE) == 2


def test_age_of_the_sample_is_exposed() -> None:
    found = read(render_age(counters(), 12.3456).decode())
    assert value(found, "k8s_rdma_sample_age_seconds", **NODE) == 12.346


@pytest.mark.parametrize(
    "wrong",
    [
        "x 1\n",
        "# HELP x y\n# TYPE x gauge\nx 1",
        "# HELP x y\n# TYPE x counter\nx 1\n",
        "# HELP x y\n# TYPE z gauge\nz 1\n",
        "# HELP x y\n# TYPE x gauge\nx 1\nx 2\n",
        '# HELP x y\n# TYPE x gauge\nx{a="b"c"} 1\n',
        '# HELP x y\n# TYPE x gauge\nx{a="b",a="c"} 1\n',
        "# HELP x y\n# TYPE x gauge\nx one\n",
        "# HELP x y\n# TYPE x gauge\n# HELP x y\n# TYPE x gauge\n",
    ],
)
def test_reader_of_these_tests_refuses_a_malformed_exposition(wrong: str) -> None:
    with pytest.raises((AssertionError, KeyError, ValueError)):
        read(wrong)
