"""How the configuration has the nodes' servers asked."""

from __future__ import annotations

import resource
import ssl
import sys
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from k8s_rdma.config.reloaded import Reloaded
from k8s_rdma.errors import MalformedError
from k8s_rdma.extender.sources.http_get import Security
from k8s_rdma.extender.sources.http_node import Asking
from k8s_rdma.http_server.tls import check_readable, ssl_words
from k8s_rdma.http_server.tokens import token_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from k8s_rdma.extender.config import ExtenderConfig, NodeTls


_OTHERS = 1024
"""Files that are open beside long polls: other questions, clients, the API server."""

_HOLD_S = 25.0
"""Shorter than what proxies and firewalls forget a silent connection after."""


def asking_of(config: ExtenderConfig) -> Asking:
    """How nodes are asked; MalformedError as `security_of`.

    A node whose long poll is not answered is asked once more, so that both have to fit into `stale_s`.
    """
    return Asking(
        port=config.node_port,
        timeout_s=config.node_timeout_s,
        security=security_of(config),
        retry_s=config.retry_s,
        watches=min(config.node_watches, _connections() - _OTHERS),
        hold_s=min(_HOLD_S, config.stale_s / 2),
        requests_tell=not config.api,
    )


def _connections() -> int:
    """How many files this process may have open."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if hard == resource.RLIM_INFINITY else max(hard, _OTHERS)


def security_of(config: ExtenderConfig, *, clock: Callable[[], float] = monotonic) -> Security:
    """As the configuration says; MalformedError names the field whose file is unusable.

    Files are read again when they change, for the connections and questions from then on.
    """
    tls, token = config.node_tls, config.node_token_file
    return Security(
        tls=None if tls is None else _tls_context(tls, clock),
        server_name=None if tls is None else tls.server_name,
        token=None if token is None else token_of(token, field="nodeTokenFile", clock=clock),
    )


def _tls_context(config: NodeTls, clock: Callable[[], float]) -> Callable[[], ssl.SSLContext]:
    paths = [path for path in (config.ca_file, config.cert_file, config.key_file) if path is not None]
    return Reloaded(lambda: _load(config), *map(Path, paths), clock=clock)


def _load(config: NodeTls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    check_readable("nodeTls.caFile", config.ca_file)
    try:
        context.load_verify_locations(cafile=config.ca_file)
    except OSError as error:
        msg = f"nodeTls.caFile {config.ca_file}: {ssl_words(error)}"
        raise MalformedError(msg) from error
    if config.cert_file is not None and config.key_file is not None:
        check_readable("nodeTls.certFile", config.cert_file)
        check_readable("nodeTls.keyFile", config.key_file)
        try:
            context.load_cert_chain(config.cert_file, config.key_file, password="")
        except OSError as error:
            where = f"nodeTls.certFile {config.cert_file} and nodeTls.keyFile {config.key_file}"
            msg = f"{where}: {ssl_words(error)}"
            raise MalformedError(msg) from error
    return context
