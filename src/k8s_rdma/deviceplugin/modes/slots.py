"""Slots: what they are, the agent says in CDI specifications when it knows what the pod is given.

Both the resource of mode `exact` and the shares of exclusive resources. A slot that an attachment still holds
is given to nobody: a pod whose ADD passes by the agent would get the devices of the slot's former holder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.config.devices import MOST_PER_CONTAINER
from k8s_rdma.core.devices.pod_devices import slot_device
from k8s_rdma.core.devices.rdma_devices import device_annotations
from k8s_rdma.deviceplugin.mode import Given
from k8s_rdma.deviceplugin.modes.counted import Counted
from k8s_rdma.deviceplugin.modes.questions import refuse
from k8s_rdma.wire.cdi import SLOT_CLASS, qualified_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from k8s_rdma.core.devices.rdma_devices import DevicesSeen
    from k8s_rdma.deviceplugin.mode import Choice, OfferedDevice

NOT_TOLD = "the agent has not told yet which slots pods hold"


class SlotsMode:
    """A number of slots, healthy once the agent has told which of them are held."""

    prefers = True

    def __init__(self, resource: str, count: int, most_per_container: int = MOST_PER_CONTAINER) -> None:
        """Slots of one resource."""
        self.resource = resource
        self._slots = Counted(resource, count, most_per_container)

    def offer(self, seen: DevicesSeen) -> tuple[OfferedDevice, ...]:
        """All of them."""
        return self._slots.offer(_unhealthy(seen))

    def allocate(self, ids: Sequence[str], seen: DevicesSeen) -> Given:
        """Their CDI devices, which nobody has to know when this is answered."""
        self._slots.refuse_wrong(ids, _unhealthy(seen))
        for each in sorted(self._held(seen).intersection(ids)):
            refuse(self.resource, each, "a pod that had it before is not taken down yet")
        return Given(
            annotations=device_annotations(self.resource, ids),
            cdi_devices=tuple(
                qualified_name(slot_device(self.resource, each), device_class=SLOT_CLASS) for each in ids
            ),
        )

    def prefer(self, choice: Choice, seen: DevicesSeen) -> tuple[str, ...]:
        """Those that nobody holds any more, of them the lowest numbers."""
        return self._slots.prefer(choice, later=self._held(seen))

    def _held(self, seen: DevicesSeen) -> frozenset[str]:
        prefix = slot_device(self.resource, "")
        return frozenset(each.removeprefix(prefix) for each in seen.held_slots or ())


def _unhealthy(seen: DevicesSeen) -> str:
    return NOT_TOLD if seen.held_slots is None else ""
