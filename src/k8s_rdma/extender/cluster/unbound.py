"""Unbound pods that ask for interfaces, as they were last seen.

A bind is made of one version of its pod, so that any later write to the pod refuses it. Values in, values
out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from k8s_rdma.kube.api import PodView
from k8s_rdma.wire.annotation import ANNOTATION

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from k8s_rdma.core.ids import PodUid

MAX_CHARACTERS = 16 * 1024**2
"""Of all annotations that are kept: pods' owners decide how long they are. Of a pod beyond it the version is
kept, and `latest` does not know it."""

_NOT_KEPT: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class _Seen:
    pod: PodView
    characters: int


class UnboundPods:
    """The pods by UID."""

    def __init__(self, max_characters: int = MAX_CHARACTERS) -> None:
        self._max_characters = max_characters
        self._pods: dict[PodUid, _Seen] = {}
        self._characters = 0

    def __len__(self) -> int:
        """How many there are."""
        return len(self._pods)

    def see(self, pod: PodView) -> None:
        """The pod as the API server just told it."""
        self.forget(pod.uid)
        if pod.node is not None or pod.finished or not pod.annotations.get(ANNOTATION):
            return
        characters = sum(len(key) + len(value) for key, value in pod.annotations.items())
        if self._characters + characters > self._max_characters:
            pod, characters = replace(pod, annotations=_NOT_KEPT), 0
        self._pods[pod.uid] = _Seen(pod, characters)
        self._characters += characters

    def forget(self, uid: PodUid) -> None:
        """The pod is bound, finished or gone."""
        seen = self._pods.pop(uid, None)
        if seen is not None:
            self._characters -= seen.characters

    def keep_only(self, listed: Collection[PodUid]) -> None:
        """Those that a list of all pods does not hold are gone."""
        for uid in [uid for uid in self._pods if uid not in listed]:
            self.forget(uid)

    def latest(self, uid: PodUid) -> PodView | None:
        """The pod as it was last seen; None when that is not known."""
        seen = self._pods.get(uid)
        return seen.pod if seen and seen.pod.annotations is not _NOT_KEPT else None

    def all(self) -> list[PodView]:
        """All of them; the annotations may be missing."""
        return [seen.pod for seen in self._pods.values()]
