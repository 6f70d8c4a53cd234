"""Credentials for the API server: a pod's service account, or kubeconfig files as kubectl reads them.

A credential is a bearer token, or a certificate with its key; both may come from files or exec plugins, and
are renewed. lightkube reads one kubeconfig file alone, takes paths in some of its fields as they are, sends
tokens as they come and shows them in its failures, knows exec plugins up to v1beta1 and waits for them for
ever. No message here shows a token.

Source: client-go: `Load` in tools/clientcmd/loader.go, transport/token_source.go, `ExecCredential` in
pkg/apis/clientauthentication/v1, `refreshCredsLocked` in plugin/pkg/client/auth/exec/exec.go (for another
certificate all connections are closed).
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import subprocess
from base64 import b64encode
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import httpx2
import msgspec
import yaml
from lightkube import KubeConfig, SingleConfig
from lightkube.config.models import Cluster, Context, NameValue, User, UserExec
from lightkube.core.exceptions import ConfigError

from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.yaml import read_yaml, yaml_words

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Iterator


class ClientCertificate:
    """The client certificate of a lightkube client, for connections that it makes from now on."""

    def __init__(self, http: httpx2.Client | httpx2.AsyncClient) -> None:
        self._transports: tuple[Any, ...] = (
            http._transport,
            *filter(None, http._mounts.values()),
        )  # no other way
        self._loaded: str | None = None

    def load(self, certificate: str | None, source: str) -> bool:
        """Report whether there may be connections with another one, which are then to be closed.

        certificate: chain and key, PEM. ConfigError when it cannot be used, or there is none any more.
        """
        previous = self._loaded
        if certificate == previous:
            return False
        if certificate is None:
            msg = f"{source}: gave a certificate, and now gives none, which only a restart can take back"
            raise ConfigError(msg)
        for transport in self._transports:
            _load(transport._pool._ssl_context, certificate, source)
        self._loaded = certificate
        return previous is not None

    def close(self) -> None:
        """Close the connections of a blocking client, which makes new ones for its next calls."""
        for transport in self._transports:
            transport.close()

    async def aclose(self) -> None:
        """Close; calls and watches under way end as if their connection were lost."""
        for transport in self._transports:
            await transport.aclose()


def _load(context: ssl.SSLContext, certificate: str, source: str) -> None:
    """Load by a file in memory: ssl takes only paths, and a container's root may be read-only."""
    with os.fdopen(os.memfd_create("client-certificate"), "w", encoding="utf-8") as file:
        file.write(certificate)
        file.flush()
        try:
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password="")  # not to be asked for
        except ssl.SSLError as error:
            msg = f"{source}: its certificate and key cannot be used: {error.reason or 'no PEM'}"
            raise ConfigError(msg) from error


_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


class _Status(msgspec.Struct, frozen=True):
    """The status of an ExecCredential; empty counts as not set."""

    token: str | None = None
    certificate: str | None = msgspec.field(name="clientCertificateData", default=None)
    key: str | None = msgspec.field(name="clientKeyData", default=None)
    expires: Annotated[datetime, msgspec.Meta(tz=True)] | None = msgspec.field(
        name="expirationTimestamp", default=None
    )


class _ExecCredential(msgspec.Struct, frozen=True):
    status: _Status | None = None


def prepare_plugin(plugin: UserExec, cluster: dict[str, Any], *, of_cluster: bool) -> None:
    """Pass a plugin its input in the environment; ConfigError for an unsupported API version.

    cluster: an entry of a kubeconfig. of_cluster: whether the plugin gets it.
    """
    if plugin.apiVersion not in _VERSIONS:
        msg = (
            f"exec plugin {plugin.command}: apiVersion {plugin.apiVersion!r}; wanted {' or '.join(_VERSIONS)}"
        )
        raise ConfigError(msg)
    spec: dict[str, Any] = {"interactive": False}
    if of_cluster:
        spec["cluster"] = _cluster_info(cluster)
    document = {"apiVersion": plugin.apiVersion, "kind": "ExecCredential", "spec": spec}
    plugin.env = [*(plugin.env or ()), NameValue("KUBERNETES_EXEC_INFO", json.dumps(document))]


