"""`k8s-rdma top`: nodes, PFs, reservations and the pods that wait, again and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from k8s_rdma.cli.console import console, for_terminal, line, seconds, table, write_json
from k8s_rdma.cli.extender_client import ExtenderAddress, ExtenderClient, NoAnswerError
from k8s_rdma.errors import visible
from k8s_rdma.wire.views import (
    CLUSTER_PATH,
    MAX_ROWS,
    ClusterView,
    NodeRow,
    PendingRow,
    PfRow,
    Sort,
    decode_view,
)

if TYPE_CHECKING:
    from rich.table import Table


REFRESH_S = 2.0
_POLL_S = 0.2
_OTHER_ROWS = 9
"""Lines of a screen that are neither a node's nor a pod's."""

_NODES = ("node", "PFs", "reserved Mb/s", "", "VFs free", "pods", "heard", "PF by PF", "problems")
_PODS = ("waiting pod", "interfaces", "Mb/s", "waits", "tried", "why")
_BAR = 10
_FULL = 0.9


def top(address: ExtenderAddress, *, one_shot: bool, as_json: bool, sort: Sort) -> None:
    """Show the cluster until Ctrl-C; once without a terminal, or with `one_shot`.

    K8sRdmaError when the extender refuses, and with `one_shot` also when it does not answer.
    """
    terminal = console()
    with ExtenderClient(address) as extender:
        if as_json:
            write_json(_fetch(extender, sort, MAX_ROWS) + b"\n")
        elif one_shot or not terminal.is_terminal:
            view = _view(extender, sort, MAX_ROWS)
            terminal.print(page(view, plain=not terminal.is_terminal, lines=None))
        else:
            _watch(extender, terminal, sort)


def _fetch(extender: ExtenderClient, sort: Sort, rows: int) -> bytes:
    return extender.get(CLUSTER_PATH, {"sort": sort.value, "limit": str(rows)})


def _view(extender: ExtenderClient, sort: Sort, rows: int) -> ClusterView:
    return for_terminal(decode_view(_fetch(extender, sort, rows)))


@dataclass(slots=True, kw_only=True)
class Screen:
    """The latest view, kept while the extender is unreachable.

    fetch: queries the extender for that many rows. clock: seconds.
    """

    fetch: Callable[[int], ClusterView]
    clock: Callable[[], float] = time.monotonic
    view: ClusterView | None = None
    _fetched_at: float = field(default=0.0)
    _trouble: str = ""

    def refresh(self, rows: int) -> None:
        """Ask again; what was seen last stays when there is no answer."""
        try:
            self.view = self.fetch(rows)
        except NoAnswerError as error:
            self._trouble = visible(error.message)
        else:
            self._trouble, self._fetched_at = "", self.clock()

    def page(self, lines: int) -> RenderableType:
        """Render the latest view in that many lines."""
        parts: list[RenderableType] = []
        if self._trouble:
            old = f"; this is of {seconds(self.clock() - self._fetched_at)} ago" if self.view else ""
            parts.append(line(Text(f"trying again{old}: {self._trouble}", style="bold red")))
        if self.view is not None:
            parts.append(page(self.view, plain=False, lines=lines - len(parts)))
        return Group(*parts)


def _watch(extender: ExtenderClient, console: Console, sort: Sort) -> None:
    screen = Screen(fetch=lambda rows: _view(extender, sort, rows))
    screen.refresh(console.size.height)
    if screen.view is None:  # nothing to show yet: say what to do
        screen.fetch(0)
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                _show(live, screen)
                screen.refresh(console.size.height)
    except KeyboardInterrupt:
        return


def _show(live: Live, screen: Screen) -> None:
    """Show the screen until the next request, and again when the terminal's size changes."""
    deadline, size = time.monotonic() + REFRESH_S, None
    while time.monotonic() < deadline:
        if live.console.size != size:
            size = live.console.size
            live.update(screen.page(size.height), refresh=True)
        time.sleep(_POLL_S)


