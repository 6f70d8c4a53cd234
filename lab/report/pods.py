"""The pods of the evaluation.

Rates of caps are what the emulator carries with room to spare; reservations are those of the cards' links.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

ANNOTATION = "rdma_interfaces_required"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A pod by what it asks for; fits: whether the two nodes have room for it after those before."""

    name: str
    interfaces: tuple[dict[str, object], ...]
    fits: bool = True

    @property
    def wish(self) -> str:
        """The annotation."""
        return json.dumps(self.interfaces)

    def manifest(self) -> dict[str, Any]:
        """As it is applied."""
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": self.name, "annotations": {ANNOTATION: self.wish}},
            "spec": {"containers": [{"name": "work", "image": "work"}]},
        }


HALF: dict[str, object] = {"min_tx_rate": 600}
"""More than half of a link of 1,000 Mb/s: one for each PF."""

PODS = (
    Wanted(name="reserved-1", interfaces=(HALF, HALF)),
    Wanted(name="reserved-2", interfaces=(HALF, HALF)),
    Wanted(name="reserved-3", interfaces=(HALF,), fits=False),
    Wanted(name="capped-4", interfaces=({"max_tx_rate": 4},)),
    Wanted(name="capped-8", interfaces=({"min_tx_rate": 6, "max_tx_rate": 8},)),
)
