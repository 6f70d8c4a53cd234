"""Calls of the API server through lightkube: names in paths, and errors by what they say of a write.

`Documents` are the API server's objects of any kind as they are, for doctor; through lightkube's connection,
which knows the forms that credentials have.
"""

from __future__ import annotations

import re
from base64 import b64decode
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import httpx2  # what lightkube 1.x raises
import msgspec
import structlog
from lightkube import ApiError, NotReadyError
from lightkube.core.exceptions import ConfigError

from k8s_rdma.config.files import parse_config
from k8s_rdma.config.placement_keys import keys_of_files
from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.api import (
    TOO_LARGE,
    ApiRefusedError,
    ApiUncertainError,
    ApiUnreachableError,
)
from k8s_rdma.kube.connections import blocking_client
from k8s_rdma.kube.kubeconfig import command_api_server, process_api_server, usable_credentials
from k8s_rdma.kube.selection import KubeconfigSelection
from k8s_rdma.wire.json import decode_lossy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from lightkube import AsyncClient

    from k8s_rdma.wire.placement_keys import PlacementKeys

T = TypeVar("T")

PAGE = 500
"""Objects a list call returns at once, as kubectl does; fewer where they are large."""

_MERGE_PATCH = {"Content-Type": "application/merge-patch+json"}
_TOO_LARGE = ("etcdserver: request is too large", "trying to send message larger than max")
"""The errors of kube-apiserver for an object that is too large for etcd: nothing was written. Source:
`ErrGRPCRequestTooLarge` (etcd, api/v3rpc/rpctypes/error.go); grpc-go, stream.go."""

_TOO_LARGE_CODES = (HTTPStatus.CONFLICT, HTTPStatus.INTERNAL_SERVER_ERROR)
"""The status codes of that error: for a Binding, and for any other write."""

_NO_ANSWER_OF_ITS = (msgspec.MsgspecError, KeyError, ValueError, NotReadyError, RecursionError)
"""The errors of lightkube for an answer that is not the API server's own, such as a proxy's page;
NotReadyError for a list without a version."""

MAX_RETRY_AFTER_S = 300
"""The longest time that an answer may ask to wait for."""

_SECONDS = re.compile(r"[0-9]{1,9}")


_log = structlog.get_logger()


_MAX_NAME = 253
_NO_PART = frozenset("/%?#")


def segment(name: str) -> str:
    """The name, which becomes part of a path; refused (400) where it could lead to another one, or to none.

    Source: `IsValidPathSegmentName`, k8s.io/apimachinery/pkg/api/validation/path; the longest name is that of
    `DNS1123SubdomainMaxLength`.
    """
    if name in {"", ".", ".."} or len(name) > _MAX_NAME or not name.isprintable() or set(name) & _NO_PART:
        msg = f"not the name of an object: {name[:_MAX_NAME]!r}"
        raise ApiRefusedError(msg, status=400)
    return name


@contextmanager
def named_errors(operation: str) -> Iterator[None]:
    """Sort a failure by what it says about the write; the message starts with `operation`."""
    try:
        yield
    except ApiError as error:
        why = error.status.message or error.status.reason or ""
        raise api_error(operation, error.status.code or 0, why, error.response) from error
    except httpx2.HTTPStatusError as error:  # of a list or a watch, which lightkube does not look into
        response = error.response
        raise api_error(operation, response.status_code, status_message(response), response) from error
    except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
        msg = f"{operation}: no connection to the API server: {str(error) or type(error).__name__}"
        raise ApiUnreachableError(msg) from error
    except (ConfigError, PermissionError, FileNotFoundError) as error:
        msg = f"{operation}: no usable credentials: {error}"
        raise ApiUnreachableError(msg) from error
    except (httpx2.HTTPError, TimeoutError, *_NO_ANSWER_OF_ITS) as error:
        msg = f"{operation}: no usable answer from the API server: {str(error) or type(error).__name__}"
        raise ApiUncertainError(msg) from error


async def read_refusal(response: httpx2.Response) -> None:
    """Read the answer that refuses a watch, as an event hook; nothing else would read it."""
    if response.is_error:
        await response.aread()


