"""`k8s-rdma rates set`: changes reservations and caps of running pods, and shows the outcome.

It edits the pods' annotation as `kubectl annotate` would, of the version that it read, and waits for the
status that the extender writes. For caps of interfaces by ResourceClaim it is another annotation, and the
node's agent writes the status. Pods are changed one by one, because each is judged beside those before it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec
from rich.markup import escape

from k8s_rdma.cli.formats import CommandAnswer, Output
from k8s_rdma.cli.pod_names import namespaced_name
from k8s_rdma.cli.tables import Column, Table
from k8s_rdma.errors import K8sRdmaError, MalformedError, Reason, visible
from k8s_rdma.kube.documents import Documents, segment
from k8s_rdma.kube.errors import ApiRefusedError
from k8s_rdma.kube.selection import KubeconfigSelection
from k8s_rdma.wire.annotation import format_request, read_request, request_name, request_text
from k8s_rdma.wire.claim_caps import (
    CLAIM_CAPS_ANNOTATION,
    CLAIM_CAPS_STATUS_ANNOTATION,
    CapsRequest,
    encode_caps,
)
from k8s_rdma.wire.json import decode
from k8s_rdma.wire.network_status import NETWORK_STATUS_ANNOTATION
from k8s_rdma.wire.rates_status import RATES_STATUS_ANNOTATION, RatesStatus, decode_rates_status, digest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from k8s_rdma.cli.console import Page
    from k8s_rdma.core.request import InterfaceRequest, Request

_CONFLICT = 409
_TRIES = 5
_POLL_S = 0.2
_DECIDED = frozenset({"refused", "admitted", "programmed"})
_MARKS = {
    "programmed": "[green]programmed[/]",
    "admitted": "[green]admitted[/]",
    "refused": "[red]refused[/]",
}

_REFUSED, _UNDECIDED = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RatesOptions:
    """Options of the command.

    pod: `NAMESPACE/NAME`; absent if a selector chooses pods of the namespace.
    interfaces: by name or by index in the annotation; empty for all.
    min_mbps, max_mbps: an absent rate stays as it is.
    wait: until the rates are programmed, and not only decided on.
    timeout_s: for each pod.
    """

    pod: str | None
    selector: str | None
    interfaces: tuple[str, ...]
    min_mbps: int | None
    max_mbps: int | None
    wait: bool
    timeout_s: float
    kubeconfig: KubeconfigSelection
    output: Output


class RatesResult(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of one pod's change. state: of `RatesStatus`, `unchanged`, `undecided` or `failed`."""

    pod: str
    state: str
    generation: int = 0
    message: str = ""


def set_rates(options: RatesOptions) -> int:
    """Change the rates; return the exit status.

    It is 0 if all pods have the new rates, 1 if a pod was refused, and 2 if a pod's outcome is not known.
    """
    if options.min_mbps is None and options.max_mbps is None:
        msg = "--min or --max: say which rate changes, in Mb/s"
        raise MalformedError(msg)
    results = []
    page = options.output.page(markup=True)
    with Documents(options.kubeconfig) as api:
        names = list(_pods(api, options))
        if not names:
            msg = f"no pod of namespace {api.namespace} has labels {options.selector}"
            raise MalformedError(msg)
        for number, (namespace, name) in enumerate(names, 1):
            result = _result(api, namespace, name, options)
            results.append(result)
            if len(names) > 1 and options.output.is_for_people:
                page.print(f"{number}/{len(names)} {_line(result)}")
    answer = CommandAnswer(
        document=lambda: msgspec.json.encode(results) + b"\n",
        names=[f"pod/{result.pod.partition('/')[2]}" for result in results],
        show=lambda page: _summarize(results, page),
    )
    options.output.write(answer, markup=True)
    states = {result.state for result in results}
    satisfied = {"programmed", "unchanged"} | (set() if options.wait else {"admitted"})
    return _REFUSED if "refused" in states else 0 if states <= satisfied else _UNDECIDED


def _pods(api: Documents, options: RatesOptions) -> Iterator[tuple[str, str]]:
    """Name the pods, in the order of their names."""
    if options.pod is not None:
        yield namespaced_name(options.pod, options.kubeconfig)
        return
    path = f"/api/v1/namespaces/{segment(api.namespace)}/pods"
    found = [item["metadata"]["name"] for item in api.items(path, {"labelSelector": options.selector or ""})]
    for name in sorted(found):
        yield api.namespace, name


