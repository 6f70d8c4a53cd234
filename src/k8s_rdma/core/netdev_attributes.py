"""Attributes of a netdev that move along between network namespaces, beside its name, MAC and MTU.

Unless they are reset, they stay as a pod left them. A kernel reads them as text by name; a name that driver
or kernel does not have is missing. docs/inherited-state.md lists them, with their sources.
"""

from __future__ import annotations

from k8s_rdma.errors import visible

Attributes = tuple[tuple[str, str], ...]
"""Values by name, ordered by name."""

NONE_TRUSTED: Attributes = ()
"""The home of a VF whose netdev is to be replaced: no netdev is without attributes."""

XDP, TCX_INGRESS, TCX_EGRESS = "XDP", "tcx ingress", "tcx egress"

_PROGRAMS = {XDP: "XDP program", TCX_INGRESS: "tcx programs at ingress:", TCX_EGRESS: "tcx at egress:"}
"""Attributes that are BPF programs; empty if there is no program. They see and change the netdev's
traffic."""


def programs(attributes: Attributes) -> tuple[str, ...]:
    """Describe the BPF programs among the attributes, a clause each."""
    found = ((name, value) for name, value in attributes if value and name in _PROGRAMS)
    return tuple(f"it has {_PROGRAMS[name]} {value}" for name, value in found)


def without_programs(attributes: Attributes) -> Attributes:
    """Return the attributes of the same netdev without BPF programs."""
    return tuple((name, "" if name in _PROGRAMS else value) for name, value in attributes)


def differences(home: Attributes, now: Attributes) -> tuple[str, ...]:
    """Describe the attributes that are not as at home, a clause each."""
    expected, found = dict(home), dict(now)
    return tuple(
        f"its {name} is {_shown(found.get(name))}, at home {_shown(expected.get(name))}"
        for name in sorted(expected.keys() | found.keys())
        if expected.get(name) != found.get(name)
    )


def faults(now: Attributes, home: Attributes | None) -> tuple[str, ...]:
    """Describe the attributes of a VF's netdev that its next holder must not get, a clause each.

    home: its attributes at home; None if unknown, so that only programs count.
    """
    found = programs(now)
    return found or (() if home is None else differences(home, now))


def _shown(value: str | None) -> str:
    if value is None:
        return "unknown"
    return visible(value) or "none"
