"""`k8s-rdma agent adopt`: the request to the running agent, and its results."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

from k8s_rdma.cli.formats import CommandAnswer, indented
from k8s_rdma.cli.tables import NONE, Column, Table, mbps
from k8s_rdma.core.node_paths import CNI_SOCKET
from k8s_rdma.errors import K8sRdmaError, MalformedError, Reason, visible
from k8s_rdma.wire.adopt import AdoptedVf, AdoptReply, AdoptRequest, decode_adopted, encode_adopt
from k8s_rdma.wire.cni_socket import Reply, decode_reply, encode_request, reply_bytes_missing

if TYPE_CHECKING:
    from pathlib import Path

    from k8s_rdma.cli.console import Page
    from k8s_rdma.cli.formats import Output

TIMEOUT_S = 60.0
"""The time-out of the whole call; a VF takes some milliseconds to reset, after requests of pods before it."""

COLUMNS = (
    Column("PF"),
    Column("VF", right=True),
    Column("NETDEV", rank=4),
    Column("MIN RATE", right=True, rank=2),
    Column("MAX RATE", right=True, rank=1),
    Column("VLAN", right=True, rank=3),
    Column("OUTCOME"),
    Column("MESSAGE", prose=True),
)


def adopt(run_dir: Path, request: AdoptRequest, output: Output, *, every: bool) -> int:
    """Print the outcome of each VF; the exit status is 1 if something that should be reset is not.

    MalformedError if options contradict each other. K8sRdmaError if the agent cannot be asked, or refuses.

    every: whether all foreign VFs are meant.
    """
    if every == (request.pf is not None) or (request.vf is not None and request.pf is None):
        msg = "say which VFs: --all, or --pf NAME, or --pf NAME --vf N"
        raise MalformedError(msg)
    adopted = decode_adopted(_call(run_dir / CNI_SOCKET, request))
    if adopted.error:
        raise K8sRdmaError(adopted.error)
    output.write(
        CommandAnswer(
            document=lambda: indented(adopted),
            names=(f"vf/{vf.pf}/{vf.vf}" for vf in adopted.vfs),
            show=lambda page: show(adopted, page),
        )
    )
    return 1 if _incomplete(adopted, request) else 0


def _incomplete(adopted: AdoptReply, request: AdoptRequest) -> bool:
    """Report whether a reset failed, a named VF was not reset, or something was unreadable."""
    failures = {"failed"} if request.vf is None else {"failed", "left alone"}
    return bool(adopted.unreadable) or any(vf.outcome in failures for vf in adopted.vfs)


def _call(path: Path, adopt_request: AdoptRequest) -> Reply:
    request = encode_adopt(adopt_request, deadline_ms=int((time.monotonic() + TIMEOUT_S) * 1000))
    data = bytearray()
    try:
        with socket.socket(socket.AF_UNIX) as agent:
            agent.settimeout(TIMEOUT_S)
            agent.connect(str(path))
            agent.sendall(encode_request(request))
            while missing := reply_bytes_missing(data):
                chunk = agent.recv(missing)
                if not chunk:
                    msg = "the agent ended before it answered; its log may say why"
                    raise K8sRdmaError(msg, reason=Reason.AGENT_UNREACHABLE)
                data += chunk
    except OSError as error:
        raise K8sRdmaError(_why(path, error), reason=Reason.AGENT_UNREACHABLE) from error
    return decode_reply(data)


def _why(path: Path, error: OSError) -> str:
    match error:
        case FileNotFoundError() | ConnectionRefusedError():
            return f"the agent is not running: no process listens at {path}"
        case PermissionError():
            return f"{path}: only the user that the agent runs as may ask it to, root as a rule"
        case TimeoutError():
            return f"the agent did not answer within {TIMEOUT_S:g} s; what it had begun it finishes"
        case _:
            return f"{path}: {error.strerror or error}"


def show(adopted: AdoptReply, page: Page) -> None:
    """Print a row for each VF, and a line for each thing that was unreadable."""
    if adopted.vfs:
        table = Table(*COLUMNS)
        for vf in adopted.vfs:
            table.add(*_row(vf))
        page.print(table)
    else:
        page.print("no foreign VF: nothing to adopt")
    for sentence in adopted.unreadable:
        page.print(f"cannot be checked: {visible(sentence)}")


def _row(vf: AdoptedVf) -> tuple[str, ...]:
    rates = (mbps(vf.min_tx_rate), mbps(vf.max_tx_rate), str(vf.vlan))
    names = (visible(vf.pf), str(vf.vf), visible(vf.netdev or NONE))
    return (*names, *rates, vf.outcome, visible(vf.why))
