"""Quantities of resources that pods ask of a node and kube-scheduler counts."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

Demand: TypeAlias = tuple[tuple[str, Fraction], ...]
"""Amounts by resource, sorted: cores, bytes, pieces. `pods` is not among them, every pod is one."""

_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+))(?P<suffix>[numkMGTPE]|[KMGTPE]i|[eE][+-]?\d{1,3})?"
)
_BINARY = {f"{letter}i": Fraction(1024) ** power for power, letter in enumerate("KMGTPE", start=1)}
_DECIMAL = {letter: Fraction(1000) ** power for power, letter in enumerate("num", start=-3)} | {
    letter: Fraction(1000) ** power for power, letter in enumerate("kMGTPE", start=1)
}
_SUFFIXES = {"": Fraction(1), **_BINARY, **_DECIMAL}


def quantity(text: str) -> Fraction:
    """A Kubernetes quantity (`500m`, `1Gi`, `2e3`); ValueError when it is none.

    Source: `k8s.io/apimachinery/pkg/api/resource`.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        msg = f"{text!r} is not a quantity"
        raise ValueError(msg)
    suffix = match["suffix"] or ""
    factor = _SUFFIXES.get(suffix)
    if factor is None:  # an exponent
        factor = Fraction(10) ** int(suffix[1:])
    return Fraction(match["number"]) * factor


def covers(evicted: Iterable[Demand], required: Iterable[Demand]) -> bool:
    """Report whether evicting the former frees at least as much of everything as the latter."""
    freed, needed = list(evicted), list(required)
    if len(freed) < len(needed):
        return False
    remaining: dict[str, Fraction] = {}
    for demand, sign in ((d, s) for demands, s in ((freed, 1), (needed, -1)) for d in demands):
        for resource, amount in demand:
            remaining[resource] = remaining.get(resource, Fraction(0)) + sign * amount
    return all(amount >= 0 for amount in remaining.values())
