"""HTTP of the chart's pods by the API server's proxy: with a user's kubeconfig, and without `port-forward`.

The right to use it is RBAC's: `get` on `services/proxy` or `pods/proxy` allows GET alone. The token of a
server's `tokenFile` has a header of its own, because the API server does not forward `Authorization`. The
token is in a Secret that a viewer may read. Source: "Manually constructing apiserver proxy URLs", Kubernetes'
documentation.
"""

from __future__ import annotations

from base64 import b64decode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec

from k8s_rdma.cli.client_credentials import first_token
from k8s_rdma.config.addresses import NAMESPACE
from k8s_rdma.errors import K8sRdmaError, MalformedError, Reason
from k8s_rdma.kube.chart_objects import node_containers
from k8s_rdma.kube.documents import Documents, segment
from k8s_rdma.kube.errors import API_ERRORS
from k8s_rdma.wire.http_error import message_of
from k8s_rdma.wire.json import decode
from k8s_rdma.wire.tokens import TOKEN_FIELD, TOKENS_SECRET

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.kube.bounded_http import HttpReply

MAX_BYTES = 16 << 20
"""The limit for an answer: ten times the size of 1,024 VFs and as many pods."""

_ROLE = "the chart's Role k8s-rdma-viewer has this right (docs/kubectl.md)"
_CLOSED = "set viewers.enabled in the chart, and have the right to its token (docs/kubectl.md)"
_OK, _UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _INTERNAL = 200, 401, 403, 404, 500

Kind = Literal["services", "pods"]


class NoAnswerError(K8sRdmaError):
    """No answer, or HTTP 5xx, as from a process that ends or a proxy; a retry may succeed."""

    reason = Reason.NOT_READY


class _ApiStatus(msgspec.Struct, frozen=True):
    """A `Status` of the API server, which answers itself if it may not or cannot forward a request."""

    kind: Literal["Status"]
    message: str = ""


_status = msgspec.json.Decoder(_ApiStatus)


@dataclass(slots=True, kw_only=True)
class ServiceProxy:
    """Reads paths of Services and pods of one namespace. secret: the name of the Secret with the token."""

    api: Documents
    namespace: str = NAMESPACE
    secret: str = TOKENS_SECRET
    _token: str | None = None
    _without_token: str = ""

    def get(self, kind: Kind, port: str, path: str, query: Mapping[str, str | list[str]]) -> bytes:
        """Return the answer's body.

        NoAnswerError without an answer; K8sRdmaError for a refusal, with the remedy in its details.

        port: `NAME:PORT`, or `https:NAME:PORT`.
        """
        url = f"/api/v1/namespaces/{segment(self.namespace)}/{kind}/{segment(port)}/proxy{path}"
        headers = {TOKEN_FIELD: token} if (token := self._tokens()) else {}
        try:
            reply = self.api.proxied(url, query=query, headers=headers, max_bytes=MAX_BYTES)
        except API_ERRORS as error:
            raise NoAnswerError(error.message) from error
        if reply.status == _OK:
            return reply.body
        raise self._refusal(f"{self.namespace}/{port}{path}", reply)

    def _refusal(self, subject: str, reply: HttpReply) -> K8sRdmaError:
        code = f"HTTP {reply.status}"
        try:
            message = decode(reply.body, _status, "Status").message
        except MalformedError:
            message = message_of(reply.body) or code
            closed = reply.status in (_UNAUTHORIZED, _FORBIDDEN)
            details = "\n".join(filter(None, (_CLOSED, self._without_token))) if closed else ""
        else:
            details = _ROLE if reply.status == _FORBIDDEN else _CLOSED if reply.status == _NOT_FOUND else ""
        refused = NoAnswerError if reply.status >= _INTERNAL else K8sRdmaError
        return refused(f"{subject}: {message} ({code})", details=details)

    def _tokens(self) -> str:
        """Return the Secret's first token, read once; empty without a token, for `_without_token`."""
        if self._token is None:
            self._token = ""
            path = f"/api/v1/namespaces/{segment(self.namespace)}/secrets/{segment(self.secret)}"
            try:
                secret = self.api.get(path)
            except API_ERRORS as error:
                self._without_token = error.message
            else:
                self._token = _token_of(secret or {})
                if not self._token:
                    self._without_token = f"secret {self.namespace}/{self.secret}: has no token"
        return self._token


def _token_of(secret: Mapping[str, object]) -> str:
    data = secret.get("data")
    encoded = data.get("tokens") if isinstance(data, dict) else None
    try:
        return first_token(b64decode(encoded if isinstance(encoded, str) else "").decode("ascii"))
    except ValueError:
        return ""


def server_port(api: Documents, namespace: str, node: str) -> str:
    """Find the port of a node's server, as the proxy names it. namespace: the chart's. K8sRdmaError."""
    for pod, container in node_containers(api, namespace, node, "server"):
        for port in container.get("ports") or ():
            probe = (container.get("livenessProbe") or {}).get("httpGet") or {}
            scheme = "https:" if probe.get("scheme") == "HTTPS" else ""
            return f"{scheme}{pod['metadata']['name']}:{port['containerPort']}"
    msg = f"no pod of the chart's DaemonSet runs there in namespace {namespace}"
    raise K8sRdmaError(msg, details="--chart-namespace NAME names the chart's namespace")
