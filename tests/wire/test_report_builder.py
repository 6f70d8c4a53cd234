"""The agent's report on VFs that pods hold, and on promises that a link no longer keeps."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import pytest

from factories import PF0, PF1, hardware, interface, pf_state, receipt, vf
from k8s_rdma.core.allocation import choose_vfs
from k8s_rdma.core.expected_hardware import with_allocations
from k8s_rdma.core.inventory import CLAIMS_POOL, Generation
from k8s_rdma.core.ledger import Ledger
from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.placement import PlacedInterface, Placement, Rejection
from k8s_rdma.core.rate_ability import EVERY_RATE, NO_RATE, RateAbility, RateRange
from k8s_rdma.core.types import Enforce, NodeName, PciAddress, PfSelector, Setting, VfDriver
from k8s_rdma.wire.getpfs import encode_getpfs
from k8s_rdma.wire.rdma_node import status_of
from k8s_rdma.wire.report import (
    Enforced,
    MacRange,
    MentionedPod,
    NodeReport,
    ability_of,
    decode_report,
    encode_report,
)
from k8s_rdma.wire.report_builder import NodeReports, Unenforced, node_report

if TYPE_CHECKING:
    from k8s_rdma.core.kernel import Hardware, PfState

HELD = Ledger().with_receipt(
    receipt("c1", interface(PF0, 0, minimum=600, maximum=700), interface(PF1, 1, minimum=100))
)


def told(seen: Hardware, ledger: Ledger = HELD) -> NodeReport:
    return node_report(node=NodeName("w1"), generation=Generation("e", 1), hardware=seen, ledger=ledger)


def in_use(*pfs: PfState) -> Hardware:
    """Hardware with the allocations of HELD programmed."""
    return with_allocations(
        hardware(*pfs), [each for held in HELD.receipts.values() for each in held.interfaces]
    )


def test_held_vf_has_rates_and_mac_of_the_ledger_whatever_is_seen_of_it() -> None:
    pod_changed_it = vf(PF0, 0, netdev=None, mac="02:66:66:66:66:66", min_tx_rate_mbps=1)
    free = vf(PF0, 1)
    pf = told(hardware(replace(pf_state(), vfs=(pod_changed_it, free)))).pfs[0]
    assert pf.vfs[0].allocated
    assert (pf.vfs[0].min_tx_rate, pf.vfs[0].max_tx_rate) == (600, 700)
    assert pf.vfs[0].mac == vf(PF0, 0).mac
    assert (pf.vfs[1].allocated, pf.vfs[1].min_tx_rate, pf.vfs[1].mac) == (False, 0, free.mac)


def test_inventory_has_the_bridges_above_each_pf() -> None:
    path = (PciAddress("0000:3a:00.0"), PciAddress("0000:3b:00.0"))
    [pf] = hardware(replace(pf_state(), pcie_path=path)).inventory(NodeName("w1")).pfs
    assert pf.pcie_path == path
    assert told(hardware(replace(pf_state(), pcie_path=path))).pfs[0].pcie_path == path


def test_macs_are_those_of_pfs_and_vfs_and_those_that_vfs_have_in_pods_and_at_home() -> None:
    given_away = replace(interface(PF0, 0), options=InterfaceOptions(mac="02:00:00:00:00:99"))
    seen = hardware(replace(pf_state(), mac="0a:00:00:00:00:ff", vfs=(vf(PF0, 0), vf(PF0, 1), vf(PF0, 2))))
    report = told(seen, Ledger().with_receipt(receipt("c1", given_away)))
    assert report.macs == (
        MacRange(first="02:00:00:00:00:99"),
        MacRange(first="0a:00:00:00:00:00", number=3),
        MacRange(first="0a:00:00:00:00:ff"),
    )


def test_foreign_vf_has_the_rates_that_are_seen() -> None:
    rated = vf(PF0, 1, min_tx_rate_mbps=5, max_tx_rate_mbps=6)
    pf = told(hardware(replace(pf_state(), vfs=(vf(PF0, 0), rated)))).pfs[0]
    assert (pf.vfs[1].min_tx_rate, pf.vfs[1].max_tx_rate, pf.vfs[1].allocated) == (5, 6, False)
    assert [each.vf for each in pf.foreign] == [1]


@pytest.mark.parametrize(
    ("link_mbps", "sentence"),
    [
        (599, "PF enp3s0f0: 600 Mb/s are reserved, and its link has 599 Mb/s now"),
        (None, "PF enp3s0f0: 600 Mb/s are reserved, and its link speed is unknown now"),
    ],
)
def test_reservation_that_the_link_no_longer_keeps_is_a_problem_of_its_pf(
    link_mbps: int | None, sentence: str
) -> None:
    slow = pf_state(PF0, link_mbps=link_mbps, problems=("its fan is loud",))
    first, second = told(in_use(slow, pf_state(PF1))).pfs
    assert first.problems == ("its fan is loud", sentence)
    assert second.problems == ()


def test_reservation_that_is_kept_to_the_last_bit_is_no_problem() -> None:
    assert told(in_use(pf_state(PF0, link_mbps=600))).pfs[0].problems == ()
    assert told(hardware(pf_state(PF0, link_mbps=None)), Ledger()).pfs[0].problems == ()


COARSE = RateAbility(
    min=RateRange(step=100, smallest=100, largest=1000), max=RateRange(step=100, smallest=100, largest=900)
)
WEIGHTS = RateAbility(min=RateRange(), max=RateRange(), weights=100)


def allocated(pf: PfState, minimum: int, maximum: int) -> tuple[Hardware, Ledger]:
    """A pod with such an interface, programmed as the PF takes it."""
    placed = PlacedInterface(pf=pf.pci, min_tx_rate_mbps=minimum, max_tx_rate_mbps=maximum)
    placement = Placement(node=NodeName("w1"), interfaces=(placed,))
    chosen = choose_vfs(placement, hardware(pf), Ledger(), ("rdma0",))
    assert not isinstance(chosen, Rejection)
    return with_allocations(hardware(pf), chosen), Ledger().with_receipt(receipt("c1", *chosen))


@pytest.mark.parametrize(
    ("rates", "asked", "programmed", "enforced"),
    [
        (EVERY_RATE, (150, 250), (150, 250, 0), ("hardware", "hardware")),
        (EVERY_RATE, (0, 0), (0, 0, 0), (None, None)),
        (COARSE, (150, 250), (200, 200, 0), ("hardware", "hardware")),
        (COARSE, (150, 1000), (200, 0, 0), ("hardware", "hardware")),  # the link has 1000 Mb/s
        (COARSE, (0, 99), (0, 0, 99), (None, "software")),
        (NO_RATE, (150, 250), (0, 0, 250), ("accounted", "software")),
    ],
)
def test_interface_has_programmed_rates_and_enforcers_of_the_requested_ones(
    rates: RateAbility,
    asked: tuple[int, int],
    programmed: tuple[int, int, int],
    enforced: tuple[str | None, str | None],
) -> None:
    [pf], [allocation] = (report := told(*allocated(pf_state(rates=rates), *asked))).pfs, report.allocations
    [it] = allocation.interfaces
    assert (it.min_tx_rate, it.max_tx_rate) == asked
    assert (it.set_min_tx_rate, it.set_max_tx_rate, it.software_max_tx_rate) == programmed
    assert it.enforced == Enforced(min=enforced[0], max=enforced[1])
    assert pf.problems == ()


def test_interface_is_only_accounted_when_its_vf_lost_its_rates() -> None:
    seen, ledger = allocated(pf_state(), 150, 250)
    [pf] = seen.pfs
    forgotten = replace(pf, vfs=(replace(pf.vfs[0], min_tx_rate_mbps=0, max_tx_rate_mbps=0), *pf.vfs[1:]))
    report = told(hardware(forgotten), ledger)
    [it] = report.allocations[0].interfaces
    assert it.enforced == Enforced(min="accounted", max="accounted")
    [problem] = report.pfs[0].problems
    assert problem == (
        "VF 0 of PF enp3s0f0, which pod default/p has, no longer has the rates that were programmed on it: "
        "min 150, max 250 Mb/s"
    )


def test_report_has_the_pods_that_its_problems_name_and_no_others() -> None:
    seen, ledger = allocated(pf_state(), 150, 250)
    assert told(seen, ledger).mentions == ()
    [pf] = seen.pfs
    forgotten = replace(pf, vfs=(replace(pf.vfs[0], min_tx_rate_mbps=0, max_tx_rate_mbps=0), *pf.vfs[1:]))
    report = NodeReports(NodeName("w1"), "e").build(hardware(forgotten), ledger)
    assert report.mentions == (MentionedPod(namespace="default", name="p"),)
    assert status_of(report).mentions == report.mentions
    assert decode_report(encode_report(report)).mentions == report.mentions


def test_rates_of_virtual_pfs_are_enforced_by_software() -> None:
    seen, ledger = allocated(replace(pf_state(), driver="virtual"), 150, 250)
    [it] = told(seen, ledger).allocations[0].interfaces
    assert it.enforced == Enforced(min="software", max="software")
    [pf] = seen.pfs
    slow = told(hardware(replace(pf, driver="virtual", link_mbps=200)), ledger).allocations[0].interfaces[0]
    assert slow.enforced.max == "software", "the link of a bridge is software as well"


def test_reservation_is_only_accounted_if_the_pf_no_longer_takes_a_minimum() -> None:
    seen, ledger = allocated(pf_state(), 150, 250)
    [pf] = seen.pfs
    report = told(hardware(replace(pf, rates=replace(pf.rates, min=None))), ledger)
    [it] = report.allocations[0].interfaces
    assert it.enforced == Enforced(min="accounted", max="hardware")


def test_cap_of_software_is_only_accounted_while_it_is_lost_and_its_pf_says_why() -> None:
    seen, ledger = allocated(pf_state(rates=NO_RATE), 0, 250)
    [vf] = ledger.holders()
    report = node_report(
        node=NodeName("w1"),
        generation=Generation("epoch", 1),
        hardware=seen,
        ledger=ledger,
        unenforced=Unenforced(caps={vf: "its interface has another queueing discipline"}),
    )
    [it] = report.allocations[0].interfaces
    assert it.enforced == Enforced(min=None, max="accounted")
    [problem] = report.pfs[0].problems
    assert problem == (
        "VF 0 of PF enp3s0f0, which pod default/p has as rdma0, is not limited to 250 Mb/s by software now: "
        "its interface has another queueing discipline"
    )


def test_vf_that_gets_less_by_its_weight_than_was_reserved_is_a_problem_of_its_pf() -> None:
    seen, ledger = allocated(pf_state(rates=WEIGHTS, driver="mlx5_core"), 1000, 0)
    assert told(seen, ledger).pfs[0].problems == ()
    [pf] = seen.pfs
    taken = replace(pf, vfs=(*pf.vfs[:3], replace(pf.vfs[3], netdev=None)))
    [problem] = told(hardware(taken), ledger).pfs[0].problems
    assert problem == (
        "PF enp3s0f0: minimum rates of mlx5_core are weights, by which some of its 2 VFs in use get less "
        "than is reserved for them"
    )


@pytest.mark.parametrize("rates", [EVERY_RATE, NO_RATE, COARSE, WEIGHTS])
def test_pf_reports_the_rate_ability_of_its_driver(rates: RateAbility) -> None:
    [pf] = told(hardware(pf_state(rates=rates, enforce=Enforce.HARDWARE)), Ledger()).pfs
    assert (ability_of(pf.rates), pf.enforce) == (rates, "hardware")


def test_interface_has_requested_options_in_the_words_of_the_annotation() -> None:
    options = InterfaceOptions(
        name="rdma0", mac="02:00:00:00:00:01", vlan=7, pf=PfSelector(drivers=frozenset({"ice"}))
    )
    vfio = InterfaceOptions(driver=VfDriver.VFIO_PCI)
    placed = tuple(PlacedInterface(pf=PF0, options=each) for each in (options, vfio))
    chosen = choose_vfs(
        Placement(node=NodeName("w1"), interfaces=placed), hardware(), Ledger(), ("rdma0", "rdma1"), (4, 2)
    )
    assert not isinstance(chosen, Rejection)
    report = told(with_allocations(hardware(), chosen), Ledger().with_receipt(receipt("c1", *chosen)))
    [first, second] = report.allocations[0].interfaces
    assert (first.entry, first.pci, first.driver) == (4, vf(PF0, 0).pci, "kernel")
    assert first.mac == "02:00:00:00:00:01"
    assert first.options == {"name": "rdma0", "pf": {"driver": "ice"}, "vlan": 7, "mac": "02:00:00:00:00:01"}
    assert (second.entry, second.driver, second.mac) == (2, "vfio-pci", vf(PF0, 1).mac)
    assert report.pfs[0].vfs[0].mac == "02:00:00:00:00:01"
    assert report.pfs[0].vfs[0].vlan == 7
    assert decode_report(encode_report(report)) == report


def test_pf_reports_settings_of_its_driver_and_software_caps_of_this_agent() -> None:
    first, second = told(
        hardware(pf_state(supported_settings=frozenset({Setting.VLAN, Setting.MAC})), pf_state(PF1)), Ledger()
    ).pfs
    assert (first.takes, second.takes) == (("mac", "software-caps", "vlan"), ("software-caps",))


@pytest.mark.parametrize("pool", ["tencent.com/rdma", CLAIMS_POOL])
def test_vf_that_no_annotation_gets_is_shown_as_allocated(pool: str) -> None:
    """`GET /getpfs` of RIT's programs knows of no exclusive resources and no claims, prepared ones or not."""
    seen = hardware(replace(pf_state(), vfs=(vf(PF0, 0), replace(vf(PF0, 1), pool=pool))))
    [pf] = json.loads(encode_getpfs(told(seen, Ledger())))
    assert [each["allocated"] for each in pf["vfs"]] == [False, True]
    assert (pf["used_vfs"], pf["capacity_vfs"]) == (1, 2)


