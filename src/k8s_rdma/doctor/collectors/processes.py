"""Facts of our processes: whether they answer, with which version, and the agent's report."""

from __future__ import annotations

import socket
from math import isfinite
from typing import TYPE_CHECKING

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from k8s_rdma import __version__
from k8s_rdma.agent.ledger_store import DIRECTORY, deferred_deletes_in
from k8s_rdma.doctor.cluster.components import KeyUsage
from k8s_rdma.doctor.node.processes import HttpAnswer, ProcessFacts
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.nesting import load
from k8s_rdma.wire.report import NodeReport, decode_report
from k8s_rdma.wire.state_socket import HEADER, MessageKind, decode_header

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from prometheus_client.core import Sample

_TIMEOUT_S = 5.0


def in_metrics(text: str) -> str:
    """Return the version in a process's metrics; empty for older processes without it."""
    infos = (sample for sample in _samples(text) if sample.name.endswith("_build_info"))
    return next((sample.labels.get("version", "") for sample in infos), "")


def key_usage_in_metrics(text: str) -> tuple[KeyUsage, ...]:
    """Return bound pods by the key that signed their placements, in the extender's metrics."""
    return tuple(
        KeyUsage(int(sample.value), *(sample.labels.get(name, "") for name in ("key", "algorithm", "use")))
        for sample in _samples(text)
        if sample.name == "k8s_rdma_extender_pods_signed" and isfinite(sample.value)
    )


def _samples(text: str) -> list[Sample]:
    """Return the samples of an exposition; empty if the text is no exposition."""
    try:
        return [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    except ValueError:
        return []


def process_facts(state_socket: Path, *, server: str | None, plugin: str | None) -> ProcessFacts:
    """Query the agent and the two URLs. A process without a URL should not run."""
    report, why = ask_agent(state_socket)
    deletions = state_socket.with_name(DIRECTORY)
    return ProcessFacts(
        socket=str(state_socket),
        report=report,
        why=why,
        server=_fetch(server, version_at="/openapi.json", read=_in_openapi) if server else None,
        plugin=_fetch(plugin, version_at="/metrics", read=in_metrics) if plugin else None,
        version=__version__,
        leftovers=tuple(sorted(deferred_deletes_in(deletions))),
        left_in=str(deletions),
    )


def ask_agent(path: Path) -> tuple[NodeReport | None, str]:
    """Return the agent's first report at its `state.sock`, or the reason if there is no report."""
    try:
        with socket.socket(socket.AF_UNIX) as reader:
            reader.settimeout(_TIMEOUT_S)
            reader.connect(str(path))
            kind, length = decode_header(_receive(reader, HEADER.size))
            body = _receive(reader, length)
        return (
            (decode_report(body), "") if kind is MessageKind.REPORT else (None, f"it says {kind.name} first")
        )
    except OSError as error:
        return None, f"{path}: {error.strerror or error}"
    except MalformedError as error:
        return None, f"{path}: {error}; is it of another version?"


def _receive(reader: socket.socket, count: int) -> bytes:
    data = reader.recv(count, socket.MSG_WAITALL)
    if len(data) != count:
        msg = "closed before the report was whole"
        raise OSError(msg)
    return data


def _fetch(url: str, *, version_at: str, read: Callable[[str], str]) -> HttpAnswer:
    """Probe a process over HTTP; read its version if that is allowed.

    Its certificate is not verified, because the process is on this node and receives no secret. A process
    that ends a TLS connection after accepting it demands a client certificate, and is alive.
    """
    try:
        with httpx2.Client(base_url=url, timeout=_TIMEOUT_S, trust_env=False, verify=False) as client:
            alive = client.get("/healthz")
            response = client.get(version_at)
    except (httpx2.HTTPError, OSError) as error:
        demanding = url.startswith("https:") and isinstance(
            error, httpx2.RemoteProtocolError | httpx2.ReadError
        )
        return HttpAnswer(url=f"{url}/healthz", why="" if demanding else str(error) or type(error).__name__)
    return HttpAnswer(
        url=f"{url}/healthz",
        version=read(response.text) if response.status_code == httpx2.codes.OK else "",
        why="" if alive.status_code == httpx2.codes.OK else f"HTTP {alive.status_code}",
    )


def _in_openapi(text: str) -> str:
    """Return the version in an OpenAPI document; empty for other documents."""
    try:
        return str(load(text)["info"]["version"])
    except (ValueError, LookupError, TypeError):
        return ""
