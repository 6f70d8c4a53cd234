"""Rates of a running pod, changed by the agent's node: the same on every kernel and driver."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from contract.lab import home_of, state_of
from factories import interface, pod, receipt
from k8s_rdma.agent.ledger_store import ClaimMarkers, DeferredDeletes, LedgerStore, Markers
from k8s_rdma.agent.node import Node
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.step import VfRef
from k8s_rdma.core.types import Enforce, NodeName
from k8s_rdma.errors import K8sRdmaError, Reason
from k8s_rdma.linux.receipts import Receipts


@pytest.fixture
def receipts(tmp_path):
    with closing(Receipts(tmp_path / "ledger.db")) as made:
        yield made


def running(lab, receipts, directory, enforce=Enforce.AUTO):
    """The node of a pod with a VF of each PF, without rates; for these it does not matter where VFs are."""
    interfaces = []
    for index, pci in enumerate(lab.pcis):
        vf = VfRef(pci, index)
        taken = interface(pci, index, f"rdma{index}")
        interfaces.append(
            replace(taken, pci=state_of(lab, vf).pci, home=home_of(lab, vf), entry=index, enforce=enforce)
        )
    receipts.put(receipt("c1", *interfaces, netns=lab.namespace()))
    return Node(
        name=NodeName("w1"),
        kernel=lab.kernel,
        ledger_store=LedgerStore(
            receipts,
            Markers(directory / "attachments"),
            DeferredDeletes(directory / "deletions"),
            ClaimMarkers(directory / "claims"),
        ),
        boot_id="boot-1",
    )


def placed(lab, generation, least, most, enforce=Enforce.AUTO):
    interfaces = tuple(
        PlacedInterface(pf=pci, min_tx_rate_mbps=least, max_tx_rate_mbps=most, enforce=enforce)
        for pci in lab.pcis
    )
    return Placement(node=NodeName("w1"), interfaces=interfaces, generation=generation)


def rates(lab):
    states = [state_of(lab, VfRef(pci, index)) for index, pci in enumerate(lab.pcis)]
    return {(vf.min_tx_rate_mbps, vf.max_tx_rate_mbps) for vf in states}


def test_each_generation_is_programmed_and_reservations_are_accounted_by_drivers_without(
    lab, receipts, tmp_path
):
    node = running(lab, receipts, tmp_path)
    for generation, (least, most) in enumerate([(100, 200), (300, 400), (50, 0), (0, 0)], 1):
        [changed] = node.change_rates(pod().uid, placed(lab, generation, least, most))
        assert rates(lab) == {(least if lab.rates.min else 0, most if lab.rates.max else 0)}
        assert {each.min_tx_rate_mbps for each in changed.interfaces} == {least}
        assert receipts.load().receipts[changed.attachment] == changed


def test_reservation_that_hardware_must_keep_is_refused_by_drivers_without(lab, receipts, tmp_path):
    if lab.rates.min or not lab.rates.max:
        pytest.skip(f"{lab.pf_names[0]} takes minimum rates, or none")
    node = running(lab, receipts, tmp_path, Enforce.HARDWARE)
    node.change_rates(pod().uid, placed(lab, 1, 0, 200, Enforce.HARDWARE))
    with pytest.raises(K8sRdmaError, match="takes no minimum rates") as refused:
        node.change_rates(pod().uid, placed(lab, 2, 100, 200, Enforce.HARDWARE))
    assert refused.value.reason is Reason.DRIVER_REFUSES
    assert f"interface rdma0: PF {lab.pf_names[0]}: " in refused.value.message
    assert rates(lab) == {(0, 200)}


def test_reservations_beyond_the_link_are_refused_without_effect(lab, receipts, tmp_path):
    node = running(lab, receipts, tmp_path)
    node.change_rates(pod().uid, placed(lab, 1, 100, 200))
    before = rates(lab)
    with pytest.raises(K8sRdmaError, match=f"{lab.link_mbps + 1} Mb/s needed"):
        node.change_rates(pod().uid, placed(lab, 2, lab.link_mbps + 1, 0))
    assert rates(lab) == before
