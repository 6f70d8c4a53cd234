"""HTTP clients for the API server: TLS, proxies and credentials by the result of `kube.kubeconfig`.

A `proxy-url` takes precedence over the environment's proxies, and a token over a plugin's.

Source: client-go: `TLSConfigFor` in transport/transport.go; tools/clientcmd/client_config.go.
"""

from __future__ import annotations

import ssl
from base64 import b64decode
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx2
from lightkube.core.exceptions import ConfigError

from k8s_rdma.config.authorities import verify_as_go
from k8s_rdma.config.bounded_files import read_named_file
from k8s_rdma.kube.bounded_http import BoundedAsyncClient, end_in_time
from k8s_rdma.kube.credentials import ClientCertificate, Fetched, file_token, load_certificate
from k8s_rdma.kube.exec_plugins import plugin_credential, prepare_plugin

if TYPE_CHECKING:
    from k8s_rdma.kube.kubeconfig import ApiServer


def blocking_client(server: ApiServer, *, timeout_s: float) -> httpx2.Client:
    """Make the client of a command, whose exec plugin has the user before it. ConfigError names the field."""
    http = httpx2.Client(**_parameters(server), timeout=httpx2.Timeout(timeout_s))
    if name := server.cluster.tls_server_name:
        http.event_hooks["request"].append(partial(_name_server, name))
    end_in_time(http)
    _authenticate(http, server, plugin_timeout_s=None)
    return http


def async_client(server: ApiServer, *, timeout_s: float, keepalive_s: float) -> httpx2.AsyncClient:
    """Make the client of a process. ConfigError names the field.

    timeout_s: for a call, and as long for an exec plugin.
    keepalive_s: as of `kube.client.connect`.
    """
    limits = httpx2.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=keepalive_s)
    http = BoundedAsyncClient(**_parameters(server), timeout=httpx2.Timeout(timeout_s), limits=limits)
    if name := server.cluster.tls_server_name:

        async def name_server(request: httpx2.Request) -> None:
            _name_server(name, request)

        http.event_hooks["request"].append(name_server)
    _authenticate(http, server, plugin_timeout_s=timeout_s)
    return http


def _parameters(server: ApiServer) -> dict[str, Any]:
    return {
        "base_url": server.cluster.server,
        "verify": _tls(server),
        "proxy": server.cluster.proxy_url or None,
    }


def _name_server(name: str, request: httpx2.Request) -> None:
    """Have the certificate of this name expected, which is also the requested name (SNI)."""
    request.extensions["sni_hostname"] = name


def _tls(server: ApiServer) -> ssl.SSLContext:
    """Return the context that verifies the cluster and shows the user's certificate."""
    cluster, user = server.cluster, server.user
    subject = f"cluster {server.cluster_name}: certificate-authority"
    authority = _pem(subject, cluster.certificate_authority, cluster.certificate_authority_data)
    if authority is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _trust(context, authority, subject)
    elif urlsplit(cluster.server).scheme == "http":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # of no use; the system's authorities take 20 ms
    else:
        context = httpx2.create_ssl_context(verify=not cluster.insecure_skip_tls_verify)
    verify_as_go(context)
    subject = f"user {server.user_name}: client-certificate"
    certificate = _pem(subject, user.client_certificate, user.client_certificate_data)
    key_subject = f"user {server.user_name}: client-key"
    key = _pem(key_subject, user.client_key, user.client_key_data)
    if certificate is not None:
        if key is None:
            msg = f"{key_subject}: not set; wanted the key of client-certificate"
            raise ConfigError(msg)
        load_certificate(context, f"{certificate}\n{key}", subject)
    return context


def _trust(context: ssl.SSLContext, authority: str, subject: str) -> None:
    try:
        context.load_verify_locations(cadata=authority)
    except ssl.SSLError as error:
        msg = f"{subject}: no PEM of certificates"
        raise ConfigError(msg) from error


def _pem(subject: str, file: str, data: str) -> str | None:
    """Return the text of a field that is a file or base64, which takes precedence, if either is set.

    Characters that are not ASCII can occur only in remarks between the blocks.
    """
    try:
        if data:
            return b64decode("".join(data.split()), validate=True).decode("ascii", errors="ignore")
        return read_named_file(file).decode("ascii", errors="ignore") if file else None
    except OSError as error:
        msg = f"{subject} {file}: {error.strerror}"
        raise ConfigError(msg) from error
    except ValueError as error:
        msg = f"{subject}-data: no base64"
        raise ConfigError(msg) from error


def _authenticate(
    http: httpx2.Client | httpx2.AsyncClient, server: ApiServer, *, plugin_timeout_s: float | None
) -> None:
    """Have the calls of a client made with the credentials of the user's file or plugin."""
    user = server.user
    if user.token_file:
        http.auth = Fetched(partial(file_token, user.token_file))
    elif user.token:
        http.headers["Authorization"] = f"Bearer {user.token}"
    elif user.exec:
        own = user.client_certificate or user.client_certificate_data
        call = prepare_plugin(server, user.exec, plugin_timeout_s)
        certificate = None if own else ClientCertificate(http)
        http.auth = Fetched(partial(plugin_credential, call), certificate, source=call.source)
    elif user.username and user.password:
        http.auth = httpx2.BasicAuth(user.username, user.password)
