"""Facts of a node: the same over HTTP and of its `RdmaNode`."""

from __future__ import annotations

import pytest
from hypothesis import given
from msgspec.structs import replace

from extender.node_facts import W1, concluded
from extender.node_server import report
from k8s_rdma.errors import MalformedError
from k8s_rdma.extender.node_source import facts_of, facts_of_status
from k8s_rdma.wire.rdma_node import ForeignUse, decode_status, encode_status, status_of
from k8s_rdma.wire.report import MAX_VFS, NodeReport, decode_report, encode_report
from wire.rdma_node_values import reports


@given(reports())
def test_facts_are_the_same_over_http_and_of_the_published_status(node: NodeReport) -> None:
    asked = concluded(lambda: facts_of(decode_report(encode_report(node)), W1))
    watched = concluded(lambda: facts_of_status(decode_status(encode_status(status_of(node))), W1))
    assert asked == watched


def test_facts_are_refused_of_another_node() -> None:
    with pytest.raises(MalformedError, match="answers for node 'w2'"):
        facts_of(report("w2"), W1)


def test_node_that_reports_more_vfs_than_can_be_is_refused_at_once() -> None:
    told = status_of(report("w1"))
    uses = tuple(ForeignUse(vfs=MAX_VFS, min_mbps=rate) for rate in range(5))
    bloated = replace(told, pfs=(replace(told.pfs[0], foreign=uses),))
    with pytest.raises(MalformedError, match="20480 VFs that are held"):
        facts_of_status(decode_status(encode_status(bloated)), W1)
