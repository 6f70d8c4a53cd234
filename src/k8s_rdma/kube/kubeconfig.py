"""The API server and its user: kubeconfig files as kubectl reads them, and a pod's service account.

Commands look in kubectl's order: the file of the command line, or else the files of `KUBECONFIG` or
`~/.kube/config`, and the service account only if these name no context. Processes look for the service
account first.

Source: client-go: `Load` in tools/clientcmd/loader.go, `ClientConfig` in merged_client_builder.go,
`getContext` and the like in client_config.go, `Possible` of `inClusterClientConfig`; `DefaultServerURL` in
rest/url_utils.go.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from urllib.parse import urlsplit

import httpx2
import msgspec
import yaml
from lightkube.core.exceptions import ConfigError

from k8s_rdma.config.bounded_files import read_found_file, read_named_file
from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.credentials import usable_token
from k8s_rdma.wire.go_yaml import read_go_yaml
from k8s_rdma.wire.yaml import yaml_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.kube.selection import KubeconfigSelection

_Entry = TypeVar("_Entry")

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
DEFAULT_NAMESPACE = "default"

_DEFAULT = "~/.kube/config"
_HOW = "--kubeconfig FILE, kubeconfig: FILE in a process's configuration, or KUBECONFIG"
_HOST, _PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"
_PROXY_SCHEMES = ("http", "https")


class _Kebab(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """Keys of kubeconfig files; unknown ones do not matter. Empty counts as not set."""


class KubeconfigExtension(_Kebab, frozen=True, kw_only=True):
    """`NamedExtension`."""

    name: str = ""
    extension: Any = None


class KubeconfigCluster(_Kebab, frozen=True, kw_only=True):
    """`Cluster` of a kubeconfig."""

    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    proxy_url: str = ""
    tls_server_name: str = ""
    disable_compression: bool = False
    extensions: tuple[KubeconfigExtension, ...] = ()


class ExecVariable(msgspec.Struct, frozen=True, kw_only=True):
    """`ExecEnvVar`."""

    name: str
    value: str = ""


class ExecPlugin(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`ExecConfig`. interactive_mode: `Never`, `IfAvailable` or `Always`; empty as `IfAvailable`."""

    api_version: str = ""
    command: str = ""
    args: tuple[str, ...] = ()
    env: tuple[ExecVariable, ...] = ()
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = ""


class KubeconfigUser(_Kebab, frozen=True, kw_only=True):
    """`AuthInfo` of a kubeconfig."""

    token: str = ""
    token_file: str = msgspec.field(name="tokenFile", default="")
    username: str = ""
    password: str = ""
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    exec: ExecPlugin | None = None
    auth_provider: Any = None
    impersonated: str = msgspec.field(name="as", default="")


class _Context(_Kebab, frozen=True, kw_only=True):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _NamedCluster(msgspec.Struct, frozen=True):
    name: str = ""
    cluster: KubeconfigCluster = KubeconfigCluster()


class _NamedContext(msgspec.Struct, frozen=True):
    name: str = ""
    context: _Context = _Context()


class _NamedUser(msgspec.Struct, frozen=True):
    name: str = ""
    user: KubeconfigUser = KubeconfigUser()