def _result(api: Documents, namespace: str, name: str, options: RatesOptions) -> RatesResult:
    """Change one pod. If it is the only one, a failure is raised; otherwise it is the pod's result."""
    pod = f"{namespace}/{name}"
    try:
        return _change(api, namespace, name, options)
    except K8sRdmaError as error:
        if options.pod is not None:
            raise
        return RatesResult(pod=pod, state="failed", message=error.message)


def _change(api: Documents, namespace: str, name: str, options: RatesOptions) -> RatesResult:
    pod, path = f"{namespace}/{name}", f"/api/v1/namespaces/{segment(namespace)}/pods/{segment(name)}"
    for tries_left in reversed(range(_TRIES)):
        document = api.get_object(path)
        if document is None:
            raise MalformedError(f"pod {pod} does not exist")
        metadata = document["metadata"]
        annotations = metadata.get("annotations") or {}
        edit = _edit(pod, document, annotations, options)
        if not edit.is_changed:
            status = _status(annotations, edit)
            return RatesResult(pod=pod, state="unchanged", generation=status.generation if status else 0)
        patch = {
            "metadata": {
                "uid": metadata["uid"],
                "resourceVersion": metadata["resourceVersion"],
                "annotations": {edit.annotation: edit.text},
            }
        }
        try:
            api.patch(path, patch)
        except ApiRefusedError as refused:
            if refused.status != _CONFLICT or not tries_left:
                raise
            continue
        return _outcome(api, path, pod, edit, options)
    raise AssertionError  # the last try raises


@dataclass(frozen=True, slots=True, kw_only=True)
class _Edit:
    """Text for an annotation.

    status: the annotation with its status.
    undecided: the sentence if the status is absent.
    """

    annotation: str
    text: str
    is_changed: bool
    status: str
    undecided: str


def _edit(
    pod: str, document: Mapping[str, Any], annotations: Mapping[str, str], options: RatesOptions
) -> _Edit:
    """Return the annotation with the new rates. MalformedError names the key that does not fit."""
    text = request_text(annotations)
    request = read_request(text, strict=False, name=request_name(annotations)).request
    spec = document.get("spec") or {}
    claimed = names_in_pod(annotations)[len(request.interfaces) :] if spec.get("resourceClaims") else []
    if not request and not spec.get("resourceClaims"):
        raise MalformedError(f"pod {pod} asks for no RDMA interfaces")
    if not spec.get("nodeName"):
        raise MalformedError(f"pod {pod} is not bound yet: edit its annotation, or its template")
    if not request or (options.interfaces and set(options.interfaces) <= set(claimed)):
        return _edit_caps(pod, annotations, claimed, options)
    edited = _edited(pod, request, annotations, options)
    return _Edit(
        annotation=request_name(annotations),
        text=edited,
        is_changed=edited != text,
        status=RATES_STATUS_ANNOTATION,
        undecided=(
            f"no extender has decided; see `k8s-rdma explain pod {pod}`, and whether placements are signed"
        ),
    )


def _edit_caps(pod: str, annotations: Mapping[str, str], claimed: list[str], options: RatesOptions) -> _Edit:
    """Return the caps of interfaces by ResourceClaim, by name or by index among these."""
    if options.min_mbps is not None or options.max_mbps is None:
        msg = (
            f"pod {pod} has its interfaces by ResourceClaim: what a claim reserves cannot change, and only "
            "--max may; start the pod anew with another claim"
        )
        raise MalformedError(msg, reason=Reason.NOT_ALLOWED)
    names = {str(index): name for index, name in enumerate(claimed)} | {name: name for name in claimed}
    for name in options.interfaces:
        if name not in names:
            choices = ", ".join(claimed) or "none that its node has reported"
            raise MalformedError(f"--interface {name}: pod {pod} has no such interface; it has {choices}")
    if not claimed:
        raise MalformedError(f"pod {pod} has no interfaces by ResourceClaim that its node has reported")
    request = CapsRequest.read(annotations)
    caps = request.caps() | {names[name]: options.max_mbps for name in options.interfaces or claimed}
    is_changed = not request.text or caps != request.caps()
    return _Edit(
        annotation=CLAIM_CAPS_ANNOTATION,
        text=encode_caps(caps) if is_changed else request.text,
        is_changed=is_changed,
        status=CLAIM_CAPS_STATUS_ANNOTATION,
        undecided="no agent has decided; that of its node needs credentials, and may be older",
    )


