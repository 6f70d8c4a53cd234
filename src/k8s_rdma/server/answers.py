"""Answers to every request, rendered once for each state of the node."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.errors import STATUS, Reason
from k8s_rdma.http_server.answer import JSON, Answer, error_answer
from k8s_rdma.server.metrics import render_metrics
from k8s_rdma.wire.rest import encode_getpfs, encode_report, without_vfs
from k8s_rdma.wire.rest_error import Error

if TYPE_CHECKING:
    from datetime import datetime

    from k8s_rdma.wire.rest import NodeReport


class Shown:
    """The answers of now, and a way to wait for others; however many wait, a change is one event."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self._changed = asyncio.Event()

    def show(self, answers: Answers) -> None:
        """From now on these."""
        self.answers = answers
        self._changed.set()
        self._changed = asyncio.Event()

    async def change(self) -> None:
        """Return once others are shown."""
        await self._changed.wait()


RETRY = {"retry-after": "1"}
"""For what may be answered soon, seconds (RFC 9110, section 10.2.3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What each path answers in one state.

    metrics: what this state has in figures; the traffic is not part of it.
    generation: what `/v1/node` shows; None while there is no such document.
    unchanged: the answer to whoever has it.
    """

    node: Answer
    getpfs: Answer
    healthz: Answer
    readyz: Answer
    metrics: bytes
    generation: str | None = None
    unchanged: Answer | None = None


def report_answers(report: NodeReport) -> Answers:
    """While the node's state is known; while only a part of it is, that part is shown in figures alone."""
    agent = "answers" if report.ledger == "ok" else "does not answer; the ledger is unavailable"
    if report.unreadable:
        return _unavailable(_unreadable(report), render_metrics(report), agent)
    etag = f'"{report.generation}"'
    node = Answer(encode_report(without_vfs(report)), content_type=JSON, headers={"etag": etag})
    return Answers(
        node=node,
        getpfs=Answer(encode_getpfs(report), content_type=JSON),
        healthz=_health(agent),
        readyz=Answer(f"ok\nledger: {report.ledger}\n"),
        metrics=render_metrics(report),
        generation=report.generation,
        unchanged=Answer(status=304, headers={"etag": etag}),
    )


def outage_answers(why: str, outage_since: datetime) -> Answers:
    """While the agent cannot be asked and nobody else looks at the hardware.

    What was last known is not shown: pods may have come and gone since.
    """
    since = outage_since.isoformat(timespec="seconds")
    message = f"the agent has not answered since {since}: {why}"
    error = Error(reason=Reason.AGENT_UNREACHABLE, message=message, since=since)
    return _unavailable(error, render_metrics(None), f"does not answer since {since}: {why}")


def _unreadable(report: NodeReport) -> Error:
    message = f"node {report.node}: {len(report.unreadable)} of what it has could not be read, see problems"
    return Error(reason=Reason.UNREADABLE_NODE, message=message, problems=report.unreadable)


def _unavailable(error: Error, metrics: bytes, agent: str) -> Answers:
    unavailable = error_answer(STATUS[Reason(error.reason)].http, error, headers=RETRY)
    return Answers(
        node=unavailable,
        getpfs=unavailable,
        healthz=_health(agent),
        readyz=unavailable,
        metrics=metrics,
    )


def _health(agent: str) -> Answer:
    """Always 200: restarting this server does not bring the agent back."""
    return Answer(f"ok\nagent: {agent}\n")
