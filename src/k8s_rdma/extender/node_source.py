"""Source of the states of nodes: the protocol of the RdmaNode informer and the HTTP poller."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn, Protocol, Self

import structlog

from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.extender.metrics import Reading, samples
from k8s_rdma.wire.node_facts import NodeFacts, read_facts
from k8s_rdma.wire.rdma_node import RdmaNodeStatus, status_of
from k8s_rdma.wire.report import NodeReport, require_node

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Collection, Iterator
    from types import TracebackType

    from k8s_rdma.core.types import NodeName

MAX_ADDRESSES = 4
"""The limit for a node's addresses; the first ones are tried. Each may take a whole time-out, and kubelet
decides how many there are."""


class NodeSource(Protocol):
    """Brings what nodes report into a `ClusterState`.

    Times are seconds of the clock that the state's other inputs use. A node that cannot be read is
    noted in the state with the reason; nothing is raised for its sake.
    """

    async def refresh(self, nodes: Collection[NodeName], *, newer_than: float) -> None:
        """Return when each node's state is one that was so at `newer_than` or later, as far as can be known.

        It stems from a question asked at `newer_than` or later, or there is a watch (a long poll is one) that
        would have reported any other state by now and that was heard from within the configured time. Where
        something waits for an answer to a question from after a pod's end (`ClusterState.ending`), the node
        is asked: neither a watch nor a young state tells that. A node that did not answer lately may be left
        alone for a while, and then stays unreadable.
        """
        ...

    async def request_report(self, node: NodeName) -> None:
        """Return when the node's state stems from a question asked now or later, or it did not answer it.

        Where nodes cannot be asked, their last report stands for as long as they are heard from.
        """
        ...

    async def deliver(self, node: NodeName, placement: str) -> str:
        """Send a pod's placement to its node, if that has it sent.

        Return why the node refuses it; empty if it does not, where it does not answer, and where its agent
        follows placements in the API server.
        """
        ...

    def learn(self, node: NodeName, addresses: tuple[str, ...]) -> None:
        """The API server says that the node is to be reached at these addresses."""
        ...

    def suggest(self, node: NodeName, addresses: Callable[[], tuple[str, ...]]) -> None:
        """Learn from an older source; only for nodes that are still unknown. addresses: decodes them."""
        ...

    def addresses(self, node: NodeName) -> tuple[str, ...]:
        """The addresses at which the node's server may be asked, best first; empty if none are known."""
        ...

    def forget(self, node: NodeName) -> None:
        """The node does not exist any more."""
        ...

    def awaited(self) -> int:
        """The number of nodes without any state, not even an unreadable one; 0 from the first 0 on.

        To be asked once the nodes are known.
        """
        ...


class ObservableNodeSource(NodeSource, Protocol):
    """`NodeSource` that runs as an async context manager, and that metrics can show."""

    async def __aenter__(self) -> Self:
        """Begin to ask nodes, or to watch them."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop asking or watching nodes."""
        ...

    def sources(self) -> Counter[tuple[str, ...]]:
        """Count the nodes by how their states are known, or `unreadable`."""
        ...

    def oldest_s(self) -> float:
        """The time since the last answer of the readable node that has been silent for longest."""
        ...

    def readings(self) -> dict[str, Reading]:
        """Return further readings for metrics."""
        ...


def source_readings(source: ObservableNodeSource) -> dict[str, Reading]:
    """Readings of a source for metrics."""
    return {
        **source.readings(),
        "nodes": (
            "Nodes by how their states are known.",
            "gauge",
            lambda: samples(("source",), source.sources()),
        ),
        "node_state_age_seconds": (
            "Time since the last report of the readable node that has been silent for longest.",
            "gauge",
            source.oldest_s,
        ),
    }


_log = structlog.get_logger()


def facts_of(report: NodeReport, node: NodeName) -> NodeFacts:
    """The facts of a report that `node` was asked for; as `facts_of_status`.

    MalformedError (`UNREADABLE_NODE`) also when another node answered.
    """
    require_node(report, node)
    with _reading(node):
        status = status_of(report)
    facts = facts_of_status(status, node)
    return replace(facts, takes_placements=True) if report.takes_placements else facts


def facts_of_status(status: RdmaNodeStatus, node: NodeName) -> NodeFacts:
    """The facts of what a node published.

    MalformedError (`UNREADABLE_NODE`) when nothing may be concluded from it: its agent is down (its
    allocations are not known, and no pod could start there), what it tells of a PF has no meaning, or not
    everything could be seen: what is missing must not look like less hardware.
    """
    if why := status.unready_reason():
        _refuse(why)
    with _reading(node):
        return read_facts(status, node)


@contextmanager
def _reading(node: NodeName) -> Iterator[None]:
    """Refuse a report that has no meaning, or that makes reading it fail: a defect, which costs this node."""
    try:
        yield
    except ValueError as error:
        _refuse(str(error))
    except Exception as error:
        _log.exception("report_failed", node=node)
        _refuse(f"its report makes reading it fail: {type(error).__name__}: {error}")


def _refuse(why: str) -> NoReturn:
    raise MalformedError(why, reason=Reason.UNREADABLE_NODE)
