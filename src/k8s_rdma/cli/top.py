"""`k8s-rdma top`: nodes, PFs, reservations and the pods that wait, again and again.

The extender knows requests by annotation, the API server requests by ResourceClaims. Either is enough;
without the API server, PFs for claims show pods' allocations, by the extender.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, get_args

from msgspec.structs import replace
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from k8s_rdma.cli.console import Page, for_terminal, line, seconds
from k8s_rdma.cli.dra import PF_ATTRIBUTE, ClusterClaims, read_cluster
from k8s_rdma.cli.extender_client import ExtenderReader, extender_reader
from k8s_rdma.cli.formats import CommandAnswer, Output
from k8s_rdma.cli.holders import HolderFilter, HolderReader, holders_table
from k8s_rdma.cli.node_servers import chart_proxy
from k8s_rdma.cli.optional_api import optional_api, with_problem
from k8s_rdma.cli.options import Chart, PodScope
from k8s_rdma.cli.service_proxy import NoAnswerError
from k8s_rdma.cli.tables import NONE, UNKNOWN, Column, Paragraph, Table, mbps
from k8s_rdma.core.refusal import count
from k8s_rdma.errors import visible
from k8s_rdma.kube.documents import Documents
from k8s_rdma.kube.errors import API_ERRORS
from k8s_rdma.wire.views import (
    CLUSTER_PATH,
    MAX_ROWS,
    ClusterView,
    ExtenderState,
    HolderRow,
    HolderSort,
    NodeRow,
    PendingRow,
    PfRow,
    PfTotals,
    Sort,
    Totals,
    Use,
    causes_text,
    decode_view,
    encode_view,
    sort_nodes,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from k8s_rdma.cli.extender_address import ExtenderAddress
    from k8s_rdma.core.claim_fit import ClaimNode


REFRESH_S = 2.0
_POLL_S = 0.2
_OTHER_ROWS = 11
"""Lines of a screen that are neither a node's nor a pod's."""

_NODES = (
    Column("NODE"),
    Column("FOR"),
    Column("PFS", right=True, rank=4),
    Column("RESERVED", right=True),
    Column("RESERVED(%)", right=True, rank=1),
    Column("VFS FREE", right=True),
    Column("PODS", right=True, rank=2),
    Column("LAST SEEN", right=True, rank=3),
    Column("PF BY PF", rank=5),
    Column("PROBLEMS", prose=True),
)
_PODS = (
    Column("PENDING POD"),
    Column("INTERFACES", right=True, rank=2),
    Column("RESERVED", right=True, rank=1),
    Column("WAITING", right=True, rank=3),
    Column("LAST TRIED", right=True, rank=4),
    Column("MESSAGE", prose=True),
)
_USES: tuple[Use, ...] = get_args(Use)
_FULL = 0.9


CLAIMS_EVERY_S = 10.0
"""The least time between two readings of all ResourceClaims of a cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopOptions:
    """Options of the command.

    pods: the scope of the waiting pods and of the holders that are shown.
    holders: whether to show holders in place of nodes.
    """

    pods: PodScope
    chart: Chart
    one_shot: bool
    output: Output
    sort: Sort
    holders: bool


def top(address: ExtenderAddress, options: TopOptions) -> None:
    """Show the cluster until Ctrl-C; once without a terminal, or with `one_shot`.

    K8sRdmaError if the extender refuses, and with `one_shot` also if neither it nor the API server answers.
    MalformedError if a kubeconfig cannot be used.
    """
    with ExitStack() as stack:
        source = TopSource.connect(stack, address, options)
        terminal = Page()
        if options.output.format is None and terminal.is_terminal and not options.one_shot:
            _watch(source, terminal)
            return
        view = source.view(MAX_ROWS)
        named = view.nodes if view.holders is None else ()
        options.output.write(
            CommandAnswer(
                document=lambda: encode_view(view) + b"\n",
                names=[f"node/{row.name}" for row in named]
                + [f"pod/{row.pod}" for row in view.holders or ()],
                show=lambda sheet: sheet.print(page(for_terminal(view), lines=None)),
            )
        )


