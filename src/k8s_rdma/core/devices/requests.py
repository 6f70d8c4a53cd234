"""Requests of devices by ResourceClaim, as kube-scheduler has them: selectors, tolerations, constraints."""

from __future__ import annotations

from dataclasses import dataclass
from operator import ge, gt, le, lt
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Attribute: TypeAlias = str | int | bool | frozenset[int]
"""Lists of numbers have no order here; other lists are unknown."""

_ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": ge,
    "<=": le,
    ">": gt,
    "<": lt,
    "startsWith": str.startswith,
}

_MAX_NAMES = 8


@dataclass(frozen=True, slots=True)
class DeviceTaint:
    """A taint of a device; new pods need a toleration unless its effect is `None`."""

    key: str
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """A toleration of a request; an empty key or effect tolerates every one."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: DeviceTaint) -> bool:
        """Report whether the taint is no obstacle."""
        return (
            self.effect in ("", taint.effect)
            and self.key in ("", taint.key)
            and (self.operator == "Exists" or self.value == taint.value)
        )


@dataclass(frozen=True, slots=True)
class AttributeComparison:
    """A comparison with an attribute's fully qualified name; false if the device has no such attribute.

    operator: of CEL, or `startsWith`.
    values: one, or with `in` any number.
    """

    attribute: str
    operator: str
    values: tuple[Attribute, ...]

    def holds(self, attributes: Mapping[str, Attribute]) -> bool:
        """Report whether it holds for a device."""
        value = attributes.get(self.attribute)
        if value is None or isinstance(value, frozenset):
            return False  # CEL refuses to compare a list with one value
        equal = any(type(value) is type(operand) and value == operand for operand in self.values)
        if self.operator in ("==", "in"):
            return equal
        if self.operator == "!=":
            return not equal
        operand = self.values[0]
        return type(value) is type(operand) and _ORDERS[self.operator](value, operand)


@dataclass(frozen=True, slots=True)
class CelSelector:
    """A CEL selector. alternatives: all comparisons of one hold; None if the expression is not judged."""

    expression: str
    alternatives: tuple[tuple[AttributeComparison, ...], ...] | None = None

    def accepts(self, attributes: Mapping[str, Attribute]) -> bool:
        """Report whether it selects a device; an expression that is not judged does."""
        return self.alternatives is None or any(
            all(comparison.holds(attributes) for comparison in comparisons)
            for comparisons in self.alternatives
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRequest:
    """A request of a claim, or an alternative of `firstAvailable`. count: how many different PFs.

    claim, name: its place; constraints refer to a request whichever alternative is taken.
    """

    claim: str
    name: str
    mbps: int = 0
    count: int = 1
    selectors: tuple[CelSelector, ...] = ()
    tolerations: tuple[Toleration, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """Devices of these requests of a claim (all if empty) have one value of the attribute, or all different.

    A device without the attribute does not satisfy it.
    """

    claim: str
    attribute: str
    distinct: bool
    requests: frozenset[str] = frozenset()

    def includes(self, unit: DeviceRequest) -> bool:
        """Report whether it is for a request, which it may name by an alternative, too."""
        names = {unit.name, unit.name.partition("/")[0]}
        return unit.claim == self.claim and (not self.requests or not names.isdisjoint(self.requests))

    def __str__(self) -> str:
        """Return its words in the claim, and the requests."""
        kind = "distinctAttribute" if self.distinct else "matchAttribute"
        names = sorted(self.requests)
        omitted = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
        requests = f" of requests {', '.join(names[:_MAX_NAMES])}{omitted}" if names else ""
        return f"{kind} {self.attribute}{requests}"
