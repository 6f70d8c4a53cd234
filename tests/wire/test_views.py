"""Views of the extender: orders, sums in words, and documents that are no views."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.views import (
    ClusterView,
    Explanation,
    ExtenderState,
    HolderRow,
    HoldersView,
    NamespaceView,
    NodeRow,
    PfRow,
    Sort,
    TakenShares,
    Totals,
    causes_text,
    decode_explanation,
    decode_holders,
    decode_namespace,
    decode_view,
    encode_explanation,
    encode_view,
    enforcers_text,
    sort_nodes,
    unreadable_nodes,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def pf(link_mbps: int | None, reserved_mbps: int | None, vfs: int, free_vfs: int) -> PfRow:
    return PfRow(name="p", link_mbps=link_mbps, reserved_mbps=reserved_mbps, vfs=vfs, free_vfs=free_vfs)


FULL = NodeRow(name="full", pods=1, heard_s=5.0, pfs=(pf(100, 90, 8, 7),))
SPARE = NodeRow(name="spare", pods=2, heard_s=9.0, pfs=(pf(100, 10, 8, 1),))
BROKEN = NodeRow(name="broken", problems=("its link is down",), pfs=(pf(None, None, 8, 6),), unreadable=True)


def view(role: Any) -> ClusterView:
    nodes = (FULL, BROKEN)
    return ClusterView(
        extender=ExtenderState(role=role), totals=Totals(nodes=2), nodes=nodes, pending=(), pending_total=0
    )


def holder(**changes: Any) -> HolderRow:
    fields = {"node": "w1", "pf": "p", "pci": "0000:03:00.0", "namespace": "default", "pod": "p", "uid": "u"}
    return HolderRow(**{**fields, "reserved_mbps": 1, "cap_mbps": 2, **changes})


@pytest.mark.parametrize(
    ("sort", "names"),
    [
        (Sort.RESERVED, ["full", "spare", "broken"]),
        (Sort.VFS, ["spare", "broken", "full"]),
        (Sort.PODS, ["spare", "full", "broken"]),
        (Sort.AGE, ["broken", "spare", "full"]),
        (Sort.PROBLEMS, ["broken", "full", "spare"]),
        (Sort.NAME, ["broken", "full", "spare"]),
    ],
)
def test_nodes_are_sorted_by_each_order(sort: Sort, names: list[str]):
    for nodes in ([FULL, SPARE, BROKEN], [BROKEN, SPARE, FULL]):
        assert [row.name for row in sort_nodes(nodes, sort)] == names


def test_shares_are_of_the_pfs_for_which_they_are_known():
    shares = TakenShares.from_rows((pf(100, 90, 8, 7), pf(None, None, 8, 5)))
    assert shares == TakenShares(0.9, 0.25)
    assert TakenShares.from_rows(()) == TakenShares(0.0, 0.0)


def test_causes_are_in_words_and_the_most_frequent_is_first():
    causes = {"exceeds_capacity": 1, "insufficient": 2, "not_known_here": 1}
    assert causes_text(causes) == (
        "2 nodes: not enough free for the pod; 1 node: too small for the pod, even when empty; "
        "1 node: not known here"
    )


@pytest.mark.parametrize(
    ("min_by", "max_by", "text"),
    [
        (None, "hardware", None),
        ("none", "none", ""),
        ("accounted", "none", "accounted only"),
        ("hardware", "hardware", "hardware"),
        ("accounted", "software", "reservation: accounted only, cap: software"),
    ],
)
def test_enforcers_are_named_once_if_they_are_the_same(
    min_by: str | None, max_by: str | None, text: str | None
):
    assert enforcers_text(holder(min_by=min_by, max_by=max_by)) == text


def test_nodes_are_unreadable_as_an_extender_says_that_knows_them():
    for role in ("active", "standby"):
        assert unreadable_nodes(view(role)) == {"full": "", "broken": "its link is down"}
    for role in ("starting", "absent"):
        assert unreadable_nodes(view(role)) is None


EXPLANATION = Explanation(
    namespace="default", name="p", uid="u", extender=ExtenderState(role="active"), state="waiting"
)
NAMESPACE = NamespaceView(namespace="default", interfaces=1, reserved_mbps=1, holders=(holder(),))


@pytest.mark.parametrize(
    ("document", "encode", "decode", "named"),
    [
        (view("active"), encode_view, decode_view, "cluster view"),
        (HoldersView(holders=(holder(),)), encode_view, decode_holders, "view of holders"),
        (NAMESPACE, encode_view, decode_namespace, "view of a namespace"),
        (EXPLANATION, encode_explanation, decode_explanation, "explanation"),
    ],
)
def test_document_is_the_same_after_it_was_written_and_read(
    document: object, encode: Callable[[Any], bytes], decode: Callable[[bytes], object], named: str
):
    assert decode(encode(document)) == document
    with pytest.raises(MalformedError, match=f"^{named}: "):
        decode(b"5")
