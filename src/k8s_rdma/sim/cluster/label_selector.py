"""`metav1.LabelSelector` on an object's labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.sim.cluster.objects import JsonObject


def selects(selector: JsonObject, labels: Mapping[str, str]) -> bool:
    """Whether all that the selector demands is so; one that demands nothing selects everything."""
    wanted: dict[str, str] = selector.get("matchLabels") or {}
    expressions: list[JsonObject] = selector.get("matchExpressions") or []
    return wanted.items() <= labels.items() and all(_meets(labels, each) for each in expressions)


def _meets(labels: Mapping[str, str], expression: JsonObject) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or ()
    return {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }[expression["operator"]]
