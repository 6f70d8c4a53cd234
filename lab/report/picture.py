"""Nodes, pods, functions and the Ethernet between them, in plain text."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lab.report.result import Node, Pod

WIDTH = 46
"""The width inside a node's box; columns of `_rows` fit."""
LEFT, RIGHT = 12, 34
"""The columns at which a node's first and second PF leave it."""


def picture(nodes: Sequence[Node], pods: Sequence[Pod]) -> str:
    """Draw one box a node, side by side, on one wire."""
    boxes = [_rows(node, pods) for node in nodes]
    lines = [_side_by_side([f" {node.name}" for node in nodes])]
    lines += [_side_by_side(["+" + "-" * WIDTH + "+" for _ in nodes])]
    for row in zip_longest(*boxes, fillvalue=""):
        lines.append(_side_by_side([f"|{text:{WIDTH}}|" for text in row]))
    lines += [_side_by_side([_bottom(node) for node in nodes])]
    lines += [_side_by_side([_marks("|", " ") for _ in nodes])]
    lines += ["=".join(_marks("+", "=") for _ in nodes) + "=  one Ethernet"]
    return "\n".join(line.rstrip() for line in lines)


def _side_by_side(boxes: list[str]) -> str:
    return " ".join(f"{box:{WIDTH + 2}}" for box in boxes)


def _rows(node: Node, pods: Sequence[Pod]) -> list[str]:
    found = [f" {'pod':11} {'interface':9} {'VF':8} {'reserved':>8}  {'cap':>3}"]
    for pod in pods:
        for number, each in enumerate(pod.interfaces if pod.node == node.name else ()):
            name = pod.name if number == 0 else ""
            where = f"{each.pf}/{each.vf}"
            reserved, cap = each.min_tx_rate_mbps or "-", each.max_tx_rate_mbps or "-"
            found.append(f" {name:11} {each.name:9} {where:8} {reserved:>8}  {cap:>3}")
    return [*found, ""]


def _bottom(node: Node) -> str:
    line = list("+" + "-" * WIDTH + "+")
    for at, pf in zip((LEFT, RIGHT), node.pfs, strict=False):
        name = f" {pf.name} "
        start = at - len(name) // 2
        line[start : start + len(name)] = name
    return "".join(line)


def _marks(mark: str, between: str) -> str:
    line = list(between * (WIDTH + 2))
    for at in (LEFT, RIGHT):
        line[at] = mark
    return "".join(line)
