"""Placements that count before their signatures are verified, as a start or a takeover finds them.

The verification of the signatures of 100,000 pods takes seconds, and pods wait for it. A placement that
counts too much refuses room for that time. A placement that counts too little sells room twice. So a
placement counts unverified only if it can add to the use of its node and cannot lower it:

- The pod is bound and not known yet. A node's own report of a pod counts before the pod's promise
  (`core.allocation.used_on_node`), so that an unverified promise does not lower it.
- It is short, and of the first generation (`wire.placement_annotation.decode_unverified`): a later one may
  stand for less than its node reports.
- No quota and no interfaces of pods without a placement depend on it. No pod is evicted and no running pod's
  rates change before all placements are verified (`Readiness.verified`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from time import thread_time
from typing import TYPE_CHECKING, NoReturn

import structlog

from k8s_rdma.core.types import PodUid
from k8s_rdma.errors import MalformedError
from k8s_rdma.extender.node_cache import ClusterState
from k8s_rdma.extender.pod_store import PodStore
from k8s_rdma.wire.placement_annotation import signing_key
from k8s_rdma.wire.placement_keys import KeySource, PlacementKeys

if TYPE_CHECKING:
    from k8s_rdma.extender.metrics import Reading

MAX_CHARACTERS = 64 * 1024**2
"""The limit for all waiting texts, because pods' owners decide their length. Further ones are verified at
once."""

_SLICE_S = 0.001
"""Processor time after which requests come first."""

_PAUSE_S = 0.004
"""The time between two slices while requests are under way: four fifths of the processor are theirs."""

_POLL_S = 0.1
_log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class UnverifiedPlacements:
    """Holds the texts of placements until `run` has verified them, and withdraws forged ones.

    state, pods: get the results.
    keys: returns the keys in force.
    on_forged: called with the UID of each pod whose placement is withdrawn.
    processor: processor time of this thread, s.
    """

    state: ClusterState
    pods: PodStore
    keys: KeySource
    on_forged: Callable[[PodUid], None]
    processor: Callable[[], float] = thread_time
    max_characters: int = MAX_CHARACTERS
    _waiting: dict[PodUid, str] = field(default_factory=dict, init=False)
    _keys: list[PlacementKeys] = field(default_factory=list, init=False)
    _characters: int = field(default=0, init=False)
    _added: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _awaited: bool = field(default=False, init=False)

    def __contains__(self, uid: PodUid) -> bool:
        return uid in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)

    def is_empty(self) -> bool:
        """Report whether all are verified; if not, `run` calls back once they are."""
        if self._waiting:
            self._awaited = True
        return not self._waiting

    def has_room(self, text: str) -> bool:
        """Report whether one more text may wait."""
        return self._characters + len(text) <= self.max_characters

    def put(self, uid: PodUid, text: str, keys: PlacementKeys) -> None:
        """Have a placement verified that counts from now on. keys: those in force."""
        self._waiting[uid] = text
        self._characters += len(text)
        if not self._keys or self._keys[-1] is not keys:
            self._keys.append(keys)
        self._added.set()

    def discard(self, uid: PodUid) -> None:
        """Drop the pod's waiting placement, because the pod has a later one, which is genuine."""
        if text := self._waiting.pop(uid, ""):
            self._characters -= len(text)

    def verify(self, uid: PodUid) -> None:
        """Verify the pod's placement now, if it waits; a forged one counts no more."""
        text = self._waiting.get(uid)
        if text is None:
            return
        self.discard(uid)
        try:
            key_id = self._key_of(text)
        except MalformedError as error:
            for node in self.state.nodes_of(uid):
                if reservation := self.state.reservation(node, uid):
                    _log.warning("placement_ignored", pod=reservation.pod, error=error.message)
                    self.state.withdraw(node, uid)
            self.pods.on_signature(uid, None)
            self.on_forged(uid)
        else:
            self.pods.on_signature(uid, key_id)

    async def run(
        self, is_known: Callable[[], bool], is_busy: Callable[[], bool], on_done: Callable[[], None]
    ) -> NoReturn:
        """Verify the waiting placements, between requests.

        is_known: whether the cluster is known; verification waits for it.
        is_busy: whether requests are under way.
        on_done: called once all are verified, if a request was refused because they were not.
        """
        while True:
            await self._added.wait()
            while not is_known():  # noqa: ASYNC110  it depends on several watches
                await asyncio.sleep(_POLL_S)
            number = len(self._waiting)
            while self._waiting:
                self._verify_some()
                await asyncio.sleep(_PAUSE_S if is_busy() else 0)
            self._added.clear()
            self._keys.clear()
            _log.info("placements_verified", pods=number)
            if self._awaited:
                self._awaited = False
                on_done()

    def readings(self) -> dict[str, Reading]:
        """Return readings for metrics."""
        return {
            "placements_unverified": (
                "Placements that count and whose signatures are not verified yet.",
                "gauge",
                lambda: len(self._waiting),
            ),
        }

    def _key_of(self, text: str) -> str:
        """Return the id of the key that signed the text, by the keys that were in force then, or are now."""
        *earlier, last = [*self._keys, *filter(None, [self.keys()])]
        for keys in earlier:
            with suppress(MalformedError):
                return signing_key(text, keys)
        return signing_key(text, last)

    def _verify_some(self) -> None:
        """Verify placements for a slice of processor time."""
        end = self.processor() + _SLICE_S
        with self.state.together():
            while self._waiting and self.processor() < end:
                self.verify(next(reversed(self._waiting)))  # the first ones lie behind all that are gone