def _cluster_info(cluster: dict[str, Any]) -> dict[str, Any]:
    """The cluster as of `ExecCluster`: certificates by their bytes alone."""
    cluster_info = {
        key: value for key, value in cluster.items() if key not in ("certificate-authority", "extensions")
    }
    if file := cluster.get("certificate-authority"):
        cluster_info["certificate-authority-data"] = b64encode(Path(file).read_bytes()).decode()
    return cluster_info


def plugin_credential(plugin: UserExec, timeout_s: float) -> Credential:
    """Get a credential from a plugin that `prepare_plugin` prepared; ConfigError says why there is none.

    Blocks for at most timeout_s.
    """
    source = f"exec plugin {plugin.command}"
    try:
        answer = msgspec.json.decode(_answer(plugin, timeout_s), type=_ExecCredential)
    except (msgspec.MsgspecError, ValueError) as error:
        msg = f"{source}: its answer is no ExecCredential: {error}"
        raise ConfigError(msg) from None  # it may hold the answer
    status = answer.status or _Status()
    if bool(status.certificate) != bool(status.key):
        missing = "its key" if status.certificate else "the certificate"
        msg = f"{source}: gives one of certificate and key, and not {missing}"
        raise ConfigError(msg)
    if not status.token and not status.certificate:
        msg = f"{source}: gives neither a token nor a certificate"
        raise ConfigError(msg)
    return Credential(
        token=usable_token(status.token, source) if status.token else None,
        certificate=f"{status.certificate}\n{status.key}" if status.certificate else None,
        expires=status.expires,
    )


def _answer(plugin: UserExec, timeout_s: float) -> bytes:
    environment = {**os.environ, **{variable.name: variable.value for variable in plugin.env or ()}}
    command = [plugin.command, *(plugin.args or ())]
    try:
        process = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        msg = f"exec plugin {plugin.command}: no answer within {timeout_s:g} s"
        raise ConfigError(msg) from None  # it holds what the plugin wrote
    except (OSError, ValueError) as error:
        msg = f"exec plugin {plugin.command}: {getattr(error, 'strerror', None) or error}"
        raise ConfigError(msg) from error
    if process.returncode != 0:
        output = " ".join(process.stderr.decode(errors="replace").split())
        msg = f"exec plugin {plugin.command}: exit status {process.returncode}: {output}"
        raise ConfigError(msg)
    return process.stdout


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """A token, a certificate, or both. certificate: its chain and its key, PEM. expires: None for never."""

    token: str | None = field(default=None, repr=False)
    certificate: str | None = field(default=None, repr=False)
    expires: datetime | None = None


def usable_token(text: str, source: str) -> str:
    """The token, without white space around it; ConfigError when there is none, or no header can carry it."""
    token = text.strip()
    if not token:
        msg = f"{source}: the token is empty"
        raise ConfigError(msg)
    if not (token.isascii() and token.isprintable()):
        msg = f"{source}: the token has line breaks or other signs that no header can carry; wanted it alone"
        raise ConfigError(msg)
    return token


def file_token(path: str) -> Credential:
    """Read a token from a file; ConfigError names a file without a readable one."""
    source = f"tokenFile {path}"
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        msg = f"{source}: {error.strerror}"
        raise ConfigError(msg) from error
    except ValueError:
        msg = f"{source}: no text"
        raise ConfigError(msg) from None  # it holds the bytes
    return Credential(token=usable_token(text, source))


_Json = dict[str, Any]
_Model = TypeVar("_Model", Cluster, Context, User)

_DEFAULT = "~/.kube/config"
_KINDS = {"clusters": "cluster", "contexts": "context", "users": "user"}
_HOW = "--kubeconfig FILE, kubeconfig: FILE in a process's configuration, or KUBECONFIG"
_PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")


