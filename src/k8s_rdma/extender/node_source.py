"""Source of the states of nodes: the protocol of the RdmaNode informer and the HTTP poller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

from k8s_rdma.extender.metrics import Reading, samples

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Collection
    from types import TracebackType

    from k8s_rdma.core.types import NodeName


class NodeSource(Protocol):
    """Brings what nodes report into a `ClusterState`.

    Times are seconds of the clock that the state's other inputs use. A node that cannot be read is
    noted in the state with the reason; nothing is raised for its sake.
    """

    async def refresh(self, nodes: Collection[NodeName], *, newer_than: float) -> None:
        """Return when each node's state is one that was so at `newer_than` or later, as far as can be known.

        It stems from a question asked at `newer_than` or later, or there is a watch (a long poll is one) that
        would have told of any other state by now and that was heard from within the configured time. Where
        something waits for an answer to a question from after a pod's end (`ClusterState.ended`), the node
        is asked: neither a watch nor a young state tells that. A node that did not answer lately may be left
        alone for a while, and then stays unreadable.
        """
        ...

    async def request_report(self, node: NodeName) -> None:
        """Return when the node's state stems from a question asked now or later, or it did not answer it.

        Where nodes cannot be asked, what they told last stands, for as long as they are heard from.
        """
        ...

    def learn(self, node: NodeName, addresses: tuple[str, ...]) -> None:
        """The API server says that the node is to be reached at these addresses."""
        ...

    def suggest(self, node: NodeName, addresses: tuple[str, ...]) -> None:
        """Learn from an older source; only for nodes of which nothing is known yet."""
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
        """End that."""
        ...

    def sources(self) -> Counter[tuple[str, ...]]:
        """Count the nodes by how their states are known, or `unreadable`."""
        ...

    def oldest_s(self) -> float:
        """The time since the last answer of the readable node that has been silent for longest."""
        ...

    def readings(self) -> dict[str, Reading]:
        """Further readings for metrics."""
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
            "Time since the readable node was heard from that is silent for longest.",
            "gauge",
            source.oldest_s,
        ),
    }