def api_error(
    operation: str, code: int, why: str, response: httpx2.Response | None = None
) -> ApiRefusedError | ApiUncertainError:
    """Sort an answer by its status; the message starts with `operation`."""
    message = f"{operation}: {why} (HTTP {code})"
    if code in _TOO_LARGE_CODES and any(text in why for text in _TOO_LARGE):
        hint = "with this it would be longer than etcd takes, 1.5 MiB by default; make it shorter"
        return ApiRefusedError(f"{message}: {hint}", status=TOO_LARGE)
    if not 400 <= code < 500:
        return ApiUncertainError(message)
    return ApiRefusedError(message, status=code, retry_after_s=_retry_after_s(response))


def _retry_after_s(response: httpx2.Response | None) -> float:
    """The header `Retry-After`, which API servers write as seconds."""
    value = "" if response is None else response.headers.get("retry-after", "")
    return float(min(int(value), MAX_RETRY_AFTER_S)) if _SECONDS.fullmatch(value) else 0.0


def status_message(response: httpx2.Response) -> str:
    """The message of the Status object, or HTTP's phrase for the code."""
    try:
        return str(response.json()["message"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return response.reason_phrase or "refused"


class Reply(NamedTuple):
    """The status and body of an HTTP answer."""

    status: int
    body: bytes


def bounded_reply(http: httpx2.Client, request: httpx2.Request, max_bytes: int) -> Reply:
    """Get an answer, whatever its status. ValueError for one of more than max_bytes."""
    response = http.send(request, stream=True)
    try:
        body = bytearray()
        for chunk in response.iter_bytes():
            body += chunk
            if len(body) > max_bytes:
                msg = f"an answer of more than {max_bytes} bytes"
                raise ValueError(msg)
    finally:
        response.close()
    return Reply(response.status_code, bytes(body))


class Documents:
    """Objects as JSON. Blocking; of one thread. A context manager.

    namespace: of objects that the user names without one.
    """

    def __init__(
        self,
        kubeconfig: KubeconfigSelection | str | None = None,
        *,
        timeout_s: float = 10.0,
        in_cluster: bool = False,
    ) -> None:
        """Connect to what kubectl would ask, by a file alone or by its options.

        in_cluster: by the service account and nothing else. MalformedError when there is no usable
        configuration.
        """
        selection = KubeconfigSelection.from_file(kubeconfig)
        with usable_credentials(selection.file, in_cluster=in_cluster):
            find = partial(process_api_server, in_cluster=True) if in_cluster else command_api_server
            server = find(selection)
            self._http = blocking_client(server, timeout_s=timeout_s)
        self.namespace = server.namespace
        self._now: datetime | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    @property
    def url(self) -> str:
        """The URL of the API server."""
        return str(self._http.base_url).rstrip("/")

    def now(self) -> datetime:
        """The API server's clock, to the second, by the latest answer; ours where it tells none."""
        return self._now or datetime.now(UTC)

    def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any] | None:
        """Read the document at a path; None where there is none (404). ApiRefusedError and the like."""
        try:
            with named_errors(f"get {path}"):
                return self._document(self._http.get(path, params=dict(query or {})))
        except ApiRefusedError as refused:
            if refused.status == 404:
                return None
            raise

    def text(self, path: str) -> str:
        """Read what is no JSON, such as metrics. ApiRefusedError and the like, also where there is none."""
        with named_errors(f"get {path}"):
            return self._http.get(path).raise_for_status().text

    def proxied(
        self, path: str, *, query: Mapping[str, str | list[str]], headers: Mapping[str, str], max_bytes: int
    ) -> Reply:
        """Get an answer by the API server's proxy, whatever its status.

        ApiUncertainError and the like where there is none, or one of more than max_bytes.
        """
        with named_errors(f"get {path}"):
            request = self._http.build_request("GET", path, params=dict(query), headers=dict(headers))
            return bounded_reply(self._http, request, max_bytes)

    def items(self, path: str, query: Mapping[str, str] | None = None) -> Iterator[dict[str, Any]]:
        """The objects of a list, page by page; none where there is no such kind."""
        following, names = "", set[tuple[str, str]]()
        while True:
            continuation = {"continue": following} if following else {}
            try:
                document = self.get(path, {"limit": str(PAGE), **(query or {}), **continuation})
            except ApiRefusedError as refused:
                if not following or refused.status != HTTPStatus.GONE:
                    raise
                # The continuation has expired: a list without pages follows, without the objects so far.
                whole = _items_of(path, self.get(path, query))
                yield from (item for item in whole if _full_name(item) not in names)
                return
            items = _items_of(path, document)
            names.update(map(_full_name, items))
            yield from items
            following = ((document or {}).get("metadata") or {}).get("continue", "")
            if not following:
                return

    def post(self, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """Post a document; the object that was made, or the answer to one that is not stored, as a review."""
        with named_errors(f"post {path}"):
            return self._document(self._http.post(path, json=dict(document)))

    def delete(self, path: str) -> None:
        """Delete the object at a path, which may take its time; nothing where there is none."""
        try:
            with named_errors(f"delete {path}"):
                self._document(self._http.delete(path))
        except ApiRefusedError as refused:
            if refused.status != HTTPStatus.NOT_FOUND:
                raise

    def patch(self, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """The object after a JSON merge patch; 409 where that has another `resourceVersion`."""
        with named_errors(f"patch {path}"):
            return self._document(self._http.patch(path, json=dict(document), headers=_MERGE_PATCH))

    def _document(self, response: httpx2.Response) -> dict[str, Any]:
        if date := response.headers.get("date"):
            self._now = parsedate_to_datetime(date)
        response.raise_for_status()
        found = decode_lossy(response.content)
        if not isinstance(found, dict):
            msg = f"expected an object, got {type(found).__name__}"
            raise ValueError(msg)  # noqa: TRY004 - as the JSON decoder says it
        return found


def _items_of(path: str, document: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return the objects of a list; none of no document. ApiUncertainError where they are none."""
    items = (document or {}).get("items") or []
    if not all(isinstance(item, dict) for item in items):
        msg = f"list {path}: items: expected objects"
        raise ApiUncertainError(msg)
    return items


def _full_name(item: Mapping[str, Any]) -> tuple[str, str]:
    metadata = item.get("metadata") or {}
    return str(metadata.get("namespace", "")), str(metadata.get("name", ""))


def node_containers(
    api: Documents, namespace: str, node: str, name: str
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """List the containers of a name in the pods of the chart's DaemonSet on a node, each with its pod.

    namespace: the chart's.
    """
    path = f"/api/v1/namespaces/{segment(namespace)}/pods"
    query = {"labelSelector": _NODE_PODS, "fieldSelector": f"spec.nodeName={node}"}
    for pod in api.items(path, query):
        for container in (pod.get("spec") or {}).get("containers") or ():
            if container.get("name") == name:
                yield pod, container


_NODE_PODS = "app.kubernetes.io/name=k8s-rdma,app.kubernetes.io/component=node"
EXTENDER_CONFIG = "k8s-rdma-extender"
"""The ConfigMap in which the chart has the extender's configuration."""


def read_extender_config(api: Documents, namespaces: Iterable[str], kind: type[T]) -> T | None:
    """Read the extender's configuration of the first namespace that has it; None where none has.

    kind: the model to read it as, which may leave out keys. MalformedError names the ConfigMap and the field;
    ApiRefusedError and the like.
    """
    for namespace in namespaces:
        found = api.get(f"/api/v1/namespaces/{segment(namespace)}/configmaps/{EXTENDER_CONFIG}")
        text = ((found or {}).get("data") or {}).get("extender.yaml")
        if isinstance(text, str):
            return parse_config(kind, text, f"ConfigMap {namespace}/{EXTENDER_CONFIG}: extender.yaml")
    return None


PLACEMENT_KEY = "k8s-rdma-placement-key"
"""The Secret with the keys that verify placements, by the chart's default."""


def read_placement_keys(api: Documents, namespace: str) -> PlacementKeys:
    """Read the keys that verify placements.

    MalformedError where they are no keys, or there is no such Secret; ApiRefusedError and the like.
    """
    name = f"Secret {namespace}/{PLACEMENT_KEY}"
    found = api.get(f"/api/v1/namespaces/{segment(namespace)}/secrets/{PLACEMENT_KEY}")
    if found is None:
        raise MalformedError(f"{name}: there is none")
    try:
        files = {key: b64decode(text, validate=True) for key, text in (found.get("data") or {}).items()}
    except ValueError as error:
        raise MalformedError(f"{name}: {error}") from error
    return keys_of_files(name, files)


def connections_of(client: AsyncClient) -> httpx2.AsyncClient:
    """The connections of a lightkube client, with its credentials."""
    return client._client._client  # no other way in