def test_report_keeps_the_parts_of_pfs_and_allocations_that_are_as_before() -> None:
    reports = NodeReports(NodeName("w1"), "e")
    before = reports.build(in_use(), HELD)
    ledger = HELD.with_receipt(receipt("c2", interface(PF1, 2, minimum=50)))
    after = reports.build(in_use(), ledger)
    assert after.pfs[0] is before.pfs[0]
    assert after.allocations[0] is before.allocations[0]
    assert [allocation.container_id for allocation in after.allocations] == ["c1", "c2"]
    assert after.pfs[1].vfs[2].allocated


def test_report_after_others_is_as_if_it_were_the_first() -> None:
    reports = NodeReports(NodeName("w1"), "e")
    lost = replace(in_use(), pfs=(*in_use().pfs[:1], replace(in_use().pfs[1], link_mbps=50)))
    more = HELD.with_receipt(receipt("c2", interface(PF0, 2, maximum=300)))
    capped = Unenforced(caps={interface(PF0, 0).vf: "its qdisc is gone"})
    states = [
        (in_use(), HELD, Unenforced()),
        (in_use(), HELD, capped),
        (lost, HELD, Unenforced()),
        (hardware(), more, Unenforced()),
        (in_use(), Ledger(), Unenforced()),
        (in_use(), HELD, Unenforced()),
    ]
    for state in states:
        found, first = reports.build(*state), NodeReports(NodeName("w1"), "e").build(*state)
        assert msgspec.structs.replace(found, generation=first.generation) == first