def _edited(pod: str, request: Request, annotations: Mapping[str, str], options: RatesOptions) -> str:
    """Return the annotation's text with the new rates."""
    chosen = _chosen(pod, request, annotations, options.interfaces)
    changed = replace(
        request,
        interfaces=tuple(
            _with_rates(index, interface, options) if index in chosen else interface
            for index, interface in enumerate(request.interfaces)
        ),
    )
    if changed == request:
        return request_text(annotations) or ""
    edited = format_request(changed)
    read_request(edited, strict=False, name=request_name(annotations))  # rates beyond the largest
    return edited


def _with_rates(index: int, interface: InterfaceRequest, options: RatesOptions) -> InterfaceRequest:
    minimum, maximum = options.min_mbps, options.max_mbps
    try:
        return replace(
            interface,
            min_tx_rate_mbps=interface.min_tx_rate_mbps if minimum is None else minimum,
            max_tx_rate_mbps=interface.max_tx_rate_mbps if maximum is None else maximum,
        )
    except ValueError as error:
        raise MalformedError(f"interface {index}: {error}") from error


def _chosen(
    pod: str, request: Request, annotations: Mapping[str, str], selected: tuple[str, ...]
) -> frozenset[int]:
    """Return the indexes of the interfaces by their names in the annotation or the pod, or by index."""
    if not selected:
        return frozenset(range(len(request.interfaces)))
    names: dict[str, int] = {str(index): index for index in range(len(request.interfaces))}
    present = names_in_pod(annotations)
    if len(present) == len(request.interfaces):
        names |= {name: index for index, name in enumerate(present)}
    names |= {
        interface.options.name: index
        for index, interface in enumerate(request.interfaces)
        if interface.options.name
    }
    for name in selected:
        if name not in names:
            choices = ", ".join(key for key in names if not key.isdigit()) or f"0 to {len(names) - 1}"
            raise MalformedError(f"--interface {name}: pod {pod} has no such interface; it has {choices}")
    return frozenset(names[name] for name in selected)


def names_in_pod(annotations: Mapping[str, str]) -> list[str]:
    """Return the names that the agent gave the interfaces, in the order of the request; empty if unknown."""
    try:
        entries = decode(
            annotations.get(NETWORK_STATUS_ANNOTATION, "[]"), _named_decoder, NETWORK_STATUS_ANNOTATION
        )
    except MalformedError:
        return []
    return [entry.interface for entry in entries]


class _Named(msgspec.Struct):
    interface: str


_named_decoder = msgspec.json.Decoder(list[_Named])


def _outcome(api: Documents, path: str, pod: str, edit: _Edit, options: RatesOptions) -> RatesResult:
    """Wait for the status of this edit."""
    over = time.monotonic() + options.timeout_s
    final = {"refused", "programmed"} if options.wait else _DECIDED
    status = None
    while time.monotonic() < over:
        document = api.get_object(path)
        if document is None:
            raise MalformedError(f"pod {pod} does not exist any more")
        status = _status(document["metadata"].get("annotations") or {}, edit)
        if status is not None and status.state in final:
            break
        time.sleep(_POLL_S)
    if status is None:
        message = f"within {options.timeout_s:g} s {edit.undecided}"
        return RatesResult(pod=pod, state="undecided", message=message)
    return RatesResult(pod=pod, state=status.state, generation=status.generation, message=status.message)


def _status(annotations: Mapping[str, str], edit: _Edit) -> RatesStatus | None:
    """Read the status, if it is about the edit's text."""
    try:
        status = decode_rates_status(annotations.get(edit.status, ""))
    except MalformedError:
        return None
    return status if status.request == digest(edit.text) else None


def _line(result: RatesResult) -> str:
    generation = f" (generation {result.generation})" if result.generation else ""
    why = f": {escape(visible(result.message))}" if result.message else ""
    state = _MARKS.get(result.state, f"[yellow]{escape(visible(result.state))}[/]")
    return f"{escape(visible(result.pod))}: {state}{generation}{why}"


def _summarize(results: list[RatesResult], page: Page) -> None:
    if len(results) == 1:
        page.print(_line(results[0]))
        return
    rows = Table(Column("STATE"), Column("PODS", right=True))
    for state in sorted({result.state for result in results}):
        rows.add(state, str(sum(result.state == state for result in results)))
    page.print(rows)
