"""Names that must not be confused with one another."""

from __future__ import annotations

import re
from typing import NewType

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
