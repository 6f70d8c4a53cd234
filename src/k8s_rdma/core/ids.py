"""Names that must not be confused with one another.

Gangs: pods that are to run all together, or not at all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import NewType


class GangApi(Enum):
    """The API whose PodGroup says how many pods make a gang; the value is the API group.

    KUBERNETES: kube-scheduler's own, `spec.schedulingGroup` of a pod. COSCHEDULING: the plug-in of
    kubernetes-sigs/scheduler-plugins, a label of a pod.
    """

    KUBERNETES = "scheduling.k8s.io"
    COSCHEDULING = "scheduling.x-k8s.io"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """A PodGroup that pods belong to, by its name: whether there is one, and what it says, is not known."""

    api: GangApi
    namespace: str
    name: str

    def __str__(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


NodeName = NewType("NodeName", str)
PodUid = NewType("PodUid", str)
ContainerId = NewType("ContainerId", str)
PciAddress = NewType("PciAddress", str)
"""A PCI address in the kernel's full form `dddd:bb:dd.f`, lower case; make one with `pci_address`."""

_PCI = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([01][0-9a-f])\.([0-7])")


def pci_address(text: str) -> PciAddress:
    """Parse `03:00.1` or `0000:03:00.1`; ValueError for anything else.

    Source: Linux `Documentation/ABI/testing/sysfs-bus-pci`, domain:bus:device.function.
    """
    found = _PCI.fullmatch(text.strip().lower())
    if not found:
        msg = f"not a PCI address (dddd:bb:dd.f): {text!r}"
        raise ValueError(msg)
    domain, bus, device, function = found.groups()
    return PciAddress(f"{domain or '0000'}:{bus}:{device}.{function}")
