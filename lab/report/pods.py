"""The pods of the evaluation.

Rates of caps are below the emulator's throughput, with room to spare; reservations fit the cards' links.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from lab.places import ANNOTATION

HOSTNAME = "kubernetes.io/hostname"
"""A label that every kubelet gives its node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A pod by its request.

    fits: whether the two nodes have room for it after those before. node: the only one that it may be on.
    """

    name: str
    interfaces: tuple[dict[str, object], ...]
    fits: bool = True
    node: str | None = None

    @property
    def wish(self) -> str:
        """Return the annotation."""
        return json.dumps(self.interfaces)

    def manifest(self) -> dict[str, Any]:
        """Return the manifest as it is applied."""
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": self.name, "annotations": {ANNOTATION: self.wish}},
            "spec": {"containers": [{"name": "work", "image": "work"}]} | self._selector(),
        }

    def _selector(self) -> dict[str, Any]:
        return {"nodeSelector": {HOSTNAME: self.node}} if self.node else {}


HALF: dict[str, object] = {"min_tx_rate": 600}
"""More than half of a link of 1,000 Mb/s: one for each PF."""

PODS = (
    Wanted(name="reserved-1", interfaces=(HALF, HALF)),
    Wanted(name="reserved-2", interfaces=(HALF, HALF)),
    Wanted(name="reserved-3", interfaces=(HALF,), fits=False),
    Wanted(name="capped-4", interfaces=({"max_tx_rate": 4},), node="w1"),
    Wanted(name="capped-8", interfaces=({"min_tx_rate": 6, "max_tx_rate": 8},), node="w2"),
)
