"""`k8s-rdma explain pod`: where a pod is, and for every node why or why not.

The extender explains requests by annotation, the API server requests by ResourceClaims.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace
from rich.markup import escape

from k8s_rdma.cli.console import for_terminal, seconds
from k8s_rdma.cli.dra import explain_claims, read_pod
from k8s_rdma.cli.extender_client import extender_reader
from k8s_rdma.cli.formats import CommandAnswer, Output
from k8s_rdma.cli.optional_api import optional_api, with_problem
from k8s_rdma.cli.pod_constraints import UNCONSTRAINED, PodConstraints, read_constraints
from k8s_rdma.cli.pod_group import read_group_constraints
from k8s_rdma.cli.pod_names import namespaced_name
from k8s_rdma.cli.tables import UNKNOWN, Column, Table, mbps
from k8s_rdma.core.refusal import count
from k8s_rdma.errors import K8sRdmaError, MalformedError, visible
from k8s_rdma.kube.errors import API_ERRORS
from k8s_rdma.kube.selection import KubeconfigSelection
from k8s_rdma.wire.annotation import requests_interfaces
from k8s_rdma.wire.json import decode
from k8s_rdma.wire.views import (
    EXPLAIN_PATH,
    ClaimsExplanation,
    Explanation,
    Group,
    NodeExplanation,
    PfExplanation,
    Place,
    Placed,
    RequestedInterface,
    causes_text,
    decode_explanation,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from k8s_rdma.cli.console import Page
    from k8s_rdma.cli.extender_address import ExtenderAddress

_MOST_KINDS = 8
_VERDICTS = {
    "fits": "[green]fits[/]",
    "refused": "[red]no[/]",
    "unreadable": "[yellow]cannot be read[/]",
    "unknown": "[yellow]not decided[/]",
}
_NOT_ASKED = (
    "[yellow]no scheduler has asked this extender about it yet[/]. If that stays so, one of these is true:",
    "  no node has what it requests besides RDMA: kubectl describe pod",
    "  its schedulerName is of a scheduler that does not ask the extender",
    "  it requests none of the extender's managedResources: k8s-rdma doctor cluster",
)
_COLUMNS = (
    Column("NODE"),
    Column("PF"),
    Column("NUMA", rank=2),
    Column("FREE VFS", right=True),
    Column("UNRESERVED", right=True),
    Column("ROOM FOR", right=True, rank=1),
    Column("WOULD GET", prose=True),
    Column("AGAINST IT", prose=True),
)

_any_object = msgspec.json.Decoder(dict[str, Any])
"""The extender's fields as they are, those of a later version among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainOptions:
    """Options of the command.

    nodes: nodes to show in detail.
    every: whether to show all in detail.
    """

    kubeconfig: KubeconfigSelection
    nodes: tuple[str, ...]
    every: bool
    output: Output


@dataclass(frozen=True, slots=True, kw_only=True)
class _ByClaims:
    """A pod by the API server.

    explanation: of its claims, if it has claims of ours and there is no problem.
    annotated: whether it requests interfaces by annotation as well, if the pod could be read.
    constraints: Kubernetes' constraints besides RDMA.
    """

    explanation: ClaimsExplanation | None = None
    annotated: bool | None = None
    problem: str = ""
    constraints: PodConstraints = UNCONSTRAINED


def explain(address: ExtenderAddress, pod: str, options: ExplainOptions) -> None:
    """Print the explanation of a pod, `namespace/name` or a name; MalformedError for other texts.

    If a pod requests interfaces both ways, a part that cannot be explained is a note beside the other. If the
    API server cannot be asked, the extender is asked about every pod.
    """
    namespace, name = namespaced_name(pod, options.kubeconfig)
    claims = _by_claims(namespace, name, options)
    body = None
    if claims.explanation is None or claims.annotated:
        query: dict[str, str | list[str]] = {
            "pod": f"{namespace}/{name}",
            "node": list(options.nodes),
            "all": "1" if options.every else "0",
        }
        try:
            with extender_reader(address) as extender:
                body = extender.get(EXPLAIN_PATH, query)
        except K8sRdmaError as error:
            if claims.explanation is None:
                raise with_problem(error, claims.problem) from error
            note = f"what it requests by annotation is not explained: {error.message}"
            noted = replace(claims.explanation, notes=(*claims.explanation.notes, note))
            claims = replace_fields(claims, explanation=noted, annotated=True)
    answer = CommandAnswer(
        document=lambda: _document(body, claims) + b"\n",
        names=[f"node/{node}" for node in _nodes(body, claims)],
        show=lambda page: _show(body, claims, page),
    )
    options.output.write(answer, markup=True)


