"""Facts of node w1, or the refusal of its report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.types import NodeName
from k8s_rdma.errors import MalformedError

if TYPE_CHECKING:
    from k8s_rdma.wire.node_facts import NodeFacts

W1 = NodeName("w1")


def concluded(facts) -> NodeFacts | str:
    try:
        return facts()
    except MalformedError as refused:
        return refused.message
