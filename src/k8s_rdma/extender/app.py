"""HTTP application of the extender: bodies in, bodies out; who may ask; how much memory bodies may take.

Answers that a scheduler understands are always 200 (it takes anything else for a failure of the extender
and shows no more than the status); 400 is for bodies that are none of its documents, 413 for too long ones.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, TypeAlias

import structlog

from k8s_rdma.errors import MalformedError
from k8s_rdma.http_server.access import ServerTls, Tokens, tls_context, tokens_of
from k8s_rdma.http_server.answer import (
    CONTENT_TYPE,
    JSON,
    Answer,
    Receive,
    Scope,
    Send,
    error_answer,
    json_answer,
)
from k8s_rdma.http_server.connections import Bodies, BodyError, ClientGoneError
from k8s_rdma.wire.rest import Error

if TYPE_CHECKING:
    from k8s_rdma.extender.config import ExtenderConfig
    from k8s_rdma.extender.extender import Extender


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The proofs by which clients are admitted; without any, everybody is.

    tls, tokens: those of now; None for plain HTTP, and for no tokens. certificates: whether clients may show
    one. Where both are configured either will do: kube-scheduler can show a certificate and no token.
    """

    tls: ServerTls | None = None
    tokens: Callable[[], Tokens] | None = None
    certificates: bool = False

    def admits(self, scope: Scope) -> bool:
        """Report whether the request's client may ask."""
        if not self.certificates and self.tokens is None:
            return True
        if self.certificates and "client_cert_name" in scope.get("extensions", {}).get("tls", {}):
            return True
        return self.tokens is not None and self.tokens().accept(scope["headers"])

    def demand(self) -> str:
        """The message for a client that is not admitted."""
        named = " with one of clientNames" if self.tls is not None and self.tls.client_names else ""
        proofs = [
            *([f"a client certificate of clientCaFile{named}"] if self.certificates else []),
            *(["`Authorization: Bearer` and a token of tokenFile"] if self.tokens is not None else []),
        ]
        return f"it takes {' or '.join(proofs)}"


EVERYBODY = Access()


def access_of(config: ExtenderConfig) -> Access:
    """Read the configured access; MalformedError names the field whose file is unusable.

    Certificates are asked for, not demanded, by TLS itself: kubelet's probes have none.
    """
    tls = config.tls
    return Access(
        tls=None if tls is None else tls_context(tls, demand=False),
        tokens=None if config.token_file is None else tokens_of(config.token_file, field="tokenFile"),
        certificates=tls is not None and tls.client_ca_file is not None,
    )


Verb: TypeAlias = Callable[[bytearray], Awaitable[bytes]]
View: TypeAlias = Callable[["Scope"], Awaitable[Answer]]

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""Paths for kubelet's probes, which have neither certificate nor token."""

_UNAUTHORIZED = {"www-authenticate": "Bearer"}

_LAST = {"connection": "close"}
"""Header of answers to a scheduler, once its body is read, if replicas elect a leader. A Service chooses the
replica when a connection begins: one that stays open stays with a process that leads no more, or hangs."""

_log = structlog.get_logger()


