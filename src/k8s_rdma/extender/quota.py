"""Quotas: what the pods of a namespace may hold together, in the whole cluster."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.core.placement import unique_interfaces
from k8s_rdma.extender.metrics import samples

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from k8s_rdma.core.ids import NodeName, PodUid
    from k8s_rdma.core.placement import PlacedInterface
    from k8s_rdma.core.request import Request
    from k8s_rdma.extender.config import NamespaceLimit
    from k8s_rdma.extender.metrics import Reading

EVERY_NAMESPACE = "*"


class Share(NamedTuple):
    """Reserved bandwidth, Mb/s, and VFs."""

    mbps: int = 0
    vfs: int = 0


NOTHING = Share()


class Limits:
    """The accounts of the namespaces that are limited; kept up with every change of a node's claims.

    on_freed: told of a namespace that holds less now.
    """

    def __init__(self, limits: Iterable[NamespaceLimit], on_freed: Callable[[str], None]) -> None:
        self._limits = {limit.namespace: limit for limit in limits}
        self._on_freed = on_freed
        self._nodes: dict[NodeName, dict[PodUid, tuple[str, Share]]] = {}
        self._places: dict[PodUid, tuple[NodeName, ...]] = {}
        self._mbps: Counter[str] = Counter()
        self._vfs: Counter[str] = Counter()

    def __bool__(self) -> bool:
        """Whether anything is limited."""
        return bool(self._limits)

    def update(
        self, node: NodeName, claims: Iterable[tuple[PodUid, str, tuple[PlacedInterface, ...]]]
    ) -> None:
        """The pods that hold something on the node are these, in these namespaces, with these interfaces."""
        before = self._nodes.get(node, {})
        after = {uid: _claim(space, held) for uid, space, held in claims if self.limit(space)}
        changed = [uid for uid in before.keys() | after.keys() if before.get(uid) != after.get(uid)]
        spaces = {(after.get(uid) or before[uid])[0] for uid in changed}
        held = {space: self.used(space) for space in spaces}
        for uid in changed:
            self._count(uid, -1)
        self._nodes[node] = after
        for uid in changed:
            others = tuple(place for place in self._places.pop(uid, ()) if place != node)
            if places := (*others, node) if uid in after else others:
                self._places[uid] = places
            self._count(uid, +1)
        if not after:
            del self._nodes[node]
        for space in sorted(spaces):
            now = self.used(space)
            if now == NOTHING:
                del self._mbps[space], self._vfs[space]
            if now.mbps < held[space].mbps or now.vfs < held[space].vfs:
                self._on_freed(space)

    def limit(self, namespace: str) -> NamespaceLimit | None:
        """Its limit; None where it has none."""
        return self._limits.get(namespace) or self._limits.get(EVERY_NAMESPACE)

    def used(self, namespace: str) -> Share:
        """What its pods hold."""
        return Share(self._mbps[namespace], self._vfs[namespace])

    def refusal(
        self,
        namespace: str,
        uid: PodUid,
        request: Request,
        *,
        excluded: Collection[PodUid] = (),
        added: Iterable[tuple[PlacedInterface, ...]] = (),
    ) -> str | None:
        """Why the pod would take its namespace beyond the limit, with used and limit; None if not.

        excluded: pods that hold nothing then. added: what others of the namespace are about to hold.
        """
        limit = self.limit(namespace)
        if limit is None:
            return None
        own, held, needs = (
            self._share_of_pods(namespace, {uid, *excluded}),
            self.used(namespace),
            _needs(request),
        )
        more_to_come = [_claim(namespace, interfaces)[1] for interfaces in added]
        mbps = held.mbps - own.mbps + sum(share.mbps for share in more_to_come)
        vfs = held.vfs - own.vfs + sum(share.vfs for share in more_to_come)
        kinds = (
            (mbps, limit.reserved_mbps, needs.mbps, "reserved Mb/s"),
            (vfs, limit.vfs, needs.vfs, "VFs"),
        )
        beyond = [
            f"namespace {namespace} holds {used} of {most} {what}; needs {more}"
            for used, most, more, what in kinds
            if most is not None and more and used + more > most
        ]
        return " and ".join(beyond) or None

    def may_pass(self, namespace: str, request: Request) -> bool:
        """Whether the pod keeps to the limit if the namespace holds nothing else."""
        limit, needs = self.limit(namespace), _needs(request)
        if limit is None:
            return True
        kinds = ((limit.reserved_mbps, needs.mbps), (limit.vfs, needs.vfs))
        return all(most is None or more <= most for most, more in kinds)

    def readings(self) -> dict[str, Reading]:
        """What metrics show: of namespaces that are limited and hold something."""

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

    def nodes(self, namespace: str) -> list[NodeName]:
        """Where its pods hold something."""
        return [
            node
            for node, pods in self._nodes.items()
            if any(space == namespace for space, _ in pods.values())
        ]

    def _share_of_pods(self, namespace: str, uids: Iterable[PodUid]) -> Share:
        shares = [self._share_of(uid) for uid in uids if self._namespace(uid) == namespace]
        return Share(sum(share.mbps for share in shares), sum(share.vfs for share in shares))

    def _namespace(self, uid: PodUid) -> str | None:
        return next((self._nodes[node][uid][0] for node in self._places.get(uid, ())), None)

    def _share_of(self, uid: PodUid) -> Share:
        claims = [self._nodes[node][uid][1] for node in self._places.get(uid, ())]
        return Share(*map(max, zip(*claims, strict=True))) if claims else NOTHING

    def _count(self, uid: PodUid, sign: int) -> None:
        if uid in self._places:
            namespace, _ = self._nodes[self._places[uid][0]][uid]
            share = self._share_of(uid)
            self._mbps[namespace] += sign * share.mbps
            self._vfs[namespace] += sign * share.vfs


@lru_cache(maxsize=4096)
def _claim(namespace: str, interfaces: tuple[PlacedInterface, ...]) -> tuple[str, Share]:
    """One object for all pods of a namespace that hold the same."""
    once = unique_interfaces(interfaces)
    return namespace, Share(sum(each.min_tx_rate_mbps for each in once), len(once))


def _needs(request: Request) -> Share:
    return Share(sum(interface.min_tx_rate_mbps for interface in request.interfaces), len(request.interfaces))
