"""Devices that count nothing real: whoever asks for one gets what there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.devices.pod_devices import slot_ids
from k8s_rdma.deviceplugin.mode import OfferedDevice
from k8s_rdma.deviceplugin.modes.questions import check, refuse
from k8s_rdma.errors import K8sRdmaError, Reason

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from k8s_rdma.deviceplugin.mode import Choice


class Counted:
    """A number of them, all as healthy as what is behind them; lists are made once and given out again."""

    def __init__(self, resource: str, count: int, most_per_container: int) -> None:
        """Those of one resource, of which a container gets no more than it may: one does for it."""
        self.resource = resource
        self._most_per_container = most_per_container
        self._places = {each: place for place, each in enumerate(slot_ids(count))}
        self._healthy = tuple(OfferedDevice(id=each) for each in self._places)
        self._unhealthy: tuple[OfferedDevice, ...] = ()
        self._why = ""

    def offer(self, why: str) -> tuple[OfferedDevice, ...]:
        """All of them. why: they are unhealthy; empty when they are not."""
        if not why:
            return self._healthy
        if why != self._why:
            self._unhealthy = tuple(OfferedDevice(id=each, unhealthy=why) for each in self._places)
            self._why = why
        return self._unhealthy

    def refuse_wrong(self, ids: Sequence[str], why: str) -> None:
        """K8sRdmaError (`UNKNOWN_DEVICE`) names one that is not there, or why none of them is given.

        `TOO_MANY_DEVICES` for more than a container may have.
        """
        if len(ids) > self._most_per_container:
            msg = (
                f"{self.resource}: {len(ids)} for one container, {self._most_per_container} at most "
                "(mostPerContainer of the device plugin's configuration); one is all that a container needs"
            )
            raise K8sRdmaError(msg, reason=Reason.TOO_MANY_DEVICES)
        for each in ids:
            if each not in self._places:
                refuse(self.resource, each, f"its devices are slot-0 to slot-{len(self._places) - 1}")
            if why:
                refuse(self.resource, each, why)

    def prefer(self, choice: Choice, later: AbstractSet[str] = frozenset()) -> tuple[str, ...]:
        """Those of the lowest numbers. later: those to be taken only when no others are left."""
        check(self.resource, choice)
        last = len(self._places)
        wanted = set(choice.must_include)
        others = set(choice.available) - wanted
        order = sorted(others, key=lambda each: (each in later, self._places.get(each, last), each))
        chosen = wanted.union(order[: choice.size - len(wanted)])
        return tuple(sorted(chosen, key=lambda each: (self._places.get(each, last), each)))
