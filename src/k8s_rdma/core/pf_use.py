"""The use of a PF: how many of its VFs are in use, and the sum of their reservations."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from k8s_rdma.core.types import PciAddress

EVERY_DEVICE = 1 << 16
"""`DeviceUse.vfs` if their number is not known: more than a PF can have (PCI Express SR-IOV)."""


class DeviceUse(NamedTuple):
    """The reservations, Mb/s, falling, on the VFs that an exclusive resource has of one PF.

    vfs: how many the PF has. kubelet gives each to one pod at a time, so that at most this many reservations
        are on the PF together, however many pods may come to hold one: the largest ones count.
    held_vfs: how many are known to be held; they may be more than `vfs` if the resource had more VFs before.
    """

    resource: str
    vfs: int
    mins: tuple[int, ...]
    held_vfs: int = 0

    @classmethod
    def joined(cls, uses: Sequence[DeviceUse]) -> tuple[DeviceUse, tuple[int, ...]]:
        """Join the devices of one resource; also the reservations that do not count."""
        held_vfs = sum(use.held_vfs for use in uses)
        vfs = max(held_vfs, *(use.vfs for use in uses))
        mins = tuple(sorted((rate for use in uses for rate in use.mins), reverse=True))
        return cls(uses[0].resource, vfs, mins[:vfs], held_vfs), mins[vfs:]


@dataclass(frozen=True, slots=True)
class Used:
    """The use of one PF: VFs, and the sum of reservations in Mb/s.

    vfs: VFs of pods that ask by annotation.
    mins: all reservations one by one, falling, if the PF's rates are weights; empty if not.
    devices: VFs of exclusive resources, by resource, in addition to `vfs`; their reservations are in the
        other figures.
    set_aside_mbps: the part of `mbps` that no VF has, set aside for pods that ask in another way.
    """

    vfs: int = 0
    mbps: int = 0
    mins: tuple[int, ...] = ()
    devices: tuple[DeviceUse, ...] = ()
    set_aside_mbps: int = 0

    @property
    def in_use(self) -> int:
        """The number of VFs in use, which share the link."""
        return self.vfs + sum(len(use.mins) for use in self.devices)

    def __add__(self, addend: Used) -> Used:
        """Return the sum of both."""
        return Used.joined((self, addend))

    @classmethod
    def joined(cls, usages: Sequence[Used]) -> Used:
        """Join many at once: adding one after the other would copy each time."""
        weighed = [used.mins for used in usages if used.mins]
        mins = weighed[0] if len(weighed) == 1 else tuple(sorted(chain.from_iterable(weighed), reverse=True))
        vfs, mbps = sum(used.vfs for used in usages), sum(used.mbps for used in usages)
        set_aside_mbps = sum(used.set_aside_mbps for used in usages)
        counted = [used.devices for used in usages if used.devices]
        if len(counted) <= 1:
            return cls(vfs, mbps, mins, counted[0] if counted else (), set_aside_mbps)
        devices, beyond = _joined_devices(chain.from_iterable(counted))
        mins = _removed(mins, beyond) if beyond else mins
        return cls(vfs, mbps - sum(beyond), mins, devices, set_aside_mbps)


def _joined_devices(uses: Iterable[DeviceUse]) -> tuple[tuple[DeviceUse, ...], list[int]]:
    """Join devices by resource; also the reservations that do not count."""
    by_resource: dict[str, list[DeviceUse]] = {}
    for use in uses:
        by_resource.setdefault(use.resource, []).append(use)
    joined = [DeviceUse.joined(by_resource[resource]) for resource in sorted(by_resource)]
    return tuple(use for use, _ in joined), [rate for _, beyond in joined for rate in beyond]


def _removed(mins: tuple[int, ...], beyond: Iterable[int]) -> tuple[int, ...]:
    remaining = Counter(mins)
    remaining.subtract(rate for rate in beyond if rate in remaining)
    return tuple(remaining.elements())


NOTHING_USED = Used()


def total(*usages: Mapping[PciAddress, Used]) -> dict[PciAddress, Used]:
    """Add usages PF by PF."""
    by_pf: dict[PciAddress, list[Used]] = {}
    for usage in usages:
        for pci, used in usage.items():
            by_pf.setdefault(pci, []).append(used)
    return {pci: parts[0] if len(parts) == 1 else Used.joined(parts) for pci, parts in by_pf.items()}
