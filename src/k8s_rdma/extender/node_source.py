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

_log = structlog.get_logger()


class NodeSource(Protocol):
    """Brings the reports of nodes into a `ClusterState`.

    Times are seconds of the clock that the state's other inputs use. If a node cannot be read, its source
    notes the reason in the state and raises no exception.
    """

    async def refresh(self, nodes: Collection[NodeName], *, newer_than: float) -> None:
        """Return when each node's state is known to have held at `newer_than` or later.

        Either the state stems from a question asked at `newer_than` or later, or a watch would have reported
        any other state by now and was heard from within the configured time. A long poll counts as a watch.
        If a reservation waits for a report from after its pod's end (`ClusterState.ending`), the node is
        asked, because neither a watch nor a recent state shows that. A node that has not answered recently
        may be left alone for a while; it then stays unreadable.
        """
        ...

    async def request_report(self, node: NodeName) -> None:
        """Return when the node has answered a question asked now or later, or has failed to.

        If nodes cannot be asked, their last report stands for as long as they are heard from.
        """
        ...

    async def deliver(self, node: NodeName, placement: str) -> str:
        """Send a pod's placement to its node, if the node takes placements.

        Return the reason why the node refuses the placement. Return an empty text if the node accepts it or
        does not answer, or if its agent follows placements in the API server.
        """
        ...

    def learn(self, node: NodeName, addresses: tuple[str, ...]) -> None:
        """Learn the node's addresses from the API server."""
        ...

    def suggest(self, node: NodeName, addresses: Callable[[], tuple[str, ...]]) -> None:
        """Learn a node's addresses from an older source, only if the node is still unknown.

        addresses: decodes the addresses.
        """
        ...

    def addresses(self, node: NodeName) -> tuple[str, ...]:
        """Return the known addresses of the node's server, best first."""
        ...

    def forget(self, node: NodeName) -> None:
        """Forget the node, because it does not exist any more."""
        ...

    def awaited(self) -> int:
        """Return the number of nodes without any state; 0 from the first 0 on.

        An unreadable node has a state. Callers must know the nodes first.
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
        """Count the nodes by the source of their states, or as `unreadable`."""
        ...

    def oldest_s(self) -> float:
        """Return the time since the last answer of the readable node that has been silent for longest."""
        ...

    def readings(self) -> dict[str, Reading]:
        """Return further readings for metrics."""
        ...


def source_readings(source: ObservableNodeSource) -> dict[str, Reading]:
    """Return the readings of a source for metrics."""
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


def facts_of(report: NodeReport, node: NodeName) -> NodeFacts:
    """Return the facts of a report that `node` was asked for.

    MalformedError (`UNREADABLE_NODE`): another node answered, or `facts_of_status` refuses the report.
    """
    require_node(report, node)
    with _reading(node):
        status = status_of(report)
    facts = facts_of_status(status, node)
    return replace(facts, takes_placements=True) if report.takes_placements else facts


def facts_of_status(status: RdmaNodeStatus, node: NodeName) -> NodeFacts:
    """Return the facts of a status that a node published.

    MalformedError (`UNREADABLE_NODE`): the status supports no conclusion, for one of these reasons.

    - The node's agent is down. Its allocations are not known, and no pod could start there.
    - The data of a PF has no meaning.
    - The agent could not see all of the hardware. A PF that it could not see must not look absent.
    """
    if why := status.unready_reason():
        _refuse(why)
    with _reading(node):
        return read_facts(status, node)


@contextmanager
def _reading(node: NodeName) -> Iterator[None]:
    """Refuse a report that has no meaning, or that makes reading it fail by a defect of this system.

    The defect costs this node only.
    """
    try:
        yield
    except ValueError as error:
        _refuse(str(error))
    except Exception as error:
        _log.exception("report_failed", node=node)
        _refuse(f"its report makes reading it fail: {type(error).__name__}: {error}")


def _refuse(why: str) -> NoReturn:
    raise MalformedError(why, reason=Reason.UNREADABLE_NODE)