@contextmanager
def usable_credentials(kubeconfig: str | None, *, in_cluster: bool = False) -> Iterator[None]:
    """MalformedError, which names the file, for what is found wrong within."""
    try:
        yield
    except (
        *(ConfigError, OSError, msgspec.MsgspecError),
        *(AttributeError, KeyError, TypeError, ValueError),  # a document of another form, to lightkube
    ) as error:
        prefix = f"kubeconfig {kubeconfig}: " if kubeconfig else ""
        msg = f"{prefix}no usable {'service account' if in_cluster else 'kubeconfig'}: {error}"
        raise MalformedError(msg) from error


def credentials(kubeconfig: str | None = None, *, in_cluster: bool = False) -> SingleConfig:
    """Load the file; without one, the service account, the files of `KUBECONFIG`, or `~/.kube/config`.

    in_cluster: the service account and nothing else. To be called in `usable_credentials`.
    """
    if kubeconfig:
        return _chosen(_merged(_read(_expanded(kubeconfig))))
    try:
        return KubeConfig.from_service_account().get()  # type: ignore[return-value]  # there is one context
    except ConfigError:
        if in_cluster:
            raise
    return _chosen(_merged(*map(_read, _files())))


def _files() -> list[Path]:
    """The files that kubectl would read: missing ones of several do not matter."""
    named = os.environ.get("KUBECONFIG") or _DEFAULT
    paths = [_expanded(name) for name in named.split(os.pathsep) if name]
    if found := [path for path in paths if path.exists()]:
        return found
    msg = f"there is no {', '.join(map(str, paths))}; say which one by {_HOW}"
    raise ConfigError(msg)


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:  # no HOME, and no such user
        msg = f"{path}: that home directory is not known; set HOME, or say which file by {_HOW}"
        raise ConfigError(msg) from error