def _nodes(body: bytes | None, claims: _ByClaims) -> Iterator[str]:
    """Yield the nodes in the answer; of groups, the nodes that are shown."""
    parts: list[Explanation | ClaimsExplanation] = [] if body is None else [decode_explanation(body)]
    parts += [] if claims.explanation is None else [claims.explanation]
    for part in parts:
        yield from (node.node for group in part.groups for node in group.examples)
        yield from (node.node for node in part.nodes)


def _show(body: bytes | None, claims: _ByClaims, page: Page) -> None:
    answer = _AnswerPage(page)
    if body is not None:
        explanation = for_terminal(decode_explanation(body))
        answer.show(explanation, _merged(explanation.obstacles, claims.constraints.obstacles))
        requests = explanation.interfaces or explanation.malformed
        if claims.problem and not (requests and claims.annotated is None):
            page.print_notes([visible(_note(claims))])
    if claims.explanation is not None:
        answer.show_claims(for_terminal(claims.explanation), () if body else claims.constraints.obstacles)
    page.print_notes(map(visible, claims.constraints.notes))


def _by_claims(namespace: str, name: str, options: ExplainOptions) -> _ByClaims:
    """Ask the API server. MalformedError if a named kubeconfig cannot be used."""
    annotated, constraints = None, UNCONSTRAINED
    with ExitStack() as stack:
        api, problem = optional_api(stack, options.kubeconfig)
        if api is None:
            return _ByClaims(problem=problem)
        try:
            pod = read_pod(api, namespace, name)
            if pod is None:
                return _ByClaims(problem=f"the API server at {api.url} has no pod {namespace}/{name}")
            annotated = requests_interfaces(pod["metadata"].get("annotations") or {})
            constraints = read_constraints(api, pod).joined(read_group_constraints(api, pod))
            found = explain_claims(api, pod, nodes=options.nodes, every=options.every)
        except (MalformedError, *API_ERRORS) as error:
            return _ByClaims(annotated=annotated, problem=error.message, constraints=constraints)
    return _ByClaims(explanation=found, annotated=annotated, constraints=constraints)


def _note(claims: _ByClaims) -> str:
    if claims.annotated is None:
        return f"whether it requests any by ResourceClaim is not known: {claims.problem}"
    return f"its ResourceClaims are not explained: {claims.problem}"


def _document(body: bytes | None, claims: _ByClaims) -> bytes:
    """Make the document: the extender's, with the claims if the pod has any."""
    document = {} if body is None else decode(body, _any_object, "explanation")
    if claims.problem:
        document["notes"] = [*document.get("notes", ()), _note(claims)]
    if claims.constraints.obstacles:
        document["obstacles"] = _merged(document.get("obstacles", ()), claims.constraints.obstacles)
    if claims.constraints.notes:
        document["notes"] = [*document.get("notes", ()), *claims.constraints.notes]
    if claims.explanation is not None:
        document["claims"] = claims.explanation
    return msgspec.json.encode(document)


class _AnswerPage:
    """Prints the answer for people."""

    def __init__(self, console: Page) -> None:
        self._console = console
        self._is_plain = console.is_whole

    def show(self, explanation: Explanation, obstacles: Sequence[str]) -> None:
        """Print the whole explanation, the most important part first. obstacles: besides RDMA."""
        self._lines(_about(explanation))
        self._lines(map(_obstacle, obstacles))
        stuck = _not_started(explanation)
        groups = () if stuck else explanation.groups
        if stuck:
            self._console.print(
                f"\n[yellow]not started, or started without our CNI plugin[/]: see `kubectl -n "
                f"{escape(explanation.namespace)} describe pod {escape(explanation.name)}`, "
                f"and `k8s-rdma doctor node` on {escape(', '.join(stuck))}"
            )
        if groups:
            self._console.print("\nbut for that:" if obstacles else _heading(explanation))
        for group in groups:
            self._group(group)
        for node in explanation.nodes:
            self._node(node)
        self._console.print_notes(explanation.notes)

    def show_claims(self, claims: ClaimsExplanation, obstacles: Sequence[str]) -> None:
        """Print the API server's view of the pod's claims. obstacles: besides RDMA."""
        self._lines(_about_claims(claims))
        self._lines(map(_obstacle, obstacles))
        for group in claims.groups:
            self._group(group)
        for node in claims.nodes:
            self._node(node)
        self._console.print_notes(claims.notes)

    def _group(self, group: Group) -> None:
        self._console.print(
            f"[bold]{count(group.count, 'node')}[/]: {_VERDICTS[group.verdict]}{_because(group)}"
        )
        shown = [node for node in group.examples if node.pfs]
        if shown:
            self._pfs(shown, _scored)
        elif group.count > 1:
            names = ", ".join(escape(node.node) for node in group.examples)
            self._console.print(f"  such as {names}")
        self._console.print()

    def _node(self, node: NodeExplanation) -> None:
        verdict = _VERDICTS[node.verdict] + (
            f", score {node.score} of 1000" if node.score is not None else ""
        )
        never = "" if node.evictable else "; no eviction would help"
        self._console.print(
            f"\n[bold]{escape(node.node)}[/]: {verdict}{': ' if node.why else ''}{escape(node.why)}{never}"
        )
        if node.pfs:
            self._pfs([node], lambda found: found.node)

    def _pfs(self, nodes: Iterable[NodeExplanation], name: Callable[[NodeExplanation], str]) -> None:
        rows = Table(*_COLUMNS)
        for node in nodes:
            for index, pf in enumerate(node.pfs):
                rows.add(name(node) if index == 0 or self._is_plain else "", *_cells(pf))
        self._console.print(rows)

    def _lines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._console.print(line)


