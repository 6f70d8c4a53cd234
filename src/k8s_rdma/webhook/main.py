"""The process `k8s-rdma webhook`: a mutating admission webhook over HTTPS, without any privilege.

It holds no state and does not read the cluster: every answer is made of the request alone.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import structlog
import uvloop
from prometheus_client import Counter, disable_created_metrics

from k8s_rdma import __version__, process
from k8s_rdma.config.ports import port_of
from k8s_rdma.errors import MalformedError
from k8s_rdma.http_server import ConnectionLimits, HttpServer, listen
from k8s_rdma.http_server.asgi import (
    CONTENT_TYPE,
    JSON,
    Answer,
    Receive,
    Scope,
    Send,
    ServerTls,
    error_answer,
    exposition,
    gauge,
    tls_context,
)
from k8s_rdma.http_server.bodies import Bodies, BodyError, ClientGoneError
from k8s_rdma.http_server.connections import return_large_buffers
from k8s_rdma.process import stop_on_signals
from k8s_rdma.webhook.injection import Injection, decode_review, encode_patch, encode_refusal
from k8s_rdma.wire.annotation_keys import unknown_keys
from k8s_rdma.wire.http_error import Error

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from k8s_rdma.config.webhook import WebhookConfig
    from k8s_rdma.wire.json import Buffer


_log = structlog.get_logger()

SHUTDOWN_S = 5
MAX_BODY_BYTES = 1 << 20
"""Longer reviews are answered unread, because a review holds up all others for as long as it is read.

A review is its pod and 2 KiB. Annotations have at most 256 KiB in all (k8s.io/apimachinery,
`TotalAnnotationSizeLimitB`), and pods of 100 KiB are rare."""

INJECT_PATH = "/inject"
INDEX = """\
k8s-rdma: admission webhook

POST /inject  AdmissionReview of a pod that is being created
GET /metrics  requests by outcome (Prometheus)
GET /healthz  whether this process runs
GET /readyz   the same
"""


def run(config: WebhookConfig) -> None:
    """Serve until SIGTERM or SIGINT. K8sRdmaError when it cannot start."""
    process.configure_logging("webhook")
    return_large_buffers()
    tls = _tls(config)
    with (
        listen(config.listen, port_of(config, os.environ)) as listener,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(_serve(listener, WebhookApp(Injection.configured(config)), tls, config))


def check(config: WebhookConfig) -> None:
    """Read all that a start would read. MalformedError names the field, or the environment's variable."""
    _tls(config)
    port_of(config, os.environ)


def _tls(config: WebhookConfig) -> ServerTls | None:
    return None if config.tls is None else tls_context(config.tls)


async def _serve(
    listener: socket.socket, app: WebhookApp, tls: ServerTls | None, config: WebhookConfig
) -> None:
    stop = stop_on_signals()
    limits = ConnectionLimits(body_bytes=MAX_BODY_BYTES, connections=config.max_connections)
    server = HttpServer(app, shutdown_s=SHUTDOWN_S, limits=limits, tls=tls)
    host, port = listener.getsockname()[:2]
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.serve(listener))
        _log.info("webhook_ready", address=host, port=port, tls=tls is not None)
        await stop.wait()
        server.stop()
    _log.info("webhook_stopped")


class WebhookApp:
    """ASGI application: reviews of pods, probes and metrics."""

    def __init__(self, injection: Injection) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._injection = injection
        self._bodies = Bodies(MAX_BODY_BYTES, bound="1 MiB")
        self._requests = Counter(
            "k8s_rdma_webhook_requests_total", "Reviews by outcome.", ("outcome",), registry=None
        )
        self._paths: dict[str, Callable[[], Answer]] = {
            "/": lambda: Answer(INDEX),
            "/metrics": lambda: Answer(self.metrics(), content_type=CONTENT_TYPE),
            "/healthz": lambda: Answer("ok\n"),
            "/readyz": lambda: Answer("ok\n"),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        path, method = scope["path"], scope["method"]
        if path == INJECT_PATH and method == "POST":
            answer = await self._inject(scope, receive)
        elif path in self._paths and method in ("GET", "HEAD"):
            answer = self._paths[path]()
        else:
            answer = self._misdirected(path, method)
        if answer is not None:
            await answer(scope, receive, send)

    async def _inject(self, scope: Scope, receive: Receive) -> Answer | None:
        """Answer a review, unless the client has disconnected."""
        try:
            async with self._bodies.reading(scope, receive) as body:
                answered, outcome = self._review(body)
            answer = Answer(answered, content_type=JSON)
        except ClientGoneError:
            return None
        except BodyError as error:
            answer, outcome = _refused(error.status, error.outcome, str(error)), error.outcome
        except MalformedError as error:
            answer, outcome = _refused(400, "malformed", error.message), "malformed"
        self._requests.labels(outcome).inc()
        return answer

    def _review(self, body: Buffer) -> tuple[bytes, str]:
        """Return the review's answer, and its outcome for the metrics; MalformedError if it is no review."""
        request = decode_review(body)
        try:
            patch = self._injection.patch(request.object)
        except MalformedError as error:
            meta = request.object.metadata
            pod = f"{request.namespace}/{meta.name or meta.generate_name}"
            _log.warning("pod_refused", pod=pod, error=error.message)
            return encode_refusal(request.uid, error.message), "refused"
        warnings = unknown_keys(request.object.metadata.annotations or ())
        return encode_patch(request.uid, patch, warnings), "injected" if patch else "unchanged"

    def _misdirected(self, path: str, method: str) -> Answer:
        if path != INJECT_PATH and path not in self._paths:
            return error_answer(404, Error(reason="not_found", message="there is no such path; / lists them"))
        allowed = "POST" if path == INJECT_PATH else "GET, HEAD"
        error = Error(reason="method_not_allowed", message=f"{path} takes {allowed}, not {method}")
        return error_answer(405, error, headers={"allow": allowed})

    def metrics(self) -> str:
        """Return the metrics, in the text format."""
        build = gauge(
            "k8s_rdma_webhook_build_info", "1, with the program's version.", [({"version": __version__}, 1)]
        )
        return exposition([build, *self._requests.collect()]).decode()


def _refused(status: int, reason: str, message: str) -> Answer:
    _log.warning("request_refused", status=status, error=message)
    return error_answer(status, Error(reason=reason, message=message))
