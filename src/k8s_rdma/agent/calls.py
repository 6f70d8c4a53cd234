"""Calls into the agent, by the CNI executable, the device plugin, an operator or a reader of its state.

Each has an operation id in the log, and is answered whatever happens: a fault in one call is an answer to its
caller, because the agent serves all pods of the node.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import structlog

from k8s_rdma.errors import K8sRdmaError, Reason

_Answer = TypeVar("_Answer")

_log = structlog.get_logger()


async def publish_nothing() -> None:
    """Leave the report as it is, for a call that does not change the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCall(Generic[_Answer]):
    """A call that is to be answered.

    name: begins the log's events, for example `cni_call`, `cni_call_refused` and `cni_call_failed`.
    fields: in every log line of the call, beside its operation id.
    perform: returns the answer; K8sRdmaError refuses the call.
    failed: makes the answer of an error.
    publish: publishes the changes of the call; awaited before the answer is returned, after errors as well.
    logs_success, logs_refusal: whether a call that ends so has a line in the log; a fault always has one.
    """

    name: str
    fields: Mapping[str, str] = field(default_factory=dict)
    perform: Callable[[], Awaitable[_Answer]]
    failed: Callable[[K8sRdmaError], _Answer]
    publish: Callable[[], Awaitable[None]] = publish_nothing
    logs_success: bool = True
    logs_refusal: bool = True

    async def answer(self) -> _Answer:
        """Perform the call, and return its answer or the answer of its error."""
        with structlog.contextvars.bound_contextvars(operation=uuid.uuid4().hex[:8], **self.fields):
            answer = await self._answer()
            try:
                await self.publish()
            except Exception:  # the call itself has ended, and its answer holds
                _log.exception(f"{self.name}_not_published")
            return answer

    async def _answer(self) -> _Answer:
        started = time.monotonic()
        try:
            answer = await self.perform()
        except K8sRdmaError as error:
            if self.logs_refusal:
                _log.warning(
                    f"{self.name}_refused",
                    reason=error.reason,
                    error=str(error),
                    details=error.details,
                    duration_ms=elapsed_ms(started),
                )
            return self.failed(error)
        except Exception as error:
            _log.exception(f"{self.name}_failed", duration_ms=elapsed_ms(started))
            msg = f"the agent has a fault: {error!r}; its log has more"
            return self.failed(K8sRdmaError(msg, reason=Reason.INTERNAL))
        if self.logs_success:
            _log.info(self.name, duration_ms=elapsed_ms(started))
        return answer


def elapsed_ms(started: float) -> float:
    """Return the milliseconds since a moment of the monotonic clock."""
    return round((time.monotonic() - started) * 1e3, 3)