def _merged(of_extender: Iterable[str], of_api_server: Iterable[str]) -> tuple[str, ...]:
    """Join the sentences of two sources, each once."""
    return tuple(dict.fromkeys([*of_extender, *of_api_server]))


def _obstacle(sentence: str) -> str:
    return f"[red]cannot be scheduled[/]: {escape(visible(sentence))}"


def _not_started(explanation: Explanation) -> list[str]:
    """Return the nodes of a bound pod whose agents do not know it; other nodes do not matter then."""
    if explanation.state != "bound" or not explanation.interfaces:
        return []
    return [place.node for place in explanation.places if place.reported == ()]


def _heading(explanation: Explanation) -> str:
    """Return the subject of the verdicts on nodes."""
    if explanation.limit_refusal:
        return "\nbut for that limit:"
    return "\nif it were scheduled now:" if explanation.places else ""


def _about(explanation: Explanation) -> Iterator[str]:
    """Describe the pod itself."""
    pod = f"{escape(explanation.namespace)}/{escape(explanation.name)}"
    yield f"[bold]pod {pod}[/] ({escape(explanation.uid)}): [bold]{explanation.state}[/]"
    if explanation.extender.role != "active":
        missing = escape("; ".join(explanation.extender.missing))
        role = explanation.extender.role
        yield f"[yellow]this extender is {role}[/], and answers from its caches: {missing}"
    if explanation.malformed:
        label = "not allowed" if explanation.not_allowed else "malformed"
        yield f"[red]{label}[/]: {escape(explanation.malformed)}"
    yield from _request_lines(explanation)
    if explanation.state == "waiting":
        yield from _NOT_ASKED
    if explanation.nominated:
        yield f"nominated: preemption makes room for it on {escape(explanation.nominated)}"
    if explanation.refused:
        refused = explanation.refused
        why = causes_text(refused.causes) or refused.text
        yield f"last refused {seconds(refused.ago_s)} ago by {escape(refused.verb)}: {escape(why)}"
    if explanation.limit:
        limit = explanation.limit
        yield (
            f"namespace {escape(explanation.namespace)} holds "
            f"{_used_of(limit.used_mbps, limit.limit_mbps)} Mb/s and "
            f"{_used_of(limit.used_vfs, limit.limit_vfs)} VFs of its limit"
        )
    if explanation.limit_refusal:
        yield f"[red]beyond its namespace's limit[/]: {escape(explanation.limit_refusal)}"


def _about_claims(claims: ClaimsExplanation) -> Iterator[str]:
    """Describe the pod and its claims."""
    pod = f"{escape(claims.namespace)}/{escape(claims.name)}"
    yield f"[bold]pod {pod}[/] ({escape(claims.uid)}): [bold]{claims.state}[/]"
    if claims.malformed:
        yield f"[red]never allocated[/]: {escape(claims.malformed)}"
    for obstacle in claims.obstacles:
        yield f"[red]cannot start[/]: {escape(obstacle)}"
    for name, claim in claims.allocated.items():
        pfs = ", ".join(
            f"{escape(pf.name)} {count(pf.interfaces, 'VF')} {pf.reserved_mbps} Mb/s" for pf in claim.pfs
        )
        yield f"claim {escape(name)}: allocated on {escape(', '.join(claim.nodes))}: {pfs}"
    if claims.interfaces:
        interfaces = count(claims.interfaces, "interface")
        yield f"asks for {interfaces} by claims; {claims.reserved_mbps} Mb/s reserved\n"
    if claims.caps:
        yield f"last change of caps {escape(claims.caps)}"
    if claims.state == "bound":
        yield (
            f"on {escape(claims.node)}; if it does not start: `kubectl -n {escape(claims.namespace)} "
            f"describe pod {escape(claims.name)}`"
        )


