"""Facts of our own processes on the node, and of the ledger."""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2

from k8s_rdma import __version__
from k8s_rdma.agent.ledger_store import DIRECTORY, deferred_deletes_in
from k8s_rdma.core.ledger import Phase
from k8s_rdma.doctor.collectors.versions import in_metrics
from k8s_rdma.doctor.node.processes import Answer, LedgerFacts, ProcessFacts
from k8s_rdma.errors import LedgerError, MalformedError
from k8s_rdma.linux.receipts import NewerLedgerError, Receipts
from k8s_rdma.wire.rest import NodeReport, decode_report
from k8s_rdma.wire.state import HEADER, Kind, decode_header

if TYPE_CHECKING:
    from collections.abc import Callable

_TIMEOUT_S = 5.0
_LEDGER_FILES = ("", "-wal")


def process_facts(state_socket: Path, *, server: str | None, plugin: str | None) -> ProcessFacts:
    """Query the agent and the two URLs; None stands for a process that should not run."""
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


def ledger_facts(path: Path, *, agent_socket: str) -> LedgerFacts:
    """agent_socket: the agent that has it open; empty when none answers. OSError where it cannot be read.

    A copy is read: looking must not lock it, nor bring the file of an older program up to date.
    """
    if agent_socket or not path.exists():
        return LedgerFacts(path=str(path), exists=bool(agent_socket), source=agent_socket)
    with tempfile.TemporaryDirectory(prefix="k8s-rdma-") as directory:
        copy = Path(directory) / path.name
        for suffix in _LEDGER_FILES:
            if (file := path.with_name(path.name + suffix)).exists():
                shutil.copyfile(file, copy.with_name(copy.name + suffix))
        try:
            with closing(Receipts(copy)) as receipts:
                found = tuple(receipts.load().receipts.values())
        except LedgerError as error:
            return LedgerFacts(
                path=str(path),
                exists=True,
                fault=str(error).replace(str(copy), str(path)),
                newer=isinstance(error, NewerLedgerError),
            )
    unfinished = (receipt for receipt in found if receipt.phase is not Phase.ATTACHED)
    return LedgerFacts(
        path=str(path),
        exists=True,
        receipts=len(found),
        unfinished=tuple(
            f"{receipt.pod.namespace}/{receipt.pod.name} ({receipt.phase})" for receipt in unfinished
        ),
    )


def ask_agent(path: Path) -> tuple[NodeReport | None, str]:
    """The agent's first report at its `state.sock`; None and the reason when there is none."""
    try:
        with socket.socket(socket.AF_UNIX) as reader:
            reader.settimeout(_TIMEOUT_S)
            reader.connect(str(path))
            kind, length = decode_header(_receive(reader, HEADER.size))
            body = _receive(reader, length)
        return (decode_report(body), "") if kind is Kind.REPORT else (None, f"it says {kind.name} first")
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


def _fetch(url: str, *, version_at: str, read: Callable[[str], str]) -> Answer:
    """Probe a process over HTTP; read its version where we may.

    Whose certificate it shows does not matter: it is on this node, and is told nothing. One that ends a
    connection by TLS which it has taken demands a certificate of ours, and is alive.
    """
    try:
        with httpx2.Client(base_url=url, timeout=_TIMEOUT_S, trust_env=False, verify=False) as client:
            alive = client.get("/healthz")
            response = client.get(version_at)
    except (httpx2.HTTPError, OSError) as error:
        demanding = url.startswith("https:") and isinstance(
            error, httpx2.RemoteProtocolError | httpx2.ReadError
        )
        return Answer(url=f"{url}/healthz", why="" if demanding else str(error) or type(error).__name__)
    return Answer(
        url=f"{url}/healthz",
        version=read(response.text) if response.status_code == httpx2.codes.OK else "",
        why="" if alive.status_code == httpx2.codes.OK else f"HTTP {alive.status_code}",
    )


def _in_openapi(text: str) -> str:
    """The version in an OpenAPI document; empty for other documents."""
    try:
        return str(json.loads(text)["info"]["version"])
    except (ValueError, LookupError, TypeError):
        return ""
