"""Findings on cards, beside the table of cases."""

from __future__ import annotations

from dataclasses import replace

from doctor.cases.hardware import NOTHING_SEEN, WITHOUT_RDMA, hardware
from doctor.cases.processes import report_of_pf
from k8s_rdma.doctor.node.hardware import check_hardware


def test_machine_without_a_card_gets_no_advice_about_useless_settings():
    [found] = check_hardware(NOTHING_SEEN)
    assert found.id == "hardware-no-pf"
    assert found.found.startswith("no network card of this machine can have VFs: SR-IOV off in the BIOS")
    assert "requireRdma" not in found.fix


def test_problems_of_pfs_in_the_agents_report_are_shown_once():
    facts = hardware("igb-link-down", WITHOUT_RDMA)
    observed = [problem for pf in facts.hardware.pfs for problem in pf.problems]
    reserved = "PF eth0: 2000 Mb/s are reserved, and its link speed is unknown now"
    pf = next(each for each in facts.hardware.pfs if each.problems)
    reported = report_of_pf(name=pf.name, pci=pf.pci, problems=(*pf.problems, reserved))
    found = [
        each.found
        for each in check_hardware(replace(facts, report=reported))
        if each.id == "hardware-problem"
    ]
    assert found == [*observed, reserved]
    virtual = replace(NOTHING_SEEN, virtual=True)
    assert reserved in [each.found for each in check_hardware(replace(virtual, report=reported))]
