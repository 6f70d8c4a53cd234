"""The answers to every request, rendered once for each state of the node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response

from k8s_rdma.errors import STATUS, Reason
from k8s_rdma.server.metrics import CONTENT_TYPE, render_metrics
from k8s_rdma.wire.getpfs import encode_getpfs
from k8s_rdma.wire.rest import encode_report, without_vfs

if TYPE_CHECKING:
    from datetime import datetime

    from k8s_rdma.wire.rest import NodeReport

INDEX = """\
k8s-rdma: RDMA functions of this node

GET /getpfs    physical and virtual functions, as the RDMA hardware DaemonSet shows them (JSON)
GET /v1/node   physical functions and allocations by pod, with an ETag for each state (JSON)
GET /metrics   the same in figures (Prometheus)
GET /healthz   whether this server runs, and whether the agent answers it
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What each path answers in one state. The responses hold their bytes and may be sent many times.

    etag: of `/v1/node`; None while there is no such document. unchanged: the answer to whoever has it.
    """

    node: Response
    getpfs: Response
    metrics: Response
    healthz: Response
    etag: str | None = None
    unchanged: Response | None = None


def report_answers(report: NodeReport) -> Answers:
    """While the node's state is known."""
    etag = f'"{report.generation}"'
    agent = "answers" if report.ledger == "ok" else "does not answer; the ledger is unavailable"
    return Answers(
        node=_json(encode_report(without_vfs(report)), headers={"etag": etag}),
        getpfs=_json(encode_getpfs(report)),
        metrics=Response(render_metrics(report), media_type=CONTENT_TYPE),
        healthz=_health(agent),
        etag=etag,
        unchanged=Response(status_code=304, headers={"etag": etag}),
    )


def outage_answers(why: str, since: datetime) -> Answers:
    """While the agent cannot be asked and nobody else looks at the hardware.

    What was last known is not shown: pods may have come and gone since.
    """
    told = since.isoformat(timespec="seconds")
    message = f"the agent has not answered since {told}: {why}"
    error = {"reason": Reason.AGENT_UNREACHABLE, "message": message, "since": told}
    unavailable = _json(msgspec.json.encode({"error": error}), status=STATUS[Reason.AGENT_UNREACHABLE].http)
    return Answers(
        node=unavailable,
        getpfs=unavailable,
        metrics=Response(render_metrics(None), media_type=CONTENT_TYPE),
        healthz=_health(f"does not answer since {told}: {why}"),
    )


def _json(body: bytes, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(body, status_code=status, headers=headers, media_type="application/json")


def _health(agent: str) -> Response:
    """Always 200: restarting this server does not bring the agent back."""
    return Response(f"ok\nagent: {agent}\n", media_type="text/plain")
