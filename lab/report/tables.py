"""Tables in Markdown."""

from __future__ import annotations

from statistics import median, quantiles
from typing import TYPE_CHECKING

from lab.report.frames import tcp_share, write_share

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lab.report.result import Conditions, Interface, Node, Pair, Pf, Pod, Timed

ACCELERATORS = {
    "tcg": "TCG: every instruction of the guests is emulated",
    "kvm": "KVM: cards are emulated, and instructions are the processor's",
}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table with one line a row."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def conditions(found: Conditions) -> str:
    """Return the conditions of the measurement."""
    rows = {
        "date": found.date,
        "k8s-rdma": f"{found.product}, commit {found.commit}",
        "emulator": f"{found.qemu}, {ACCELERATORS[found.accelerator]}",
        "guests": f"2, {found.guest_cores} processors each, kernel {found.kernel}",
        "host": f"{found.host_cores} cores; load average of the minute before {found.load:.1f}",
        "TCP": f"iperf3 at the receiver, one connection, {found.tcp_seconds} s after one that does not count",
        "verbs": f"ib_write_bw, one queue pair, {found.verbs_seconds} s after one that does not count",
        "measured again": f"{found.repeated} times",
    }
    return table(("what", "how"), list(rows.items()))


def pods(found: Sequence[Pod]) -> str:
    """Return the request of each pod, and its interfaces."""
    rows = [
        (f"`{pod.name}`", f"`{pod.wish}`", pod.node, each.name, each.address, *_rates(each))
        for pod in found
        for each in pod.interfaces
    ]
    head = ("pod", "asks for", "node", "interface", "address", "reserved", "by", "cap", "by")
    return table(head, rows)


def _rates(interface: Interface) -> tuple[str, str, str, str]:
    least, most = interface.min_tx_rate_mbps, interface.max_tx_rate_mbps
    return (
        str(least or ""),
        interface.enforced_min or "",
        str(most or ""),
        interface.enforced_max or "",
    )


def pfs(found: Sequence[Node]) -> str:
    """Return the reserved Mb/s and VFs of each PF."""
    rows = [(node.name, pf.name, pf.driver, *_taken(pf)) for node in found for pf in node.pfs]
    return table(("node", "PF", "driver", "link", "reserved", "VFs taken"), rows)


def _taken(pf: Pf) -> tuple[str, str, str]:
    link = "unknown" if pf.link_mbps is None else str(pf.link_mbps)
    return link, str(pf.reserved_mbps), f"{pf.taken_vfs} of {pf.vfs}"


def connectivity(pairs: Sequence[Pair]) -> str:
    """Return the connectivity from the rows' pods to the columns'."""
    return _matrix(pairs, lambda pair: ", ".join(_reached(pair)) or "nothing")


def _reached(pair: Pair) -> list[str]:
    return [name for name, there in (("ping", pair.ping), ("rping", pair.rping)) if there]


def throughput(pairs: Sequence[Pair], caps: dict[str, int], frames: Callable[[Pair], float]) -> str:
    """Return Mb/s of frames from the rows' pods to the columns', with the cap, the least and the most."""

    def beside(source: str) -> tuple[str, str]:
        cap = caps[source]
        rates = [frames(pair) for pair in pairs if pair.source == source]
        spread = (f"{rate / cap - 1:+.1%}" for rate in (min(rates), max(rates))) if cap else ()
        return str(cap or "none"), " to ".join(spread)

    return _matrix(pairs, lambda pair: f"{frames(pair):.2f}", ("cap", "least to most beside it"), beside)


def tcp_frames(pair: Pair) -> float:
    """Mb/s."""
    return pair.tcp_mbps / tcp_share(pair.tcp_mtu)


def verbs_frames(pair: Pair) -> float:
    """Mb/s."""
    return pair.verbs_mbps / write_share(pair.verbs_message, pair.path_mtu)


def _matrix(
    pairs: Sequence[Pair],
    cell: Callable[[Pair], str],
    more: tuple[str, ...] = (),
    beside: Callable[[str], tuple[str, ...]] = lambda _: (),
) -> str:
    names = list(dict.fromkeys(pair.source for pair in pairs))
    cells = {(pair.source, pair.destination): cell(pair) for pair in pairs}
    rows = [
        (f"`{source}`", *(cells.get((source, destination), "") for destination in names), *beside(source))
        for source in names
    ]
    return table(("from", *(f"to `{name}`" for name in names), *more), rows)


def side_by_side(timed: Sequence[Timed]) -> str:
    """A row for each command: both plugins, and the first one's times by the second one's."""
    by = {(each.plugin, each.command): each.milliseconds for each in timed}
    ours, peer = dict.fromkeys(plugin for plugin, _ in by)
    rows = []
    for command in dict.fromkeys(command for _, command in by):
        times = by[ours, command], by[peer, command]
        medians, tails = [median(each) for each in times], [_p90(each) for each in times]
        shown = [f"{each:.0f} ms, {tail:.0f} ms" for each, tail in zip(medians, tails, strict=True)]
        ratios = [f"{first / second:.2f}" for first, second in (medians, tails)]
        rows.append((command, str(len(times[0])), *shown, *ratios))
    head = (
        "call",
        "times",
        *(f"`{name}`: median, p90" for name in (ours, peer)),
        "medians' ratio",
        "p90s' ratio",
    )
    return table(head, rows)


def _p90(milliseconds: Sequence[float]) -> float:
    return quantiles(milliseconds, n=10, method="inclusive")[8]