def _read(path: Path) -> _Json:
    """A file, its paths made absolute: they are relative to it. An empty one says nothing."""
    try:
        document = read_yaml(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        msg = f"{path}: {yaml_words(error)}"
        raise ConfigError(msg) from None  # its own text shows a line of the file, which may have a token
    if document is None:
        return {}
    if not isinstance(document, dict):
        msg = f"{path}: no mapping; wanted a Config of kubectl"
        raise ConfigError(msg)
    for kind, key in _KINDS.items():
        for entry in document.get(kind) or ():
            _resolve(entry.get(key) or {}, path.absolute().parent)
    return document


def _resolve(entry: _Json, directory: Path) -> None:
    if entry.get("certificate-authority-data"):
        entry.pop("certificate-authority", None)  # as client-go has it; to lightkube the file goes first
    for key in _PATHS:
        if entry.get(key):
            entry[key] = str(directory / entry[key])
    plugin = entry.get("exec")
    if plugin and os.sep in plugin.get("command", ""):
        plugin["command"] = str(directory / plugin["command"])


def _merged(*documents: _Json) -> _Json:
    """Merge files: of entries with the same name, and of settings that occur twice, the first counts."""
    current = next(filter(None, (source.get("current-context") for source in documents)), "")
    merged: _Json = {"current-context": current, **{kind: {} for kind in _KINDS}}
    for document in documents:
        for kind, key in _KINDS.items():
            for entry in document.get(kind) or ():
                merged[kind].setdefault(entry["name"], entry.get(key) or {})
    return merged


def _chosen(document: _Json) -> SingleConfig:
    """Choose the current context. A context without a user is anonymous, as to kubectl."""
    name = document["current-context"]
    if not name:
        msg = "no current-context; kubectl config use-context NAME sets it"
        raise ConfigError(msg)
    context = _named(document, "contexts", name, "current-context", Context)
    subject = f"context {name}"
    cluster = _named(document, "clusters", context.cluster, subject, Cluster)
    user = _user(document, context.user, subject) if context.user else User()
    if user.exec:
        whole = document["users"][context.user]["exec"].get("provideClusterInfo", False)
        prepare_plugin(user.exec, document["clusters"][context.cluster], of_cluster=whole)
    return SingleConfig(context_name=name, context=context, cluster=cluster, user=user)


def _user(document: _Json, name: str, path: str) -> User:
    """Read a user; empty counts as not set, as to client-go."""
    user = _named(document, "users", name, path, User)
    if impersonated := document["users"][name].get("as"):
        msg = f"{path}: its user acts as {impersonated!r}, which is not supported; use that one's credentials"
        raise ConfigError(msg)
    token = (user.token or "").strip()
    user.token = usable_token(token, f"{path}: user {name}") if token else None
    user.token_file = user.token_file or None
    return user


def _named(document: _Json, kind: str, name: str, path: str, model: type[_Model]) -> _Model:
    if name not in document[kind]:
        msg = f"{path}: there is no {_KINDS[kind]} {name!r}"
        raise ConfigError(msg)
    return msgspec.convert(document[kind][name], model)


_UNAUTHORIZED = 401


def authenticate(http: httpx2.Client | httpx2.AsyncClient, user: User | None, *, timeout_s: float) -> None:
    """Have the calls of a client made with what a user's file or plugin gives.

    timeout_s: for an exec plugin. As to client-go, tokens go before what a plugin gives, and a certificate of
    the user's own before that of a plugin.
    """
    if user is None:
        return
    if user.token_file:
        http.auth = Fetched(partial(file_token, user.token_file))
    elif user.exec and not user.token:
        own = user.client_cert or user.client_cert_data
        http.auth = Fetched(
            partial(plugin_credential, user.exec, timeout_s),
            None if own else ClientCertificate(http),
            source=f"exec plugin {user.exec.command}",
        )


class Fetched(httpx2.Auth):
    """A credential that is fetched for the first call, and anew once it has expired or is refused (401)."""

    def __init__(
        self,
        fetch: Callable[[], Credential],
        certificate: ClientCertificate | None = None,
        *,
        source: str = "",
    ) -> None:
        """certificate: where that of a credential goes; source: whose it is, in messages."""
        self._fetch = fetch
        self._certificate = certificate
        self._source = source
        self._cached: Credential | None = None
        self._fetching = asyncio.Lock()

    def sync_auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        """Authenticate a blocking client's request."""
        if (sent := self._usable()) is not None:
            response = yield _bearing(sent, request)
            if response.status_code != _UNAUTHORIZED:
                return
            response.read()  # its connection may be closed now
        fetched = self._fetch()
        if self._certificate and self._certificate.load(fetched.certificate, self._source):
            self._certificate.close()
        self._cached = fetched
        yield _bearing(fetched, request)

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Authenticate a request; one refresh in another thread serves all concurrent calls."""
        if (sent := self._usable()) is not None:
            response = yield _bearing(sent, request)
            if response.status_code != _UNAUTHORIZED:
                return
            await response.aread()
        yield _bearing(await self._fetched_after(sent), request)

    async def _fetched_after(self, refused: Credential | None) -> Credential:
        """Another than the refused one; perhaps what another call has fetched meanwhile."""
        async with self._fetching:
            if (cached := self._usable()) is not None and cached is not refused:
                return cached
            fetched = await asyncio.to_thread(self._fetch)
            if self._certificate and self._certificate.load(fetched.certificate, self._source):
                await self._certificate.aclose()
            self._cached = fetched
            return fetched

    def _usable(self) -> Credential | None:
        cached = self._cached
        expired = cached is not None and cached.expires is not None and cached.expires <= datetime.now(UTC)
        return None if expired else cached


def _bearing(credential: Credential, request: httpx2.Request) -> httpx2.Request:
    if credential.token is not None:
        request.headers["Authorization"] = f"Bearer {credential.token}"
    return request