def _request_lines(explanation: Explanation) -> Iterator[str]:
    """Yield lines on the pod's request and its placement."""
    if explanation.interfaces:
        policy = "" if explanation.policy == "any" else f", policy {escape(explanation.policy)}"
        details = f"{explanation.reserved_mbps} Mb/s reserved{policy}, priority {explanation.priority}"
        total = sum(interface.count for interface in explanation.interfaces)
        yield f"asks for {count(total, 'interface')}; {details}"
        yield from _interface_lines(explanation.interfaces)
    elif not explanation.malformed:
        yield "asks for no RDMA interfaces"
    for place in explanation.places:
        if explanation.interfaces or explanation.malformed or place.placement or place.reported:
            yield from _place_lines(place)


def _interface_lines(interfaces: tuple[RequestedInterface, ...]) -> Iterator[str]:
    """Yield a line for each kind of interface, as in the annotation."""
    for interface in interfaces[:_MOST_KINDS]:
        yield f"  {interface.count} x {escape(json.dumps(interface.interface))}"
    if len(interfaces) > _MOST_KINDS:
        yield f"  and {len(interfaces) - _MOST_KINDS} more kinds"


def _place_lines(place: Place) -> Iterator[str]:
    since = "" if place.since_s is None else f" for {seconds(place.since_s)}"
    yield f"on [bold]{escape(place.node)}[/]{since}"
    if place.placement:
        yield f"  placed: {_placed(place.placement)}"
    if place.signature is not None:
        yield f"  placement annotation: {escape(place.signature)}"
    if place.reported is None:
        yield "  [yellow]the node cannot be read[/]"
    else:
        yield f"  its agent reports {_placed(place.reported) if place.reported else 'nothing of it'}"
    if place.generation:
        yield f"  rates of generation {place.generation}, programmed: {place.programmed}"
    if place.rates:
        yield f"  last change of rates {escape(place.rates)}"


def _placed(placed: Iterable[Placed]) -> str:
    return ", ".join(
        f"{escape(pf.name or pf.pci)} {_bound_prefix(pf.at_most)}{count(pf.interfaces, 'VF')} "
        f"{pf.reserved_mbps} Mb/s"
        for pf in placed
    )


def _bound_prefix(is_maximum: bool) -> str:
    """Return the prefix for a number of devices that kubelet may still reduce."""
    return "up to " if is_maximum else ""


def _because(group: Group) -> str:
    if not group.why:
        return ""
    example = group.examples[0] if group.examples else None
    never = "" if not example or example.evictable else "; no eviction would help"
    return f": {escape(group.why)}{never}"


def _scored(node: NodeExplanation) -> str:
    return node.node if node.score is None else f"{node.node} (score {node.score})"


def _cells(pf: PfExplanation) -> tuple[str, ...]:
    link = UNKNOWN if pf.link_mbps is None else str(pf.link_mbps)
    return (
        pf.name,
        "" if pf.numa_node is None else str(pf.numa_node),
        f"{pf.free_vfs}/{pf.vfs}" if pf.devices is None else f"of {pf.devices} devices",
        mbps(f"{pf.unreserved_mbps}/{link}"),
        str(pf.room_for),
        _goes_here(pf) if pf.placed else "",
        "; ".join(pf.objections),
    )


def _goes_here(pf: PfExplanation) -> str:
    """Format the interfaces and bandwidth on a PF, and who enforces limits that hardware does not."""
    limits = (("reservations", pf.min_by), ("caps", pf.max_by))
    lines = [f"{limit}: {' or '.join(holders)}" for limit, holders in limits if holders]
    much = f"{_bound_prefix(pf.devices is not None)}{count(pf.placed, 'interface')}, {pf.placed_mbps} Mb/s"
    return "; ".join([much, *lines])


def _used_of(used: int, limit: int | None) -> str:
    return f"{used} of {'any' if limit is None else limit}"