def page(view: ClusterView, *, plain: bool, lines: int | None) -> Group:
    """The whole view; as much of it as fits into so many lines, None for all."""
    room = None if lines is None else max(2, lines - _OTHER_ROWS)
    for_pods = len(view.pending) if room is None else min(len(view.pending), max(1, room // 3))
    for_nodes = len(view.nodes) if room is None else min(len(view.nodes), room - for_pods)
    parts: list[RenderableType] = [line(Text.from_markup(text)) for text in _head(view)]
    parts.append(Text())
    parts.append(_nodes(view.nodes[:for_nodes], plain=plain))
    if (omitted := view.totals.nodes - for_nodes) > 0:
        parts.append(Text(f"and {omitted} more nodes"))
    if view.pending_total:
        parts.append(Text())
        parts.append(_pending(view.pending[:for_pods]))
    if (omitted := view.pending_total - for_pods) > 0:
        parts.append(Text(f"and {omitted} more pods that wait"))
    return Group(*parts)


def _head(view: ClusterView) -> Iterator[str]:
    total, extender = view.totals, view.extender
    unreadable = f", [yellow]{total.unreadable} cannot be read[/]" if total.unreadable else ""
    nodes = "1 node" if total.nodes == 1 else f"{total.nodes} nodes"
    waiting = "1 pod waits" if view.pending_total == 1 else f"{view.pending_total} pods wait"
    yield (
        f"[bold]{nodes}[/]{unreadable}, {total.with_problems} with problems; "
        f"{total.pods} placements, {waiting}; extender {escape(extender.role)}"
    )
    yield (
        f"{total.pfs} PFs; reserved {total.reserved_mbps} of {total.link_mbps} Mb/s "
        f"({_percent(total.reserved_mbps, total.link_mbps)}); {total.free_vfs} of {total.vfs} VFs free"
    )
    if extender.missing:
        yield f"[yellow]waits for[/]: {escape('; '.join(extender.missing))}"


def _nodes(rows: tuple[NodeRow, ...], *, plain: bool) -> Table:
    shown = table(*_NODES, right=("PFs", "reserved Mb/s", "", "VFs free", "pods", "heard"))
    for row in rows:
        reserved, link = sum(pf.reserved_mbps for pf in row.pfs), sum(pf.link_mbps or 0 for pf in row.pfs)
        free, vfs = sum(pf.free_vfs for pf in row.pfs), sum(pf.vfs for pf in row.pfs)
        shown.add_row(
            line(row.name),
            *(
                ("?", "?", "?", "?")
                if row.unreadable and not row.pfs
                else (
                    str(len(row.pfs)),
                    f"{reserved}/{link}",
                    _percent(reserved, link) if plain else _bar(reserved, link),
                    f"{free}/{vfs}",
                )
            ),
            str(row.pods),
            seconds(row.heard_s),
            line(_by_pf(row)),
            line("; ".join(row.problems)),
        )
    return shown


def _by_pf(row: NodeRow) -> str:
    """Each PF's share: `enp1s0f0 40% 3 free`; with exclusive devices `... 3 free 1/4 devices held`."""
    return ", ".join(
        f"{pf.name} {_percent(pf.reserved_mbps, pf.link_mbps or 0)} {pf.free_vfs} free{_devices(pf)}"
        for pf in row.pfs
    )


def _devices(pf: PfRow) -> str:
    return f" {pf.held_devices}/{pf.devices} devices held" if pf.devices or pf.held_devices else ""


def _pending(rows: tuple[PendingRow, ...]) -> Table:
    shown = table(*_PODS, right=("interfaces", "Mb/s", "waits", "tried"))
    for row in rows:
        tried = f"{seconds(row.ago_s)} ago"
        request = str(row.interfaces), str(row.reserved_mbps)
        shown.add_row(line(row.pod), *request, seconds(row.waits_s), tried, line(row.why))
    return shown


def _percent(part: int, whole: int) -> str:
    return f"{100 * part // whole}%" if whole else "-"


def _bar(part: int, whole: int) -> str:
    share = min(1.0, part / whole) if whole else 0.0
    filled = round(_BAR * share)
    colour = "red" if share >= _FULL else "green"
    return f"[{colour}]{'█' * filled}[/][dim]{'░' * (_BAR - filled)}[/]"
