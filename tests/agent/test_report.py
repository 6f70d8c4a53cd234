"""What the agent's report says of VFs that pods hold, and of promises that a link no longer keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from factories import PF0, PF1, hardware, interface, pf_state, receipt, vf
from k8s_rdma.agent.report import node_report
from k8s_rdma.core.ids import NodeName
from k8s_rdma.core.inventory import Generation
from k8s_rdma.core.ledger import Ledger

if TYPE_CHECKING:
    from k8s_rdma.core.kernel import Hardware
    from k8s_rdma.wire.rest import NodeReport

HELD = Ledger().with_receipt(
    receipt("c1", interface(PF0, 0, minimum=600, maximum=700), interface(PF1, 1, minimum=100))
)


def told(seen: Hardware, ledger: Ledger = HELD) -> NodeReport:
    return node_report(node=NodeName("w1"), generation=Generation("e", 1), hardware=seen, ledger=ledger)


def test_held_vf_has_rates_and_mac_of_the_ledger_whatever_is_seen_of_it() -> None:
    pod_changed_it = vf(PF0, 0, netdev=None, mac="02:66:66:66:66:66", min_tx_rate_mbps=1)
    free = vf(PF0, 1)
    pf = told(hardware(replace(pf_state(), vfs=(pod_changed_it, free)))).pfs[0]
    assert pf.vfs[0].allocated
    assert (pf.vfs[0].min_tx_rate, pf.vfs[0].max_tx_rate) == (600, 700)
    assert pf.vfs[0].mac == vf(PF0, 0).mac
    assert (pf.vfs[1].allocated, pf.vfs[1].min_tx_rate, pf.vfs[1].mac) == (False, 0, free.mac)


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
def test_promise_that_the_link_no_longer_keeps_is_a_problem_of_its_pf(
    link_mbps: int | None, sentence: str
) -> None:
    slow = pf_state(PF0, link_mbps=link_mbps, problems=("its fan is loud",))
    first, second = told(hardware(slow, pf_state(PF1))).pfs
    assert first.problems == ("its fan is loud", sentence)
    assert second.problems == ()


def test_promise_that_is_kept_to_the_last_bit_is_no_problem() -> None:
    assert told(hardware(pf_state(PF0, link_mbps=600))).pfs[0].problems == ()
    assert told(hardware(pf_state(PF0, link_mbps=None)), Ledger()).pfs[0].problems == ()