@dataclass(slots=True, kw_only=True)
class TopSource:
    """Views of extender and API server.

    If an extender that has answered stops answering, the view is an error; if it never answered, the view is
    of claims alone.

    api: the API server, if there are credentials; otherwise `problem` is the reason.
    """

    extender: ExtenderReader
    api: Documents | None
    sort: Sort
    namespace: str | None = None
    holders: HolderReader | None = None
    problem: str = ""
    _claims: ClusterClaims | None = None
    _read_at: float = -CLAIMS_EVERY_S
    _has_answered: bool = False

    @classmethod
    def connect(cls, stack: ExitStack, address: ExtenderAddress, options: TopOptions) -> TopSource:
        """Connect to both. MalformedError for a kubeconfig that is needed, or named, and cannot be used."""
        extender = stack.enter_context(extender_reader(address))
        kubeconfig = options.pods.kubeconfig
        api, problem = optional_api(stack, kubeconfig, is_needed=options.holders)
        proxy = chart_proxy(api, options.chart) if api is not None and options.holders else None
        return cls(
            extender=extender,
            api=api,
            sort=options.sort,
            namespace=kubeconfig.namespace,
            holders=HolderReader(proxy) if proxy else None,
            problem=problem,
        )

    def view(self, rows: int) -> ClusterView:
        """Get a view of so many nodes, with all holders; NoAnswerError if both do not answer."""
        view = _of_namespace(self._cluster(rows), self.namespace)
        if self.holders is None:
            return view
        try:
            found = self.holders.view(HolderFilter(namespace=self.namespace), HolderSort.NODE)
        except API_ERRORS as error:
            return replace(view, notes=(*view.notes, f"who holds what is not known: {error.message}"))
        return replace(view, holders=found.holders, notes=(*view.notes, *found.notes))

    def _cluster(self, rows: int) -> ClusterView:
        claims = self._read_claims()
        merge = claims is not None and bool(claims.nodes)
        try:
            # A node's order depends on its claims, too.
            query = {"sort": self.sort.value, "limit": str(MAX_ROWS if merge else rows)}
            view = decode_view(self.extender.get(CLUSTER_PATH, query))
            self._has_answered = True
        except NoAnswerError as error:
            if claims is None and self.problem:
                raise with_problem(error, self.problem) from error
            if self._has_answered or not (merge or self.holders):
                raise
            view = ClusterView(
                extender=ExtenderState(role="absent"),
                totals=Totals(),
                nodes=(),
                pending=(),
                pending_total=0,
            )
        if claims is None:
            return self._with_note(view)
        return with_claims(view, claims, self.sort, rows) if merge else view

    def _with_note(self, view: ClusterView) -> ClusterView:
        """Add a note on the source of PFs for claims, unless there are no such PFs and no API server."""
        if not view.claims.pfs and self.api is None:
            return view
        note = f"PFs for claims show what pods have, as the extender reports it: {self.problem}"
        return replace(view, notes=(*view.notes, note))

    def _read_claims(self) -> ClusterClaims | None:
        """Read slices and claims, if that is possible, and not too often; otherwise `problem` says why."""
        now_s = time.monotonic()
        if self.api is not None and now_s - self._read_at >= CLAIMS_EVERY_S:
            self._read_at = now_s
            try:
                self._claims = read_cluster(self.api)
            except API_ERRORS as error:
                self._claims, self.problem = None, error.message
        return self._claims


def _of_namespace(view: ClusterView, namespace: str | None) -> ClusterView:
    """Leave out the view's pending pods of other namespaces, if a namespace is named."""
    if namespace is None:
        return view
    pending = tuple(row for row in view.pending if row.pod.partition("/")[0] == namespace)
    omitted = view.pending_total - len(view.pending)
    note = f"{count(omitted, 'pending pod')} of any namespace not looked at"
    return replace(
        view,
        pending=pending,
        pending_total=len(pending),
        notes=(*view.notes, note) if omitted else view.notes,
    )


