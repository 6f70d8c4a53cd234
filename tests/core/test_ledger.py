from __future__ import annotations

from dataclasses import replace

import pytest

from factories import PF0, PF1, interface, pod, receipt
from k8s_rdma.core.ledger import Ledger
from k8s_rdma.core.placement import PlacedInterface
from k8s_rdma.core.step import VfRef
from k8s_rdma.errors import LedgerError


def test_ledger_refuses_a_vf_twice_when_another_container_holds_it() -> None:
    ledger = Ledger().with_receipt(receipt("a", interface(PF0, 2)))
    with pytest.raises(LedgerError, match=r"VF 2 of PF 0000:03:00\.0 is held by container a"):
        ledger.with_receipt(receipt("b", interface(PF0, 2)))


def test_ledger_replaces_a_receipt_of_the_same_attachment() -> None:
    first = receipt("a", interface(PF0, 2), interface(PF0, 3, "rdma1"))
    second = replace(first, interfaces=first.interfaces[:1])
    ledger = Ledger().with_receipt(first).with_receipt(second)
    assert ledger.holders() == {VfRef(PF0, 2): first.attachment}


def test_ledger_is_unchanged_when_a_receipt_is_added() -> None:
    empty = Ledger()
    empty.with_receipt(receipt())
    assert not empty.receipts


def test_ledger_frees_vfs_when_an_attachment_ends() -> None:
    held = receipt("a", interface(PF0, 2))
    ledger = Ledger().with_receipt(held).without_attachments(held.attachment)
    assert not ledger.holders()
    assert ledger.without_attachments(held.attachment) == ledger


def test_ledger_adds_up_a_pod_over_its_sandboxes() -> None:
    one = receipt("a", interface(PF0, 0, minimum=100))
    two = receipt("b", interface(PF1, 0, minimum=50))
    other = receipt("c", interface(PF1, 1), pod=pod("other"))
    ledger = Ledger().with_receipt(one).with_receipt(two).with_receipt(other)
    assert ledger.allocations()[pod().uid] == (
        PlacedInterface(pf=PF0, min_tx_rate_mbps=100),
        PlacedInterface(pf=PF1, min_tx_rate_mbps=50),
    )
    assert set(ledger.of_pod(pod().uid)) == {one, two}
    assert ledger.of_container(other.attachment.container) == (other,)


def test_ledger_has_no_allocation_of_a_pod_whose_receipt_is_of_its_delegate_alone() -> None:
    bare = replace(receipt("a"), interfaces=())
    ledger = Ledger().with_receipt(bare)
    assert ledger.allocations() == {}
    assert not ledger.holders()
    assert ledger.of_pod(bare.pod.uid) == (bare,)