class ExtenderApp:
    """The paths, as an ASGI application: verbs take POST, everything else GET and HEAD."""

    def __init__(self, extender: Extender, config: ExtenderConfig, access: Access = EVERYBODY) -> None:
        self._access = access
        self._metrics = extender.metrics
        self._last = _LAST if config.elects_leader else {}
        self._bodies = Bodies(
            config.max_body_bytes,
            bound="maxBodyBytes",
            advice="register the extender with nodeCacheCapable: true, so that the scheduler sends names "
            "instead of whole node objects",
        )
        self._verbs: dict[str, tuple[str, Verb]] = {
            config.filter_path: ("filter", extender.filter),
            config.prioritize_path: ("prioritize", extender.prioritize),
            config.preempt_path: ("preempt", extender.preempt),
        }
        if config.binder == "extender":
            self._verbs[config.bind_path] = "bind", extender.bind
        self._not_ours = config.bind_path if config.binder == "scheduler" else None

        async def readyz(_scope: Scope) -> Answer:
            if missing := extender.missing():
                return Answer(f"not there yet: {', '.join(missing)}\n", status=503)
            warning = extender.warning()
            return Answer(f"ok\nwarning: {warning}\n" if warning else "ok\n")

        self._views: dict[str, View] = {
            "/": self._index,
            "/healthz": _healthz,
            "/readyz": readyz,
            "/metrics": self._show_metrics,
            **extender.views.routes(),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        path, method = scope["path"], scope["method"]
        if path in self._verbs and method == "POST":
            answer = await self._post(scope, receive)
        elif path in self._views and method in ("GET", "HEAD"):
            answer = await self._answer_get(scope)
        else:
            answer = self._misdirected(path, method)
        if answer is not None:
            await answer(scope, receive, send)

    async def _answer_get(self, scope: Scope) -> Answer:
        if scope["path"] not in OPEN_PATHS and not self._access.admits(scope):
            error = Error(reason="unauthorized", message=self._access.demand())
            return error_answer(401, error, headers=_UNAUTHORIZED)
        return await self._views[scope["path"]](scope)

    async def _post(self, scope: Scope, receive: Receive) -> Answer | None:
        """The answer of a verb; None when nobody waits for it any more."""
        began = monotonic()  # uvloop's clock has whole milliseconds
        name, verb = self._verbs[scope["path"]]
        with self._metrics.under_way(name):
            answer, outcome = await self._respond(name, verb, scope, receive)
        self._metrics.count(name, outcome, monotonic() - began)
        return answer

    async def _respond(
        self, name: str, verb: Verb, scope: Scope, receive: Receive
    ) -> tuple[Answer | None, str]:
        if not self._access.admits(scope):
            return _refuse(name, 401, self._access.demand(), headers=_UNAUTHORIZED), "unauthorized"
        try:
            async with self._bodies.reading(scope, receive) as body:
                answered = await verb(body)
            return Answer(answered, content_type=JSON, headers=self._last), "answered"
        except ClientGoneError:
            return None, "client_gone"
        except BodyError as error:
            return _refuse(name, error.status, str(error)), error.outcome
        except MalformedError as error:
            return _refuse(name, 400, error.message, headers=self._last), "malformed"

    def _misdirected(self, path: str, method: str) -> Answer:
        allowed = "POST" if path in self._verbs else "GET, HEAD" if path in self._views else None
        if allowed is None:
            message = f"there is no path {path}; there are {', '.join(self._paths())}"
            if path == self._not_ours:
                message = (
                    f"{path}: the scheduler binds (binder: scheduler), and must have no bindVerb registered"
                )
            if method == "POST":  # the scheduler shows no more than the status
                _log.warning("request_refused", verb=None, status=404, error=message)
            return error_answer(404, Error(reason="not_found", message=message))
        error = Error(reason="method_not_allowed", message=f"{path} takes {allowed}, not {method}")
        return error_answer(405, error, headers={"allow": allowed})

    def _paths(self) -> list[str]:
        verbs = [f"{path} (POST, {name})" for path, (name, _) in self._verbs.items()]
        return verbs + [path for path in self._views if path != "/"]

    async def _index(self, _scope: Scope) -> Answer:
        return Answer("k8s-rdma: scheduler extender\n\n" + "".join(f"{path}\n" for path in self._paths()))

    async def _show_metrics(self, _scope: Scope) -> Answer:
        return Answer(self._metrics.render(), content_type=CONTENT_TYPE)


async def _healthz(_scope: Scope) -> Answer:
    """Answer as long as the process lives: a restart does not help a replica that waits for a Lease."""
    return Answer("ok\n")


def _refuse(verb: str, status: int, message: str, *, headers: dict[str, str] | None = None) -> Answer:
    _log.warning("request_refused", verb=verb, status=status, error=message)
    return json_answer({"Error": f"{verb}: {message}"}, status=status, headers=headers)
