"""What is counted of a resource, for metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Counts:
    """Since the process started.

    allocations: containers that were given devices. refusals: allocations that were not, by reason.
    registrations: with kubelet, by whether it took them.
    """

    allocations: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    registrations: Counter[bool] = field(default_factory=Counter)
