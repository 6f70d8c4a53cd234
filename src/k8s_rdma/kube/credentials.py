"""Credentials for the API server: a pod's service account, or kubeconfig files as kubectl reads them.

lightkube reads one file alone, and takes paths in some of its fields as they are. Source: client-go, `Load`
in tools/clientcmd/loader.go.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import yaml
from lightkube import KubeConfig, SingleConfig
from lightkube.config.models import Cluster, Context, User
from lightkube.core.exceptions import ConfigError

from k8s_rdma.config.yaml_text import yaml_words
from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.exec_plugin import tell_plugin
from k8s_rdma.kube.tokens import usable_token

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        which = f"kubeconfig {kubeconfig}: " if kubeconfig else ""
        msg = f"{which}no usable {'service account' if in_cluster else 'kubeconfig'}: {error}"
        raise MalformedError(msg) from error


def credentials(kubeconfig: str | None = None, *, in_cluster: bool = False) -> SingleConfig:
    """By that file; or else the service account, the files of `KUBECONFIG`, or `~/.kube/config`.

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
    """Those that kubectl would read: of several, who is not there does not matter."""
    named = os.environ.get("KUBECONFIG") or _DEFAULT
    paths = [_expanded(each) for each in named.split(os.pathsep) if each]
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
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
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
    """All in one: of entries with the same name, and of what is set twice, the first counts."""
    current = next(filter(None, (each.get("current-context") for each in documents)), "")
    merged: _Json = {"current-context": current, **{kind: {} for kind in _KINDS}}
    for document in documents:
        for kind, key in _KINDS.items():
            for entry in document.get(kind) or ():
                merged[kind].setdefault(entry["name"], entry.get(key) or {})
    return merged


def _chosen(document: _Json) -> SingleConfig:
    """By the current context. A context without a user is nobody's, as to kubectl."""
    name = document["current-context"]
    if not name:
        msg = "no current-context; kubectl config use-context NAME sets it"
        raise ConfigError(msg)
    context = _named(document, "contexts", name, "current-context", Context)
    where = f"context {name}"
    cluster = _named(document, "clusters", context.cluster, where, Cluster)
    user = _user(document, context.user, where) if context.user else User()
    if user.exec:
        whole = document["users"][context.user]["exec"].get("provideClusterInfo", False)
        tell_plugin(user.exec, document["clusters"][context.cluster], of_cluster=whole)
    return SingleConfig(context_name=name, context=context, cluster=cluster, user=user)


def _user(document: _Json, name: str, where: str) -> User:
    """What is empty counts as not set, as to client-go."""
    user = _named(document, "users", name, where, User)
    if impersonated := document["users"][name].get("as"):
        msg = (
            f"{where}: its user acts as {impersonated!r}, which is not supported; use that one's credentials"
        )
        raise ConfigError(msg)
    given = (user.token or "").strip()
    user.token = usable_token(given, f"{where}: user {name}") if given else None
    user.token_file = user.token_file or None
    return user


def _named(document: _Json, kind: str, name: str, where: str, model: type[_Model]) -> _Model:
    if name not in document[kind]:
        msg = f"{where}: there is no {_KINDS[kind]} {name!r}"
        raise ConfigError(msg)
    return msgspec.convert(document[kind][name], model)
