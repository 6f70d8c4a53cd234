"""Mode `shared`: every holder gets all matching devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.devices.pod_devices import shared_device
from k8s_rdma.core.devices.rdma_devices import NodeKind, device_annotations, device_variables
from k8s_rdma.deviceplugin.mode import Given
from k8s_rdma.deviceplugin.modes.counted import Counted
from k8s_rdma.deviceplugin.modes.nodes import at_home, has_verbs, named, rdma_cm, specs
from k8s_rdma.deviceplugin.modes.selecting import SharedSelection
from k8s_rdma.wire.cdi import SHARED_CLASS, qualified_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from k8s_rdma.config.devices import SharedResource
    from k8s_rdma.core.devices.rdma_devices import DevicesSeen, RdmaDevice
    from k8s_rdma.deviceplugin.mode import Choice, OfferedDevice

_KINDS = frozenset({NodeKind.UVERBS, NodeKind.UMAD})
_SHOWN = 3


class SharedMode:
    """Healthy while one of the matching devices is, and the agent has written their CDI specification.

    by_cdi: whether it does.
    """

    prefers = False

    def __init__(self, config: SharedResource) -> None:
        """As configured."""
        self.resource = config.name
        self.by_cdi = config.cdi
        self._hints = config.hints
        self._selection = SharedSelection(config.select)
        self._shares = Counted(config.name, config.count, config.most_per_container)

    def offer(self, seen: DevicesSeen) -> tuple[OfferedDevice, ...]:
        """All shares."""
        return self._shares.offer(self._unhealthy(self._matching(seen), seen))

    def allocate(self, ids: Sequence[str], seen: DevicesSeen) -> Given:
        """All matching devices, whatever their ports' states: these change while a container runs."""
        matching = self._matching(seen)
        self._shares.refuse_wrong(ids, self._unhealthy(matching, seen))
        nodes = (*specs(matching, kinds=_KINDS, permissions="rwm"), *rdma_cm(seen, "rwm"))
        device = qualified_name(shared_device(self.resource), device_class=SHARED_CLASS)
        return Given(
            envs=device_variables(self.resource, [named(each) for each in matching], hints=self._hints),
            annotations=device_annotations(self.resource, [each.name for each in matching]),
            devices=() if self.by_cdi else nodes,
            cdi_devices=(device,) if self.by_cdi else (),
        )

    def prefer(self, choice: Choice, _seen: DevicesSeen) -> tuple[str, ...]:
        """Those of the lowest numbers."""
        return self._shares.prefer(choice)

    def to_publish(self, seen: DevicesSeen) -> tuple[str, ...]:
        """The RDMA devices that its CDI specification is to be of."""
        return tuple(each.name for each in self._matching(seen))

    def _matching(self, seen: DevicesSeen) -> list[RdmaDevice]:
        return [each for each in at_home(seen) if self._selection.matches(each)]

    def _unhealthy(self, matching: Sequence[RdmaDevice], seen: DevicesSeen) -> str:
        if not matching:
            return "no RDMA device of the host matches its selector"
        faults = [_fault(each) for each in matching]
        if all(faults):
            more = f"; and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
            return "; ".join(faults[:_SHOWN]) + more
        if self.by_cdi and shared_device(self.resource) not in seen.published:
            return "the agent has not written its CDI specification"
        return ""


def _fault(device: RdmaDevice) -> str:
    faults = device.faults or (() if has_verbs(device) else ("it has no uverbs device",))
    return f"{device.name}: {'; '.join(faults)}" if faults else ""
