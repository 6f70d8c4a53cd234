"""HTTP client of Prometheus for commands: by its URL, or by the API server's proxy of its Service."""

from __future__ import annotations

import re
from contextlib import ExitStack
from time import monotonic
from typing import TYPE_CHECKING, Self, TypeVar

import httpx2

from k8s_rdma.cli.client_credentials import read_token, trusting
from k8s_rdma.cli.extender_address import SERVICE_SCHEME
from k8s_rdma.cli.service_proxy import NoAnswerError
from k8s_rdma.config.authorities import verify_as_go
from k8s_rdma.errors import K8sRdmaError, MalformedError
from k8s_rdma.kube.bounded_http import HttpReply, bounded_reply, end_in_time
from k8s_rdma.kube.documents import Documents, segment
from k8s_rdma.kube.errors import API_ERRORS
from k8s_rdma.wire.prometheus import decode_refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from k8s_rdma.cli.prometheus_address import PrometheusAddress

TIMEOUT_S = 30.0
"""The limit for one answer."""

ALL_ANSWERS_S = 180.0
"""The limit for all answers together."""

MAX_BYTES = 32 << 20
_SERVICE = re.compile(rf"{SERVICE_SCHEME}([^/]+)/((?:https?:)?[^/:]+:[^/:]+)(/[^?#]*)?")
_SHORTER = "ask for a shorter --window, or for fewer pods"
_MAX_REFUSAL = 200

Document = TypeVar("Document")


class PrometheusClient:
    """Queries Prometheus, until all answers together take too long. A context manager.

    MalformedError names the option that cannot be used.
    """

    def __init__(self, address: PrometheusAddress, *, limit_s: float = ALL_ANSWERS_S) -> None:
        self.url = address.url.rstrip("/")
        self._limit_s, self._ends_s = limit_s, monotonic() + limit_s
        with ExitStack() as stack:
            self._request = self._way(address, stack)
            self._closing = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()

    def get(
        self, path: str, query: Mapping[str, str | list[str]], decode: Callable[[bytes], Document]
    ) -> Document:
        """Return an answer.

        NoAnswerError if there is none in time; K8sRdmaError for a refusal, with its message.
        """
        if monotonic() > self._ends_s:
            msg = f"Prometheus at {self.url} takes more than {self._limit_s:g} s for all answers: {_SHORTER}"
            raise NoAnswerError(msg)
        reply = self._request(path, query)
        if reply.status != httpx2.codes.OK:
            why = decode_refusal(reply.body) or reply.body[:_MAX_REFUSAL].decode(errors="replace").strip()
            refused = NoAnswerError if httpx2.codes.is_server_error(reply.status) else K8sRdmaError
            raise refused(f"Prometheus at {self.url} answers HTTP {reply.status}: {why[:_MAX_REFUSAL]}")
        try:
            return decode(reply.body)
        except MalformedError as error:
            msg = f"Prometheus at {self.url}: its answer cannot be read: {error.message}"
            raise K8sRdmaError(msg) from error

    def _way(
        self, address: PrometheusAddress, stack: ExitStack
    ) -> Callable[[str, Mapping[str, str | list[str]]], HttpReply]:
        if address.url.startswith(SERVICE_SCHEME):
            return self._by_proxy(address, stack)
        if not re.fullmatch(r"https?://[^/?#@]+(/[^?#]*)?", address.url):
            msg = f"--prometheus {address.url}: wanted a URL such as http://prometheus.example:9090"
            raise MalformedError(msg)
        headers = {}
        if address.token_file:
            token = read_token(address.token_file, option="--prometheus-token-file")
            headers["authorization"] = f"Bearer {token}"
        trust = trusting(address.ca_file, option="--prometheus-ca-file", verification=verify_as_go)
        client = stack.enter_context(
            httpx2.Client(headers=headers, verify=trust, timeout=TIMEOUT_S, trust_env=False)
        )
        end_in_time(client, TIMEOUT_S)

        def ask(path: str, query: Mapping[str, str | list[str]]) -> HttpReply:
            try:
                request = client.build_request("GET", self.url + path, params=dict(query))
                return bounded_reply(client, request, MAX_BYTES)
            except (httpx2.HTTPError, OSError, ValueError) as error:
                advice = f"; {_SHORTER}" if isinstance(error, (httpx2.TimeoutException, ValueError)) else ""
                msg = (
                    f"Prometheus at {self.url} does not answer: {str(error) or type(error).__name__}{advice}"
                )
                raise NoAnswerError(msg) from error

        return ask

    def _by_proxy(
        self, address: PrometheusAddress, stack: ExitStack
    ) -> Callable[[str, Mapping[str, str | list[str]]], HttpReply]:
        found = _SERVICE.fullmatch(address.url)
        if not found:
            msg = f"--prometheus {address.url}: wanted service://NAMESPACE/NAME:PORT"
            raise MalformedError(msg)
        api = stack.enter_context(Documents(address.kubeconfig))
        namespace, port, prefix = found[1], found[2], (found[3] or "").rstrip("/")
        base = f"/api/v1/namespaces/{segment(namespace)}/services/{segment(port)}/proxy{prefix}"

        def ask(path: str, query: Mapping[str, str | list[str]]) -> HttpReply:
            try:
                return api.proxied(base + path, query=query, headers={}, max_bytes=MAX_BYTES)
            except API_ERRORS as error:
                raise NoAnswerError(error.message) from error

        return ask
