"""The chain of a scheduler's extenders, called one after the other as kube-scheduler does."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import structlog

from k8s_rdma_demo.cluster.extender_client import (
    ExtenderClient,
    ExtenderConfig,
    ExtenderError,
    Filtered,
    MetaVictims,
    Victims,
)
from k8s_rdma_demo.cluster.objects import JsonObject, go_quote, name_of, uid_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence


_log = structlog.get_logger()


class Extenders:
    """Source: `findNodesThatPassExtenders`, `prioritizeNodes`, `extendersBinding` in `schedule_one.go`.

    An extender that is `ignorable` and fails is passed over; the failure of another is ExtenderError.
    """

    def __init__(self, clients: Sequence[ExtenderClient]) -> None:
        self._clients = clients

    @classmethod
    @asynccontextmanager
    async def connecting(cls, configs: Sequence[ExtenderConfig]) -> AsyncIterator[Extenders]:
        """Clients of all of them for as long as the block lasts."""
        async with AsyncExitStack() as stack:
            yield cls([await stack.enter_async_context(ExtenderClient.connecting(c)) for c in configs])

    async def filter(self, pod: JsonObject, nodes: list[JsonObject]) -> Filtered:
        """The nodes that all of them leave; an extender is not asked about none."""
        refused: dict[str, str] = {}
        never: frozenset[str] = frozenset()
        for client in self._interested(pod):
            if not nodes:
                break
            try:
                answer = await client.filter(pod, nodes)
            except ExtenderError as error:
                _ignore(client, error)
                continue
            nodes = answer.nodes
            refused |= answer.refused
            never |= answer.unresolvable
        return Filtered(nodes=nodes, refused=refused, unresolvable=never)

    async def best(self, pod: JsonObject, nodes: list[JsonObject]) -> list[str]:
        """The names of the nodes with the highest sum of scores, sorted; a failed call gives no score."""
        scores = dict.fromkeys((name_of(node) for node in nodes), 0)
        for client in self._interested(pod):
            try:
                priorities = await client.prioritize(pod, nodes)
            except ExtenderError as error:
                _log.warning("extender.no_score", extender=client.config.url_prefix, error=error.message)
                continue
            for node, score in priorities.items():
                if node in scores:
                    scores[node] += score
        highest = max(scores.values())
        return sorted(node for node, score in scores.items() if score == highest)

    async def preempt(
        self, pod: JsonObject, victims: Mapping[str, Victims], pods_on: Callable[[str], Iterable[JsonObject]]
    ) -> Mapping[str, Victims]:
        """The victims that all of them leave or add. Source: `callExtenders`, `framework/preemption`."""
        for client in self._interested(pod):
            if not client.config.preempt_verb or not victims:
                continue
            try:
                victims = _victims_by_node(await client.preempt(pod, victims), pods_on, client.config)
            except ExtenderError as error:
                _ignore(client, error)
        return victims

    async def bind(self, pod: JsonObject, node: str) -> bool:
        """Have the first one with a bind verb bind the pod; False when there is none."""
        for client in self._interested(pod):
            if not client.config.bind_verb:
                continue
            try:
                await client.bind(pod, node)
            except ExtenderError as error:
                _ignore(client, error)
                continue
            return True
        return False

    def _interested(self, pod: JsonObject) -> Iterator[ExtenderClient]:
        return (client for client in self._clients if client.is_interested(pod))


def _victims_by_node(
    answer: Mapping[str, MetaVictims],
    pods_on: Callable[[str], Iterable[JsonObject]],
    config: ExtenderConfig,
) -> dict[str, Victims]:
    """The pods of an answer; one that is not on its node fails it, and so does a node without any."""
    victims: dict[str, Victims] = {}
    for node, meta in answer.items():
        by_uid = {uid_of(pod): pod for pod in pods_on(node)}
        for uid in meta.uids:
            if uid not in by_uid:
                msg = (
                    f"extender: {config.url_prefix} claims to preempt pod (UID: {uid}) on node: {node}, "
                    "but the pod is not found on that node"
                )
                raise ExtenderError(msg)
        if meta.uids:
            victims[node] = Victims(tuple(by_uid[uid] for uid in meta.uids), meta.violations)
        elif not config.ignorable:
            msg = f"expected at least one victim pod on node {go_quote(node)}"
            raise ExtenderError(msg)
    return victims


def _ignore(client: ExtenderClient, error: ExtenderError) -> None:
    if not client.config.ignorable:
        raise error
    _log.warning("extender.passed_over", extender=client.config.url_prefix, error=error.message)