def with_claims(view: ClusterView, claims: ClusterClaims, sort: Sort, rows: int) -> ClusterView:
    """Show PFs for claims by slices and claims, in place of the facts of the extender.

    view: of all nodes, up to `MAX_ROWS`.
    """
    by_node: dict[str, ClaimNode] = {node.node: node for node in claims.nodes}
    nodes = [_merged(row, by_node.pop(row.name, None)) for row in view.nodes]
    if len(view.nodes) == view.totals.nodes:
        nodes += [_merged(NodeRow(name=name, pods=node.pods), node) for name, node in by_node.items()]

    def added(number: Callable[[NodeRow], int]) -> int:
        return sum(map(number, nodes)) - sum(map(number, view.nodes))

    totals = replace(
        view.totals,
        nodes=view.totals.nodes + len(nodes) - len(view.nodes),
        unreadable=view.totals.unreadable + added(lambda row: row.unreadable),
        with_problems=view.totals.with_problems + added(lambda row: bool(row.problems)),
        pods=view.totals.pods + added(lambda row: row.pods),
    )
    published = {node.node for node in claims.nodes}
    for_claims = [
        pf
        for row in nodes
        if row.name in published or not row.unreadable
        for pf in row.pfs
        if pf.use == "claims"
    ]
    return replace(
        view,
        nodes=tuple(sort_nodes(nodes, sort)[:rows]),
        totals=totals,
        claims=_total(for_claims),
        unread=claims.unread,
    )


def _total(pfs: Collection[PfRow]) -> PfTotals:
    return PfTotals(
        pfs=len(pfs),
        link_mbps=sum(pf.link_mbps or 0 for pf in pfs),
        reserved_mbps=sum(pf.reserved_mbps or 0 for pf in pfs),
        vfs=sum(pf.vfs for pf in pfs),
        free_vfs=sum(pf.free_vfs for pf in pfs),
    )


def _claim_rows(node: ClaimNode) -> tuple[PfRow, ...]:
    return tuple(
        PfRow(
            name=str(pf.attributes.get(PF_ATTRIBUTE, pf.name)),
            link_mbps=pf.mbps,
            reserved_mbps=pf.used.mbps,
            vfs=pf.vfs,
            free_vfs=pf.room.vfs,
            use="claims",
        )
        for pf in node.pfs
    )


def _merged(row: NodeRow, node: ClaimNode | None) -> NodeRow:
    """Replace rows for claims by those of the same PF; PFs without a slice stay."""
    if node is None:
        return row
    claimed = _claim_rows(node)
    names = {pf.name for pf in claimed}
    remaining = (pf for pf in row.pfs if pf.use != "claims" or pf.name not in names)
    return replace(
        row,
        pfs=(*remaining, *claimed),
        problems=(*row.problems, node.problem) if node.problem else row.problems,
        unreadable=row.unreadable or (bool(node.problem) and not row.pfs),
    )


@dataclass(slots=True, kw_only=True)
class Screen:
    """The latest view, kept while the extender is unreachable.

    fetch: queries the extender for that many rows.
    clock: seconds.
    """

    fetch: Callable[[int], ClusterView]
    clock: Callable[[], float] = time.monotonic
    view: ClusterView | None = None
    _fetched_at: float = field(default=0.0)
    _trouble: str = ""

    def refresh(self, rows: int) -> None:
        """Ask again; the last view stays if there is no answer."""
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
            parts.append(page(self.view, lines=lines - len(parts)))
        return Group(*parts)


def _watch(source: TopSource, console: Console) -> None:
    screen = Screen(fetch=lambda rows: for_terminal(source.view(rows)))
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


