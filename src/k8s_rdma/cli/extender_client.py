"""HTTP client of the extender for commands, with advice if there is no answer.

An extender is reached by its URL, or by the API server's proxy: `service://NAMESPACE/NAME:PORT`.
"""

from __future__ import annotations

import re
import ssl
from typing import TYPE_CHECKING, Protocol, Self

import httpx2

from k8s_rdma.cli.client_credentials import read_token, trusting
from k8s_rdma.cli.extender_address import (
    SERVICE_SCHEME,
    URL_VARIABLE,
    VIEWS_URL,
    ExtenderAddress,
)
from k8s_rdma.cli.service_proxy import NoAnswerError, ServiceProxy
from k8s_rdma.config.addresses import EXTENDER_PORT, EXTENDER_URL, NAMESPACE
from k8s_rdma.config.authorities import demand_rfc5280
from k8s_rdma.errors import K8sRdmaError, MalformedError
from k8s_rdma.kube.bounded_http import bounded_reply, end_in_time
from k8s_rdma.kube.documents import Documents
from k8s_rdma.wire.http_error import MAX_ANSWER_BYTES, message_of
from k8s_rdma.wire.views import CLUSTER_PATH, MAX_ROWS, Sort, decode_view, unreadable_nodes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from k8s_rdma.kube.bounded_http import HttpReply

TIMEOUT_S = 20.0
_ADVICE = (
    f"say where it is with --extender URL or {URL_VARIABLE}; from outside of the cluster, first run "
    f"`kubectl -n {NAMESPACE} port-forward deployment/k8s-rdma-extender {EXTENDER_PORT}`, "
    "or use `kubectl rdma`"
)
_TRUST = (
    "give --ca-file FILE with the CA of its certificate; --insecure where the certificate has another name"
)

_SERVICE = re.compile(rf"{SERVICE_SCHEME}([^/]+)/((?:https?:)?[^/:]+:[^/:]+)/?")


class ExtenderReader(Protocol):
    """Reads paths of an extender; a context manager. url: its address."""

    url: str

    def __enter__(self) -> Self:
        """Use it until the block ends."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close its connections."""
        ...

    def get(self, path: str, query: Mapping[str, str | list[str]]) -> bytes:
        """Return the answer's body; NoAnswerError without an answer, K8sRdmaError for a refusal."""
        ...


def extender_reader(address: ExtenderAddress) -> ExtenderReader:
    """Choose how the extender is reached. MalformedError names the option that cannot be used."""
    proxied = address.url.startswith(SERVICE_SCHEME)
    return ProxiedExtender(address) if proxied else ExtenderClient(address)


def node_verdicts(extender: ExtenderReader) -> dict[str, str] | None:
    """Read why the extender refuses nodes (`wire.views.unreadable_nodes`), if it knows the cluster.

    Errors are those of `ExtenderReader.get`.
    """
    view = decode_view(extender.get(CLUSTER_PATH, {"sort": Sort.NAME, "limit": str(MAX_ROWS)}))
    return unreadable_nodes(view)


class ProxiedExtender:
    """Reads an extender through the API server's proxy of its Service."""

    def __init__(self, address: ExtenderAddress) -> None:
        self.url = address.url
        found = _SERVICE.fullmatch(address.url)
        if not found:
            msg = f"--extender {address.url}: wanted service://NAMESPACE/NAME:PORT, such as {VIEWS_URL}"
            raise MalformedError(msg)
        namespace, self._port = found.groups()
        self._api = Documents(address.kubeconfig)
        self._proxy = ServiceProxy(api=self._api, namespace=namespace, secret=address.tokens_secret)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._api.__exit__(kind, error, trace)

    def get(self, path: str, query: Mapping[str, str | list[str]]) -> bytes:
        """Return the answer's body, as `ServiceProxy.get`."""
        return self._proxy.get("services", self._port, path, query)


class ExtenderClient:
    """Reads an extender by its URL. MalformedError names the option whose file cannot be used."""

    def __init__(self, address: ExtenderAddress) -> None:
        self.url = address.url.rstrip("/")
        if not self.url.startswith(("http://", "https://")):
            msg = f"--extender {address.url}: wanted a URL such as {EXTENDER_URL}"
            raise MalformedError(msg)
        headers = {}
        if address.token_file:
            headers["authorization"] = f"Bearer {read_token(address.token_file, option='--token-file')}"
        self._client = httpx2.Client(
            base_url=self.url, headers=headers, verify=_trust(address), timeout=TIMEOUT_S, trust_env=False
        )
        end_in_time(self._client, TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def get(self, path: str, query: Mapping[str, str | list[str]]) -> bytes:
        """Return the answer's body.

        NoAnswerError if there is no answer, or only for now; K8sRdmaError if it is a refusal, with the
        extender's message.
        """
        request = self._client.build_request("GET", path, params=dict(query))
        try:
            reply = bounded_reply(self._client, request, MAX_ANSWER_BYTES)
        except (httpx2.HTTPError, OSError) as error:
            msg = f"no extender answers at {self.url}: {error}"
            raise NoAnswerError(msg, details=_TRUST if _is_distrust(error) else _ADVICE) from error
        except ValueError as error:
            msg = f"{self.url}{path}: {error}: it is no extender of this version"
            raise K8sRdmaError(msg) from error
        if reply.status == httpx2.codes.OK:
            return reply.body
        if reply.status == httpx2.codes.UNAUTHORIZED:
            msg = f"the extender at {self.url} does not know you: {_refusal(self.url, path, reply)}"
            raise K8sRdmaError(msg, details="give --token-file FILE, or --cert-file FILE and --key-file FILE")
        refused = NoAnswerError if httpx2.codes.is_server_error(reply.status) else K8sRdmaError
        raise refused(_refusal(self.url, path, reply))


def _is_distrust(error: BaseException) -> bool:
    """Report whether the server's certificate is not trusted."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLCertVerificationError):
        cause = cause.__cause__ or cause.__context__
    return cause is not None


def _refusal(url: str, path: str, reply: HttpReply) -> str:
    if message := message_of(reply.body):
        return message
    if reply.status == httpx2.codes.SERVICE_UNAVAILABLE and reply.body.startswith(b"not there yet"):
        return f"the extender at {url} is not ready: {reply.body.decode(errors='replace').strip()}"
    return f"{url}{path} answers HTTP {reply.status}: it is no extender of this version"


def _trust(address: ExtenderAddress) -> ssl.SSLContext:
    context = trusting(address.ca_file, option="--ca-file", verification=demand_rfc5280)
    _present(context, address)
    if address.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _present(context: ssl.SSLContext, address: ExtenderAddress) -> None:
    """Present our client certificate to servers that demand one."""
    if address.cert_file is None:
        return
    try:
        context.load_cert_chain(address.cert_file, address.key_file, password="")
    except OSError as error:
        why = error.strerror or "no PEM files of a certificate and its key"
        msg = f"--cert-file {address.cert_file}, --key-file {address.key_file or address.cert_file}: {why}"
        raise MalformedError(msg) from error
