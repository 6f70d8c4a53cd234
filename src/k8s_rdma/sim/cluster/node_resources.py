"""What pods request of a node, against what it has (source: the plugin NodeResourcesFit).

A node without `status.allocatable` has room for everything; one that does not tell of `cpu`, `memory`,
`ephemeral-storage` or `pods` has enough of that: the nodes of most tests say no more than their name.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from k8s_rdma.core.quantities import quantity
from k8s_rdma.sim.cluster.fit import Refusal
from k8s_rdma.sim.cluster.objects import spec_of, status_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from k8s_rdma.sim.cluster.objects import JsonObject

_NATIVE = frozenset({"cpu", "memory", "ephemeral-storage"})
_ZERO = Fraction(0)


def requests_of(pod: JsonObject) -> dict[str, Fraction]:
    """What the pod requests (source: `PodRequests`, `k8s.io/component-helpers/resource`)."""
    spec = spec_of(pod)
    together: dict[str, Fraction] = {}
    before: dict[str, Fraction] = {}
    for init in spec.get("initContainers") or []:
        asked = _amounts(init)
        if init.get("restartPolicy") == "Always":
            together = _sum(together, asked)
            before = _most(before, together)
        else:
            before = _most(before, _sum(together, asked))
    for container in spec.get("containers") or []:
        together = _sum(together, _amounts(container))
    overhead = {name: quantity(str(amount)) for name, amount in (spec.get("overhead") or {}).items()}
    return _sum(_most(together, before), overhead)


def why_full(
    pod: JsonObject, node: JsonObject, others: Collection[JsonObject], ignored: Collection[str] = ()
) -> Refusal | None:
    """Why the node has not enough left beside other pods; None when it has.

    ignored: resources that do not count.
    """
    allocatable = status_of(node).get("allocatable")
    if allocatable is None:
        return None
    has = {name: quantity(str(amount)) for name, amount in allocatable.items()}
    reasons = [] if len(others) + 1 <= has.get("pods", len(others) + 1) else ["Too many pods"]
    wanted = {
        name: amount
        for name, amount in requests_of(pod).items()
        if amount and name not in ignored and (name in has or name not in _NATIVE)
    }
    used = _total(requests_of(other) for other in others)
    short = [n for n, amount in wanted.items() if used.get(n, _ZERO) + amount > has.get(n, _ZERO)]
    reasons += [f"Insufficient {name}" for name in short]
    if not reasons:
        return None
    never = any(wanted[name] > has.get(name, _ZERO) for name in short)
    return Refusal(reasons=tuple(reasons), unresolvable=never)


def _amounts(container: JsonObject) -> dict[str, Fraction]:
    requests = (container.get("resources") or {}).get("requests") or {}
    return {name: quantity(str(amount)) for name, amount in requests.items()}


def _total(parts: Iterable[Mapping[str, Fraction]]) -> dict[str, Fraction]:
    total: dict[str, Fraction] = {}
    for part in parts:
        total = _sum(total, part)
    return total


def _sum(some: Mapping[str, Fraction], more: Mapping[str, Fraction]) -> dict[str, Fraction]:
    return {**some, **{name: some.get(name, _ZERO) + amount for name, amount in more.items()}}


def _most(some: Mapping[str, Fraction], more: Mapping[str, Fraction]) -> dict[str, Fraction]:
    return {**some, **{name: max(some.get(name, _ZERO), amount) for name, amount in more.items()}}