def page(view: ClusterView, *, lines: int | None) -> Group:
    """Return the view, whole or as much of it as fits into so many lines."""
    room, cut = None if lines is None else max(2, lines - _OTHER_ROWS), lines is not None
    for_pods = len(view.pending) if room is None else min(len(view.pending), max(1, room // 3))
    for_nodes = _first(view.nodes, None if room is None else room - for_pods)
    head = map(Text.from_markup, _head(view))
    parts: list[RenderableType] = [line(text) if cut else Paragraph(text) for text in head]
    parts.append(Text())
    if view.holders is not None:
        parts += _holders(view.holders, None if room is None else room - for_pods)
    else:
        parts.append(_nodes(view.nodes[:for_nodes], cut=cut))
        if (omitted := view.totals.nodes - for_nodes) > 0:
            parts.append(Text(f"and {omitted} more nodes"))
    if view.pending_total:
        parts.append(Text())
        parts.append(_pending(view.pending[:for_pods], cut=cut))
    if (omitted := view.pending_total - for_pods) > 0:
        parts.append(Text(f"and {omitted} more pending pods"))
    return Group(*parts)


def _holders(holders: Sequence[HolderRow], lines: int | None) -> Iterator[RenderableType]:
    shown = holders if lines is None else holders[: max(1, lines)]
    yield holders_table(shown, cut=lines is not None)
    if omitted := len(holders) - len(shown):
        yield Text(f"and {omitted} more interfaces")


def _head(view: ClusterView) -> Iterator[str]:
    total, extender = view.totals, view.extender
    unreadable = f", [yellow]{total.unreadable} cannot be read[/]" if total.unreadable else ""
    nodes = count(total.nodes, "node")
    yield (
        f"[bold]{nodes}[/]{unreadable}, {total.with_problems} with problems; "
        f"{count(total.pods, 'pod')} placed, {view.pending_total} pending; extender {escape(extender.role)}"
    )
    if total.pfs or not view.claims.pfs:
        yield _sums(total)
    if view.claims.pfs:
        yield f"for claims: {_sums(view.claims)}"
    if view.unread:
        beyond = f" and {len(view.unread) - 1} more" if len(view.unread) > 1 else ""
        yield f"[yellow]not counted[/]: {escape(view.unread[0])}{beyond}"
    for note in view.notes:
        yield f"[yellow]note[/]: {escape(note)}"
    if extender.missing:
        yield f"[yellow]waits for[/]: {escape('; '.join(extender.missing))}"


def _sums(total: PfTotals) -> str:
    return (
        f"{count(total.pfs, 'PF')}; reserved {total.reserved_mbps} of {total.link_mbps} Mb/s "
        f"({_percent(total.reserved_mbps, total.link_mbps)}); {total.free_vfs} of {total.vfs} VFs free"
    )


def _uses(row: NodeRow) -> list[Use]:
    """Return the uses of a node's PFs; each has a line with its sums."""
    uses = {pf.use: None for pf in row.pfs}
    return [use for use in _USES if use in uses] or ["annotation"]


def _first(rows: Sequence[NodeRow], lines: int | None) -> int:
    """Count the rows that fit into so many lines, all without a limit; one at least."""
    if lines is None:
        return len(rows)
    last = accumulate(len(_uses(row)) for row in rows)
    return max(min(1, len(rows)), sum(1 for line_number in last if line_number <= lines))


def _nodes(rows: Sequence[NodeRow], *, cut: bool) -> Table:
    shown = Table(*_NODES, cut=cut)
    for row in rows:
        first, *_ = uses = _uses(row)
        for use in uses:
            total = _total([pf for pf in row.pfs if pf.use == use])
            is_unknown = row.unreadable and not row.pfs
            shown.add(
                row.name,
                use if row.pfs else NONE,
                *([UNKNOWN] * 4 if is_unknown else _sum_cells(total)),
                *((str(row.pods), seconds(row.heard_s)) if use == first else ("", "")),
                _by_pf(row, use),
                "; ".join(row.problems) if use == first else "",
            )
    return shown


def _sum_cells(total: PfTotals) -> tuple[str | Text, ...]:
    reserved, link = total.reserved_mbps, total.link_mbps
    is_full = bool(link) and reserved >= _FULL * link
    return (
        str(total.pfs),
        mbps(f"{reserved}/{link}"),
        Text(_percent(reserved, link), style="red" if is_full else ""),
        f"{total.free_vfs}/{total.vfs}",
    )


def _by_pf(row: NodeRow, use: Use) -> str:
    """Return each PF's share: `enp1s0f0 40% 3 free`; with exclusive devices `... 3 free 1/4 devices held`."""
    return ", ".join(
        f"{pf.name} {_reserved(pf)} {pf.free_vfs} free{_devices(pf)}" for pf in row.pfs if pf.use == use
    )


def _reserved(pf: PfRow) -> str:
    return UNKNOWN if pf.reserved_mbps is None else _percent(pf.reserved_mbps, pf.link_mbps or 0)


def _devices(pf: PfRow) -> str:
    return f" {pf.held_devices}/{pf.devices} devices held" if pf.devices or pf.held_devices else ""


def _pending(rows: Sequence[PendingRow], *, cut: bool) -> Table:
    shown = Table(*_PODS, cut=cut)
    for row in rows:
        request = str(row.interfaces), mbps(row.reserved_mbps)
        tried = f"{seconds(row.ago_s)} ago"
        shown.add(row.pod, *request, seconds(row.waits_s), tried, causes_text(row.causes) or row.why)
    return shown


def _percent(part: int, whole: int) -> str:
    return f"{100 * part // whole}%" if whole else "-"
