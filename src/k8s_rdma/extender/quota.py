"""Quotas: the limit for all pods of a namespace together, in the whole cluster."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING

from k8s_rdma.core.placement import PlacedInterface, Share, limit_of
from k8s_rdma.extender.metrics import Reading, samples
from k8s_rdma.wire.views import Limit

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from k8s_rdma.config.extender import NamespaceLimit
    from k8s_rdma.core.request import Request
    from k8s_rdma.core.types import NodeName, PodUid

NOTHING = Share()


class Limits:
    """The accounts of the limited namespaces; updated with every change of a node's use.

    on_freed: called with a namespace that holds less now.
    """

    def __init__(self, limits: Iterable[NamespaceLimit], on_freed: Callable[[str], None]) -> None:
        self._limits = {limit.namespace: limit for limit in limits}
        self._on_freed = on_freed
        self._nodes: dict[NodeName, dict[PodUid, tuple[str, Share]]] = {}
        self._places: dict[PodUid, tuple[NodeName, ...]] = {}
        self._mbps: Counter[str] = Counter()
        self._vfs: Counter[str] = Counter()

    def __bool__(self) -> bool:
        """Report whether any namespace is limited."""
        return bool(self._limits)

    def update(self, node: NodeName, use: Iterable[tuple[PodUid, str, tuple[PlacedInterface, ...]]]) -> None:
        """Replace the node's use: its pods with interfaces, and each pod's namespace and interfaces."""
        previous = self._nodes.get(node, {})
        after = {uid: _pod_use(space, interfaces) for uid, space, interfaces in use if self.limit(space)}
        changed = [uid for uid in previous.keys() | after.keys() if previous.get(uid) != after.get(uid)]
        spaces = {(after.get(uid) or previous[uid])[0] for uid in changed}
        used_before = {space: self.used(space) for space in spaces}
        for uid in changed:
            self._count(uid, -1)
        self._nodes[node] = after
        for uid in changed:
            other_places = tuple(place for place in self._places.pop(uid, ()) if place != node)
            if places := (*other_places, node) if uid in after else other_places:
                self._places[uid] = places
            self._count(uid, +1)
        if not after:
            del self._nodes[node]
        for space in sorted(spaces):
            now = self.used(space)
            if now == NOTHING:
                del self._mbps[space], self._vfs[space]
            if now.mbps < used_before[space].mbps or now.vfs < used_before[space].vfs:
                self._on_freed(space)

    def limit(self, namespace: str) -> NamespaceLimit | None:
        """Return the namespace's limit; None without one."""
        return limit_of(self._limits, namespace) if self._limits else None

    def used(self, namespace: str) -> Share:
        """Return the sum of the interfaces that the namespace's pods hold."""
        return Share(self._mbps[namespace], self._vfs[namespace])

    def use(self, namespace: str) -> Limit | None:
        """Return the use of the namespace's limit, for people; None without a limit."""
        limit, used = self.limit(namespace), self.used(namespace)
        if limit is None:
            return None
        return Limit(
            used_mbps=used.mbps, limit_mbps=limit.reserved_mbps, used_vfs=used.vfs, limit_vfs=limit.vfs
        )

    def refusal(
        self,
        namespace: str,
        uid: PodUid,
        request: Request,
        *,
        excluded: Collection[PodUid] = (),
        added: Iterable[tuple[PlacedInterface, ...]] = (),
    ) -> str | None:
        """Return why the pod exceeds its namespace's limit, with used and limit; None if it does not.

        excluded: pods that do not count.
        added: interfaces that other pods of the namespace are about to hold.
        """
        limit = self.limit(namespace)
        if limit is None:
            return None
        own, used = self._share_of_pods(namespace, {uid, *excluded}), self.used(namespace)
        more_to_come = [Share.of_interfaces(interfaces) for interfaces in added]
        mbps = used.mbps - own.mbps + sum(share.mbps for share in more_to_come)
        vfs = used.vfs - own.vfs + sum(share.vfs for share in more_to_come)
        needs = Share.of_request(request)
        return Share(mbps, vfs).refusal(namespace, needs, limit.reserved_mbps, limit.vfs) or None

    def may_pass(self, namespace: str, request: Request) -> bool:
        """Report whether the pod alone keeps to its namespace's limit."""
        limit, needs = self.limit(namespace), Share.of_request(request)
        if limit is None:
            return True
        kinds = ((limit.reserved_mbps, needs.mbps), (limit.vfs, needs.vfs))
        return all(limit_value is None or needed <= limit_value for limit_value, needed in kinds)

    def readings(self) -> dict[str, Reading]:
        """Return readings for metrics, for limited namespaces with any use."""

        def by_namespace(counts: Counter[str]) -> Iterable[tuple[Mapping[str, str], float]]:
            return samples(("namespace",), {(space,): number for space, number in counts.items()})

        return {
            "namespace_reserved_mbps": (
                "Mb/s that a limited namespace's pods reserve.",
                "gauge",
                lambda: by_namespace(self._mbps),
            ),
            "namespace_vfs": (
                "VFs that a limited namespace's pods hold.",
                "gauge",
                lambda: by_namespace(self._vfs),
            ),
        }

    def nodes(self, namespaces: Collection[str]) -> list[NodeName]:
        """Return the nodes on which pods of these namespaces hold interfaces."""
        spaces = frozenset(namespaces)
        return [
            node
            for node, pods in self._nodes.items()
            if spaces and any(space in spaces for space, _ in pods.values())
        ]

    def _share_of_pods(self, namespace: str, uids: Iterable[PodUid]) -> Share:
        shares = [self._share_of(uid) for uid in uids if self._namespace(uid) == namespace]
        return Share(sum(share.mbps for share in shares), sum(share.vfs for share in shares))

    def _namespace(self, uid: PodUid) -> str | None:
        return next((self._nodes[node][uid][0] for node in self._places.get(uid, ())), None)

    def _share_of(self, uid: PodUid) -> Share:
        shares = [self._nodes[node][uid][1] for node in self._places.get(uid, ())]
        return Share(*map(max, zip(*shares, strict=True))) if shares else NOTHING

    def _count(self, uid: PodUid, sign: int) -> None:
        if uid in self._places:
            namespace, _ = self._nodes[self._places[uid][0]][uid]
            share = self._share_of(uid)
            self._mbps[namespace] += sign * share.mbps
            self._vfs[namespace] += sign * share.vfs


@lru_cache(maxsize=4096)
def _pod_use(namespace: str, interfaces: tuple[PlacedInterface, ...]) -> tuple[str, Share]:
    """Return one shared object for all pods of a namespace that hold the same interfaces."""
    return namespace, Share.of_interfaces(interfaces)
