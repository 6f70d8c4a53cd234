"""The report as a document: its layout is the same for every run, so that two differ in numbers alone."""

from __future__ import annotations

from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from lab.report import tables
from lab.report.frames import ROCE, tcp_share, write_share
from lab.report.picture import picture

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lab.report.result import Pair, Pod, Result

TEMPLATE = Path(__file__).with_name("template.md")


def render(result: Result) -> str:
    """The whole document."""
    caps = {pod.name: pod.interfaces[0].max_tx_rate_mbps for pod in result.pods if pod.interfaces}
    return Template(TEMPLATE.read_text()).substitute(
        conditions=tables.conditions(result.conditions),
        attempts=result.conditions.attempts,
        picture=picture(result.nodes, result.pods),
        pods=tables.pods(result.pods),
        pfs=tables.pfs(result.nodes),
        refused=_refusals(result.pods),
        connectivity=tables.connectivity(result.pairs),
        tcp=tables.throughput(result.pairs, caps, tables.tcp_frames),
        verbs=tables.throughput(result.pairs, caps, tables.verbs_frames),
        vf=result.vf,
        side_by_side=tables.side_by_side(result.timed),
        **_sizes(result.pairs[0]),
    )


def _refusals(pods: Sequence[Pod]) -> str:
    return "\n\n".join(
        f"`{pod.name}` (`{pod.wish}`) fits nowhere any more, and waits:\n\n```\n{pod.refused}\n```"
        for pod in pods
        if pod.refused
    )


def _sizes(pair: Pair) -> dict[str, str]:
    """Bytes, and shares of payload."""
    sizes = {
        "mtu": pair.tcp_mtu,
        "segment": pair.tcp_mtu - 52,
        "frame": pair.tcp_mtu + 14,
        "message": pair.verbs_message,
        "path_mtu": pair.path_mtu,
        "header": ROCE,
    }
    shares = {
        "tcp_share": f"{tcp_share(pair.tcp_mtu):.2%}",
        "write_share": f"{write_share(pair.verbs_message, pair.path_mtu):.2%}",
    }
    return {name: str(size) for name, size in sizes.items()} | shares
