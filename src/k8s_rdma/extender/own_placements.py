"""Placements that this process has just signed, which it need not verify when the watch shows them.

Every bind comes back as a change of its pod. To verify the own signature takes as long as to make it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from k8s_rdma.core.types import PodUid
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, Promise

if TYPE_CHECKING:
    from k8s_rdma.kube.api import PodView

_MAX = 1_000
"""The number of placements that are kept until the watch shows them. Any further one is verified."""


@dataclass(slots=True)
class OwnPlacements:
    """The last text that this process signed for each pod, and its content."""

    _signed: OrderedDict[PodUid, tuple[str, Promise]] = field(default_factory=OrderedDict)

    def put(self, text: str, promise: Promise) -> None:
        """Note a placement that is about to be written."""
        self._signed.pop(promise.uid, None)
        self._signed[promise.uid] = text, promise
        if len(self._signed) > _MAX:
            self._signed.popitem(last=False)

    def take(self, pod: PodView) -> Promise | None:
        """Return the promise of a bound pod if it has the very text that was signed for it and its node."""
        found = self._signed.get(pod.uid)
        if found is None:
            return None
        text, promise = found
        if pod.annotations.get(PLACEMENT_ANNOTATION) != text or pod.node != promise.placement.node:
            return None
        del self._signed[pod.uid]
        return None if pod.host_network else promise