class _File(_Kebab, frozen=True, kw_only=True):
    current_context: str = ""
    clusters: tuple[_NamedCluster, ...] = ()
    contexts: tuple[_NamedContext, ...] = ()
    users: tuple[_NamedUser, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Merged:
    """Several files as one."""

    current_context: str
    clusters: Mapping[str, KubeconfigCluster]
    contexts: Mapping[str, _Context]
    users: Mapping[str, KubeconfigUser]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServer:
    """The API server that is asked, and who asks. namespace: of objects that are named without one.

    cluster_name, user_name: for messages.
    """

    cluster: KubeconfigCluster
    user: KubeconfigUser
    namespace: str = DEFAULT_NAMESPACE
    cluster_name: str = ""
    user_name: str = ""


@contextmanager
def usable_credentials(kubeconfig: str | None, *, in_cluster: bool = False) -> Iterator[None]:
    """Convert faults that are found within to MalformedError, which names the file."""
    try:
        yield
    except (ConfigError, OSError, ValueError, ImportError, httpx2.InvalidURL) as error:  # of proxies, too
        prefix = f"kubeconfig {kubeconfig}: " if kubeconfig else ""
        msg = f"{prefix}no usable {'service account' if in_cluster else 'kubeconfig'}: {error}"
        raise MalformedError(msg) from error


def command_api_server(selection: KubeconfigSelection) -> ApiServer:
    """Find the API server that kubectl with these options would use. Call it in `usable_credentials`."""
    if selection.file:
        return _chosen(_merged(_read(_expanded(selection.file))), selection)
    merged = _merged(*map(_read, found := _files()))
    if not (merged.current_context or selection.is_explicit) and _in_pod():
        return _service_account(selection.namespace)
    if not found:
        _refuse_without_files()
    return _chosen(merged, selection)


def command_namespace(selection: KubeconfigSelection) -> str:
    """Return the namespace of objects without one; MalformedError for a kubeconfig that cannot be used."""
    if selection.namespace:
        return selection.namespace
    if not (selection.is_explicit or _in_pod() or _files()):
        return DEFAULT_NAMESPACE
    with usable_credentials(selection.file):
        return command_api_server(selection).namespace


def process_api_server(selection: KubeconfigSelection, *, in_cluster: bool) -> ApiServer:
    """Find the file's; without a file the service account's, and without that one, kubectl's.

    It must be called in `usable_credentials`.

    in_cluster: the service account's only.
    """
    if in_cluster or (not selection.file and _in_pod()):
        return _service_account(selection.namespace)
    return command_api_server(selection)


def _in_pod() -> bool:
    return bool(os.environ.get(_HOST) and os.environ.get(_PORT)) and (SERVICE_ACCOUNT / "token").is_file()


def _service_account(namespace: str | None) -> ApiServer:
    host, port = os.environ.get(_HOST), os.environ.get(_PORT)
    token_file, authority = SERVICE_ACCOUNT / "token", SERVICE_ACCOUNT / "ca.crt"
    if not (host and port):
        msg = f"{_HOST} and {_PORT} are not set: this is no pod"
        raise ConfigError(msg)
    read_found_file(token_file)
    host = f"[{host}]" if ":" in host else host
    return ApiServer(
        cluster=KubeconfigCluster(server=f"https://{host}:{port}", certificate_authority=str(authority)),
        user=KubeconfigUser(token_file=str(token_file)),
        namespace=namespace or os.environ.get("POD_NAMESPACE") or _namespace_of_pod() or DEFAULT_NAMESPACE,
        cluster_name="of the service account",
        user_name="of the service account",
    )


def _namespace_of_pod() -> str:
    try:
        return read_found_file(SERVICE_ACCOUNT / "namespace").decode(errors="replace").strip()
    except OSError:
        return ""


def _paths() -> list[Path]:
    named = os.environ.get("KUBECONFIG") or _DEFAULT
    return [_expanded(name) for name in named.split(os.pathsep) if name]


def _files() -> list[Path]:
    """Return the files that kubectl would read: missing ones do not matter."""
    return [path for path in _paths() if path.exists()]


def _refuse_without_files() -> NoReturn:
    msg = f"there is no {', '.join(map(str, _paths()))}; say which one by {_HOW}"
    raise ConfigError(msg)


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:  # no HOME, and no such user
        msg = f"{path}: that home directory is not known; set HOME, or say which file by {_HOW}"
        raise ConfigError(msg) from error


def _read(path: Path) -> _File:
    """Read a file and make its paths absolute, which are relative to it. An empty file has no entries.

    ConfigError names the file, and the line or the field.
    """
    try:
        document = read_go_yaml(read_named_file(path))
    except OSError as error:
        msg = f"{path}: {error.strerror}"
        raise ConfigError(msg) from error
    except (yaml.YAMLError, ValueError) as error:
        why = yaml_words(error) if isinstance(error, yaml.YAMLError) else "not YAML"
        msg = f"{path}: {why}"
        raise ConfigError(msg) from None  # its own text shows a line of the file, which may have a token
    if document is None:
        return _File()
    if not isinstance(document, dict):
        msg = f"{path}: no mapping; wanted a Config of kubectl"
        raise ConfigError(msg)
    try:
        file = msgspec.convert(_without_nulls(document), _File)
    except msgspec.ValidationError as error:
        why, _, field = str(error).partition(" - at `$.")
        msg = f"{path}: {field.rstrip('`') or 'document'}: {why}"
        raise ConfigError(msg) from None
    directory = path.absolute().parent
    return msgspec.structs.replace(
        file,
        clusters=tuple(
            _NamedCluster(named.name, _cluster_at(directory, named.cluster)) for named in file.clusters
        ),
        users=tuple(_NamedUser(named.name, _user_at(directory, named.user)) for named in file.users),
    )


def _without_nulls(value: Any) -> Any:
    """Leave out keys of mappings whose value is null, which count as not set."""
    if isinstance(value, dict):
        return {str(key): _without_nulls(below) for key, below in value.items() if below is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _cluster_at(directory: Path, cluster: KubeconfigCluster) -> KubeconfigCluster:
    file = "" if cluster.certificate_authority_data else cluster.certificate_authority
    return msgspec.structs.replace(cluster, certificate_authority=_below(directory, file))


def _user_at(directory: Path, user: KubeconfigUser) -> KubeconfigUser:
    plugin = user.exec
    if plugin and os.sep in plugin.command:
        plugin = msgspec.structs.replace(plugin, command=_below(directory, plugin.command))
    return msgspec.structs.replace(
        user,
        token_file=_below(directory, user.token_file),
        client_certificate=_below(directory, "" if user.client_certificate_data else user.client_certificate),
        client_key=_below(directory, "" if user.client_key_data else user.client_key),
        exec=plugin,
    )


def _below(directory: Path, path: str) -> str:
    return str(directory / path) if path else ""


def _merged(*files: _File) -> _Merged:
    """Merge files: of entries with the same name, and of settings that occur twice, the first counts."""
    return _Merged(
        current_context=next(filter(None, (file.current_context for file in files)), ""),
        clusters=_first(files, lambda file: ((named.name, named.cluster) for named in file.clusters)),
        contexts=_first(files, lambda file: ((named.name, named.context) for named in file.contexts)),
        users=_first(files, lambda file: ((named.name, named.user) for named in file.users)),
    )


def _first(
    files: tuple[_File, ...], entries: Callable[[_File], Iterator[tuple[str, _Entry]]]
) -> dict[str, _Entry]:
    merged: dict[str, _Entry] = {}
    for file in files:
        for name, entry in entries(file):
            merged.setdefault(name, entry)
    return merged


def _chosen(merged: _Merged, selection: KubeconfigSelection) -> ApiServer:
    """Choose the entries. A context without a user is anonymous, as for kubectl."""
    name = selection.context or merged.current_context
    if not name and not selection.cluster:
        msg = "no current-context; kubectl config use-context NAME sets it"
        raise ConfigError(msg)
    origin = "--context" if selection.context else "current-context"
    context = _named(merged.contexts, "context", name, origin) if name else _Context()
    subject = f"context {name}"
    cluster_name = selection.cluster or context.cluster
    cluster = _named(merged.clusters, "cluster", cluster_name, "--cluster" if selection.cluster else subject)
    _require_supported_cluster(cluster, f"cluster {cluster_name}")
    user, user_name = KubeconfigUser(), selection.user or context.user
    if user_name:
        origin = "--user" if selection.user else subject
        user = _supported_user(_named(merged.users, "user", user_name, origin), subject, user_name)
    return ApiServer(
        cluster=msgspec.structs.replace(cluster, server=_with_scheme(cluster, user)),
        user=user,
        namespace=selection.namespace or context.namespace or DEFAULT_NAMESPACE,
        cluster_name=cluster_name,
        user_name=user_name,
    )


def _named(entries: Mapping[str, _Entry], kind: str, name: str, path: str) -> _Entry:
    if name not in entries:
        msg = f"{path}: there is no {kind} {name!r}" if name else f"{path}: it names no {kind}"
        raise ConfigError(msg)
    return entries[name]


def _require_supported_cluster(cluster: KubeconfigCluster, subject: str) -> None:
    if not cluster.server:
        msg = f"{subject}: server: not set; wanted the API server's URL"
        raise ConfigError(msg)
    if not cluster.proxy_url:
        return
    try:
        proxy = urlsplit(cluster.proxy_url)
        is_usable = proxy.scheme in _PROXY_SCHEMES and bool(proxy.hostname)
        scheme = proxy.scheme
    except ValueError:
        is_usable, scheme = False, ""
    if not is_usable:
        found = f"{scheme}:// is not supported" if scheme else "no URL"  # it may have a password
        msg = f"{subject}: proxy-url: {found}; wanted http:// or https:// and a host"
        raise ConfigError(msg)


def _supported_user(user: KubeconfigUser, subject: str, name: str) -> KubeconfigUser:
    """Return the user with its token as it is sent; ConfigError for unsupported credentials."""
    if user.impersonated:
        acting = f"{subject}: its user acts as {user.impersonated!r}"
        msg = f"{acting}, which is not supported; use that one's credentials"
        raise ConfigError(msg)
    if user.auth_provider is not None and not (user.token or user.token_file or user.exec):
        msg = f"{subject}: user {name}: auth-provider not supported, as by kubectl since 1.26; use exec"
        raise ConfigError(msg)
    token = user.token.strip()
    return msgspec.structs.replace(
        user, token=usable_token(token, f"{subject}: user {name}") if token else ""
    )


def _with_scheme(cluster: KubeconfigCluster, user: KubeconfigUser) -> str:
    """Return the server's URL. Without a scheme it is https if the cluster or the user has TLS settings."""
    if "://" in cluster.server:
        return cluster.server
    has_tls = any(
        (
            cluster.insecure_skip_tls_verify,
            cluster.certificate_authority,
            cluster.certificate_authority_data,
            user.client_certificate,
            user.client_certificate_data,
        )
    )
    return f"{'https' if has_tls else 'http'}://{cluster.server}"
