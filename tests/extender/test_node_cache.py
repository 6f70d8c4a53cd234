"""The model: the use of a node, and the end of a promise."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from extender.node_server import PF0, PF1, pf, rates, report
from k8s_rdma.core.pf_use import Used
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.types import NodeName, PciAddress, PodUid
from k8s_rdma.errors import MalformedError
from k8s_rdma.extender.node_cache import NOT_ASKED, ClusterState
from k8s_rdma.extender.node_source import facts_of
from k8s_rdma.extender.reservation import Reservation, Stage
from k8s_rdma.wire.report import GpuReport

if TYPE_CHECKING:
    from k8s_rdma.wire.node_facts import NodeFacts

W1, W2 = NodeName("w1"), NodeName("w2")
P, Q = PodUid("p"), PodUid("q")


def facts(node: str = "w1", **held: int):
    return facts_of(report(node, pf(PF0), held=held), NodeName(node))


def reservation(mbps: int = 1_000, at: float = 0.0, **changes: object) -> Reservation:
    placed = PlacedInterface(pf=PciAddress(PF0), min_tx_rate_mbps=mbps)
    return Reservation(interfaces=(placed,), pod="default/p", created_at=at, **changes)


def used(state: ClusterState, node: NodeName = W1) -> Used:
    return state.snapshots[node].used.get(PciAddress(PF0), Used())


def test_state_counts_promised_and_reported_interfaces_once():
    state = ClusterState()
    state.observe(W1, facts(p=3_000), 1.0)
    state.reserve(W1, P, reservation(1_000))
    state.reserve(W1, Q, reservation(2_000))
    assert used(state) == Used(2, 5_000)


def test_state_counts_the_report_if_it_differs_from_the_promise():
    state = ClusterState()
    state.reserve(W1, P, reservation(1_000))
    state.observe(W1, facts(p=4_000), 1.0)
    assert used(state) == Used(1, 4_000)


def test_ended_promise_stands_until_a_report_that_was_requested_later():
    state = ClusterState()
    state.observe(W1, facts(), 1.0)
    state.reserve(W1, P, reservation(1_000))
    state.on_delete(P, 5.0)
    state.observe(W1, facts(), 4.0)
    assert used(state) == Used(1, 1_000)
    state.observe(W1, facts(), 5.0)
    assert used(state) == Used(1, 1_000)
    state.observe(W1, facts(), 6.0)
    assert used(state) == Used()
    assert not state.pods()


def test_ended_promise_is_dropped_when_the_node_reports_no_change():
    state = ClusterState()
    state.observe(W1, facts(), 1.0)
    state.reserve(W1, P, reservation(1_000))
    state.on_delete(P, 5.0)
    state.confirm(W1, 6.0)
    assert used(state) == Used()


def test_ended_promise_becomes_the_report_once_the_node_reports_the_pod():
    state = ClusterState()
    state.reserve(W1, P, reservation(1_000))
    state.on_delete(P, 5.0)
    state.observe(W1, facts(p=1_000), 6.0)
    assert used(state) == Used(1, 1_000)
    state.observe(W1, facts(), 7.0)
    assert used(state) == Used()


def test_older_report_does_not_replace_a_newer_one():
    state = ClusterState()
    state.observe(W1, facts(p=1_000), 5.0)
    state.observe(W1, facts(), 4.0)
    state.confirm(W1, 4.0)
    assert used(state) == Used(1, 1_000)


def test_unreadable_node_has_no_situation_but_keeps_its_promises():
    state = ClusterState()
    state.observe(W1, facts(), 1.0)
    state.reserve(W1, P, reservation(1_000))
    state.lose(W1, "no answer")
    assert W1 not in state.snapshots
    assert state.snapshot_if(W1, excluded=[P]) is None
    assert state.why_unreadable(W1) == "no answer"
    state.confirm(W1, 2.0)
    assert used(state) == Used(1, 1_000)
    assert state.why_unreadable(W1) == NOT_ASKED


def test_promise_made_before_the_first_report_counts_from_the_first_report_on():
    state = ClusterState()
    state.reserve(W1, P, reservation(1_000))
    assert W1 not in state.snapshots
    state.observe(W1, facts(), 1.0)
    assert used(state) == Used(1, 1_000)


def test_pod_bound_to_one_node_counts_on_no_other():
    state = ClusterState()
    state.reserve(W1, P, reservation(stage=Stage.IN_DOUBT))
    state.reserve(W2, P, reservation())
    state.bound(W2, P, None)
    assert state.nodes_of(P) == {W2}
    assert state.reservation(W2, P).bound


def test_first_promise_stands_when_the_annotation_differs_later():
    state = ClusterState()
    state.bound(W1, P, reservation(1_000))
    state.bound(W1, P, reservation(9_000))
    assert state.reservation(W1, P).interfaces == reservation(1_000).interfaces


def changed(generation: int, mbps: int, previous_mbps: int) -> Reservation:
    placed = PlacedInterface(
        pf=PciAddress(PF0), min_tx_rate_mbps=mbps, previous_min_tx_rate_mbps=previous_mbps
    )
    return Reservation(interfaces=(placed,), pod="default/p", created_at=0.0, generation=generation)


def programmed(generation: int, mbps: int) -> NodeFacts:
    found = report("w1", pf(PF0), held={"p": mbps})
    allocations = tuple(replace(each, generation=generation) for each in found.allocations)
    return facts_of(replace(found, allocations=allocations), W1)


@pytest.mark.parametrize(("mbps", "previous_mbps"), [(7_000, 5_000), (3_000, 5_000)])
def test_larger_of_two_reservations_counts_until_the_node_has_programmed_the_later_one(mbps, previous_mbps):
    state = ClusterState()
    state.bound(W1, P, reservation(previous_mbps))
    state.observe(W1, programmed(0, previous_mbps), 1.0)
    state.bound(W1, P, changed(1, mbps, previous_mbps))
    assert used(state) == Used(1, max(mbps, previous_mbps))
    state.observe(W1, programmed(0, previous_mbps), 2.0)
    assert used(state) == Used(1, max(mbps, previous_mbps))
    state.observe(W1, programmed(1, mbps), 3.0)
    assert used(state) == Used(1, mbps)


def cut_and_programmed() -> ClusterState:
    """A pod whose node programmed a cut, so that another was promised the room that it made."""
    state = ClusterState()
    state.bound(W1, P, reservation(90_000))
    state.observe(W1, programmed(0, 90_000), 1.0)
    state.bound(W1, P, changed(1, 10_000, 90_000))
    state.observe(W1, programmed(1, 10_000), 2.0)
    state.bound(W1, Q, reservation(80_000))
    assert used(state) == Used(2, 90_000)
    return state


def test_programmed_cut_stays_when_the_report_no_longer_holds_the_pod():
    state = cut_and_programmed()
    state.observe(W1, facts(), 3.0)  # its sandbox ended, and another may be made
    state.on_delete(P, ended_at=4.0)
    assert used(state) == Used(2, 90_000)
    state.observe(W1, facts(), 3.5)
    assert used(state) == Used(2, 90_000)
    assert state.programmed(W1, P) == 1
    state.observe(W1, facts(), 5.0)
    assert used(state) == Used(1, 80_000)


def test_programmed_cut_stays_when_the_node_is_made_anew():
    state = cut_and_programmed()
    state.forget(W1)
    state.observe(W1, facts(), 3.0)
    assert used(state) == Used(2, 90_000)


def test_programmed_cut_stays_when_it_was_reported_before_the_pod_was_seen_with_it():
    state = ClusterState()
    state.bound(W1, P, reservation(90_000))
    state.observe(W1, programmed(1, 10_000), 1.0)
    state.observe(W1, facts(), 2.0)
    state.bound(W1, P, changed(1, 10_000, 90_000))
    assert used(state) == Used(1, 10_000)


def test_larger_reservation_counts_again_when_the_node_reports_an_earlier_generation_again():
    state = cut_and_programmed()
    state.observe(W1, facts(), 3.0)
    state.observe(W1, programmed(0, 90_000), 4.0)
    assert used(state) == Used(2, 170_000)
    state.observe(W1, facts(), 5.0)
    assert used(state) == Used(2, 170_000)


def test_pod_that_its_agent_placed_on_another_pf_counts_on_both_while_its_rates_change():
    state = ClusterState()
    state.bound(W1, P, changed(1, 3_000, 5_000))
    found = report("w1", pf(PF1), pf(PF0), held={"p": 5_000})
    state.observe(W1, facts_of(found, W1), 1.0)
    snapshot = state.snapshots[W1]
    assert snapshot.used == {PciAddress(PF0): Used(1, 5_000), PciAddress(PF1): Used(1, 5_000)}


def test_earlier_generation_changes_no_promise():
    state = ClusterState()
    state.bound(W1, P, changed(2, 3_000, 5_000))
    state.bound(W1, P, changed(1, 9_000, 3_000))
    assert state.reservation(W1, P).generation == 2


def test_promise_is_the_one_that_was_written_when_the_bind_decided_here_was_another_ones():
    state = ClusterState()
    state.reserve(W1, P, reservation(1_000, stage=Stage.IN_DOUBT))
    state.bound(W1, P, reservation(9_000))
    assert state.reservation(W1, P) == reservation(9_000, stage=Stage.BOUND)


def test_promise_on_a_node_that_is_gone_ends_with_its_pod():
    there, changes = {W1}, {}
    state = ClusterState(on_use=lambda node, use: changes.update({node: use}), exists=there.__contains__)
    state.observe(W1, facts(), 1.0)
    for uid in (P, Q):
        state.reserve(W1, uid, reservation(stage=Stage.BOUND))
    there.clear()
    state.forget(W1)
    state.on_delete(P, 5.0)
    assert state.pods() == {Q}
    assert [uid for uid, _, _ in changes[W1]] == [Q]
    state.on_delete(Q, 6.0)
    assert not state.pods()
    assert not state.ending
    assert not changes[W1]


def test_answer_of_a_write_does_not_renew_an_ended_promise():
    state = ClusterState()
    state.reserve(W2, P, reservation(stage=Stage.IN_DOUBT))
    state.written(W1, P)
    assert not state.pods()


def test_answer_of_a_write_keeps_the_end_and_takes_the_written_placement():
    state = ClusterState()
    state.reserve(W1, P, reservation(1_000, stage=Stage.IN_DOUBT))
    state.on_delete(P, 5.0)
    state.written(W1, P, Placement(node=W1, interfaces=reservation(2_000).interfaces))
    held = state.reservation(W1, P)
    assert (held.bound, held.in_doubt, held.ended_at) == (True, False, 5.0)
    assert held.interfaces == reservation(2_000).interfaces


@pytest.mark.parametrize("changes", [{"stage": Stage.BOUND}, {"stage": Stage.ENDED, "ended_at": 5.0}])
def test_doubt_has_no_effect_if_the_pod_is_known_to_be_bound_or_ended(changes):
    state = ClusterState()
    held = reservation(**changes)
    state.reserve(W1, P, held)
    assert state.doubt(W1, P) is None
    assert state.doubt(W2, P) is None
    assert state.reservation(W1, P) is held
    assert state.nodes_of(P) == {W1}


def test_pod_bound_without_a_placement_reserves_no_room():
    state = ClusterState()
    state.bound(W1, P, None)
    assert not state.pods()


def test_situation_without_a_pod_leaves_out_its_promise_and_its_report():
    state = ClusterState()
    state.observe(W1, facts(p=1_000, q=2_000), 1.0)
    state.reserve(W1, P, reservation(1_000))
    assert state.snapshot_if(W1, excluded=[P]).used[PciAddress(PF0)] == Used(1, 2_000)


def test_nodes_in_an_equal_situation_share_it_and_a_changed_one_leaves_it():
    state = ClusterState()
    state.observe(W1, facts("w1"), 1.0)
    state.observe(W2, facts("w2"), 1.0)
    assert state.snapshots[W1] is state.snapshots[W2]
    state.reserve(W1, P, reservation())
    assert state.snapshots[W1] is not state.snapshots[W2]
    state.withdraw(W1, P)
    assert state.snapshots[W1] is state.snapshots[W2]


def test_nodes_that_differ_in_gpus_alone_share_no_situation():
    def with_gpu(node, **changes):
        gpu = GpuReport(resource="nvidia.com/gpu", pci="0000:1b:00.0", **changes)
        return facts_of(replace(report(node, pf(PF0)), gpus=(gpu,)), NodeName(node))

    state = ClusterState()
    state.observe(W1, with_gpu("w1"), 1.0)
    state.observe(W2, with_gpu("w2"), 1.0)
    assert state.snapshots[W1] is state.snapshots[W2]
    state.observe(W2, with_gpu("w2", in_use=True), 2.0)
    assert state.snapshots[W1] is not state.snapshots[W2]
    assert [gpu.in_use for gpu in state.snapshots[W2].inventory.gpus] == [True]


def test_situations_that_no_node_is_in_are_forgotten():
    state = ClusterState()
    state.observe(W1, facts(p=1), 1.0)
    left = weakref.ref(state.snapshots[W1])
    state.observe(W1, facts(p=2), 2.0)
    gc.collect()
    assert left() is None


def test_forgotten_node_keeps_promises_of_pods_that_still_exist():
    state = ClusterState()
    state.observe(W1, facts(), 1.0)
    state.reserve(W1, P, reservation())
    state.reserve(W1, Q, reservation())
    state.on_delete(Q, 2.0)
    state.forget(W1)
    assert W1 not in state.snapshots
    assert state.pods() == {P}
    state.observe(W1, facts(), 3.0)
    assert used(state) == Used(1, 1_000)


def test_change_is_reported_with_the_former_state_and_only_if_the_state_differs():
    changes = []
    state = ClusterState(on_change=lambda *change: changes.append(change))
    state.observe(W1, facts(), 1.0)
    empty = state.snapshots[W1]
    state.observe(W1, facts(), 2.0)
    state.confirm(W1, 3.0)
    state.reserve(W1, P, reservation())
    taken = state.snapshots[W1]
    state.lose(W1, "why")
    state.lose(W1, "why")
    assert changes == [(W1, None, empty), (W1, empty, taken), (W1, taken, None)]


by_pod = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 5_000))


@given(reported=by_pod, promised=by_pod, left=st.sampled_from("abcd"))
def test_used_is_each_pod_once_by_the_report_first_in_any_order(reported, promised, left):
    before, after = ClusterState(), ClusterState()
    before.observe(W1, facts(**reported), 1.0)
    for state in (before, after):
        for uid, mbps in promised.items():
            state.reserve(W1, PodUid(uid), reservation(mbps))
    after.observe(W1, facts(**reported), 1.0)
    wanted = {**promised, **reported}
    assert used(before) == used(after) == Used(len(wanted), sum(wanted.values()))
    wanted.pop(left, None)
    without = before.snapshot_if(W1, excluded=[PodUid(left)]).used.get(PciAddress(PF0), Used())
    assert without == Used(len(wanted), sum(wanted.values()))


def test_facts_hold_foreign_use_and_all_sandboxes_of_a_pod():
    one = report("w1", pf(PF1, foreign=[7, 0]), pf(PF0), held={"p": 1})
    both = type(one)(node="w1", generation="e.1", ledger="ok", pfs=one.pfs, allocations=one.allocations * 2)
    found = facts_of(both, W1)
    assert [p.pci for p in found.inventory.pfs] == [PF0, PF1]
    assert found.foreign == {PF1: Used(2, 7)}
    assert len(found.reported[P]) == 2


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"node": "w2"}, "answers for node 'w2'"),
        ({"ledger": "unavailable"}, "agent is down"),
        ({"pfs": (), "unreadable": ("enp1s0f0: EIO",)}, "enp1s0f0: EIO"),
        ({"unreadable": ("enp1s0f0: EIO",)}, "not all of its hardware could be looked at: enp1s0f0: EIO"),
        ({"pfs": (pf(enforce="perhaps"),)}, "perhaps"),
        ({"pfs": (pf(rates=rates(step=0)),)}, "step"),
        ({"pfs": (pf(rates=rates(weights=0)),)}, "weights"),
        ({"pfs": (pf("eth0"),)}, "pci"),
        ({"pfs": (pf(foreign=[-1]),)}, "minMbps"),
        ({"pfs": (pf(vfs=-1),)}, "capacityVfs"),
        ({"allocations": report("w1", held={"p": -5}).allocations}, "minMbps"),
    ],
)
def test_facts_are_refused_if_they_permit_no_conclusion(changes, why):
    fields = {"node": "w1", "generation": "e.1", "ledger": "ok", "pfs": (pf(),), **changes}
    with pytest.raises(MalformedError, match=why):
        facts_of(type(report("w1"))(**fields), W1)
