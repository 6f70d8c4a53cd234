"""No API server: what a process has that runs without one."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from k8s_rdma.kube.api import ApiUnreachableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from k8s_rdma.core.gang import Gang
    from k8s_rdma.core.ids import NodeName
    from k8s_rdma.core.ledger import Pod
    from k8s_rdma.kube.api import BudgetView, Event, NodeView, PodBinding, PodView


class AbsentApi:
    """`ClusterApi` that nobody answers: every call raises ApiUnreachableError."""

    async def get_pod(self, namespace: str, name: str) -> PodView | None:
        """Raises."""
        _refuse(f"get pod {namespace}/{name}")

    async def get_min_count(self, gang: Gang) -> int:
        """Raises."""
        _refuse(f"get podgroup {gang}")

    async def bind_pod(self, binding: PodBinding) -> None:
        """Raises."""
        _refuse(f"bind pod {binding.namespace}/{binding.name}")

    async def touch_pod(self, pod: Pod, key: str, value: str) -> PodView:  # noqa: ARG002 - the Protocol's
        """Raises."""
        _refuse(f"annotate pod {pod.namespace}/{pod.name}")

    async def label_pod(self, pod: Pod, key: str, value: str) -> PodView:  # noqa: ARG002 - the Protocol's
        """Raises."""
        _refuse(f"label pod {pod.namespace}/{pod.name}")

    async def annotate_node(self, node: NodeName, key: str, value: str) -> None:  # noqa: ARG002 - the Protocol's
        """Raises."""
        _refuse(f"annotate node {node}")

    async def label_node(self, node: NodeName, key: str, value: str) -> None:  # noqa: ARG002 - the Protocol's
        """Raises."""
        _refuse(f"label node {node}")

    def follow_pods(self) -> AsyncIterator[Event[PodView]]:
        """Raises."""
        _refuse("list pods")

    def follow_nodes(self) -> AsyncIterator[Event[NodeView]]:
        """Raises."""
        _refuse("list nodes")

    def follow_budgets(self) -> AsyncIterator[Event[BudgetView]]:
        """Raises."""
        _refuse("list poddisruptionbudgets")


def _refuse(what: str) -> NoReturn:
    msg = f"{what}: this process was told to do without an API server"
    raise ApiUnreachableError(msg)
