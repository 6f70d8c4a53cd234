"""Which key signed each bound pod's placement: one that a pod still depends on must not be taken away."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from k8s_rdma.extender.telling.metrics import samples

if TYPE_CHECKING:
    from collections.abc import Collection

    from k8s_rdma.core.ids import PodUid
    from k8s_rdma.extender.telling.metrics import Reading
    from k8s_rdma.wire.placement_keys import KeySource

_NO_KEY = ""


class Signatures:
    """The keys' ids by pod; of bound, unfinished pods with a placement, where placements are signed."""

    def __init__(self, keys: KeySource) -> None:
        self._keys = keys
        self._of: dict[PodUid, str] = {}

    def knows(self, uid: PodUid) -> bool:
        """Whether it is known which key signed the pod's, if any."""
        return uid in self._of

    def bound(self, uid: PodUid, key_id: str | None) -> None:
        """The pod is bound; key_id: None where no key accepts its placement."""
        self._of[uid] = _NO_KEY if key_id is None else key_id

    def ended(self, uid: PodUid) -> None:
        """The pod is finished or gone."""
        self._of.pop(uid, None)

    def end_missing(self, listed: Collection[PodUid]) -> None:
        """Those that a list of all pods does not hold are gone."""
        for uid in self._of.keys() - listed:
            self.ended(uid)

    def readings(self) -> dict[str, Reading]:
        """For metrics."""
        return {
            "pods_signed": (
                "Bound pods by the key that signed their placement, and what that key is for now.",
                "gauge",
                lambda: samples(("key", "algorithm", "use"), self.counts()),
            ),
            "placement_keys_not_reloaded": (
                "Whether the files of keys hold what cannot be used; then those of before are in force.",
                "gauge",
                lambda: bool(self._keys.failure),
            ),
        }

    def counts(self) -> dict[tuple[str, ...], float]:
        """Pods by key, algorithm and use: of each key in force, and of removed ones that pods depend on."""
        keys = self._keys()
        if keys is None:
            return {}
        pods = Counter(self._of.values())
        signer = None if keys.signer is None else keys.signer.verifier.id
        counted: dict[tuple[str, ...], float] = {
            (key.id, key.algorithm, "signs" if key.id == signer else "verifies"): pods.pop(key.id, 0)
            for key in keys.accepted
        }
        none = pods.pop(_NO_KEY, 0)
        counted |= {(key_id, "", "removed"): number for key_id, number in pods.items()}
        return counted | ({("", "", "none"): none} if none else {})
