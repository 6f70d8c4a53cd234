"""What pods ask for, remembered from filter to bind: bind's body carries no annotations."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from k8s_rdma.core.request import Request
from k8s_rdma.wire.annotation import ANNOTATION, read_request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.core.ids import PodUid

_log = structlog.get_logger()
_MAX_PODS = 10_000


@dataclass(frozen=True, slots=True)
class Remembered:
    """A pod's request; the annotation that it was read from, and when it was last filtered."""

    request: Request
    annotation: str | None
    filtered_at: float


class Requests:
    """Requests by pod; bounded, the pods filtered longest ago are forgotten.

    strict: whether an unknown key refuses an annotation, or is logged.
    """

    def __init__(self, *, strict: bool = True) -> None:
        self._strict = strict
        self._pods: OrderedDict[PodUid, Remembered] = OrderedDict()

    def read(self, uid: PodUid, annotations: Mapping[str, str]) -> Request:
        """What a pod with these annotations asks for; MalformedError names field and reason."""
        found = read_request(annotations.get(ANNOTATION), strict=self._strict)
        if found.warnings:
            _log.warning("annotation_warnings", uid=uid, warnings=found.warnings)
        return found.request

    def remember(self, uid: PodUid, annotations: Mapping[str, str], at: float) -> Request:
        """As `read`, and kept for bind."""
        request = self.read(uid, annotations)
        self._pods[uid] = Remembered(request, annotations.get(ANNOTATION), at)
        self._pods.move_to_end(uid)
        if len(self._pods) > _MAX_PODS:
            self._pods.popitem(last=False)
        return request

    def recall(self, uid: PodUid) -> Remembered | None:
        """What the pod asked for when it was filtered."""
        return self._pods.get(uid)

    def compare(self, uid: PodUid, annotations: Mapping[str, str]) -> None:
        """Forget what was remembered if the pod does not say so now: its owner may have edited it."""
        known = self._pods.get(uid)
        if known is not None and known.annotation != annotations.get(ANNOTATION):
            self.forget(uid)

    def forget(self, uid: PodUid) -> None:
        """The pod is gone."""
        self._pods.pop(uid, None)
