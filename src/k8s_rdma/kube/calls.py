"""Calls of the API server through lightkube: names in paths, errors; lists and watches.

Objects are decoded straight into the few fields that are read. Everyone who may create an object writes a
part of every list that it is in: `metadata.managedFields` alone may be nested 10,000 levels deep. So an
object that cannot be read is left out, and logged; the others are read. Sources: "Efficient detection of
changes" and "Retrieving large results sets in chunks" of Kubernetes' API concepts.

`Documents` are the API server's objects of any kind as they are, for doctor; through lightkube's connection,
which knows the forms that credentials have.
"""

from __future__ import annotations

import asyncio
import re
from base64 import b64decode
from collections.abc import Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache, partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar, cast

import httpx2  # what lightkube 1.x raises
import msgspec
import structlog
from lightkube import ApiError, NotReadyError
from lightkube.core.exceptions import ConfigError
from lightkube.core.resource import api_info
from lightkube.core.selector import build_selector

from k8s_rdma.config.files import parse_config
from k8s_rdma.config.placement_keys import keys_of_files
from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.api import (
    TOO_LARGE,
    ApiRefusedError,
    ApiUncertainError,
    ApiUnreachableError,
    Changed,
    Deleted,
    Event,
    Listed,
    Page,
)
from k8s_rdma.kube.connections import blocking_client
from k8s_rdma.kube.kubeconfig import command_api_server, process_api_server, usable_credentials
from k8s_rdma.kube.selection import KubeconfigSelection
from k8s_rdma.wire.json import decode_lossy, pruned

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from lightkube import AsyncClient

    from k8s_rdma.wire.placement_keys import PlacementKeys

T = TypeVar("T")

_PAGE = 500
"""Objects a list call returns at once, as kubectl does; fewer where they are large."""

_PAGE_BYTES = 16 << 20
"""The length of a page, which bounds the memory that a list takes: an object may have 1.5 MiB by the will of
who makes it, and ten times as much once it is decoded."""

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


def segment(name: str) -> str:
    """The name, which becomes part of a path; refused (400) where it could lead to another one.

    Source: `IsValidPathSegmentName`, k8s.io/apimachinery/pkg/api/validation/path.
    """
    if name in {"", ".", ".."} or any(sign in name for sign in "/%?#"):
        msg = f"not the name of an object: {name!r}"
        raise ApiRefusedError(msg, status=400)
    return name


@contextmanager
def named_errors(operation: str) -> Iterator[None]:
    """Sort a failure by what it says about the write; the message starts with `operation`."""
    try:
        yield
    except ApiError as error:
        why = error.status.message or error.status.reason or ""
        raise _api_error(operation, error.status.code or 0, why, error.response) from error
    except httpx2.HTTPStatusError as error:  # of a list or a watch, which lightkube does not look into
        response = error.response
        raise _api_error(operation, response.status_code, _message(response), response) from error
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


def _api_error(
    operation: str, code: int, why: str, response: httpx2.Response | None = None
) -> ApiRefusedError | ApiUncertainError:
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


def _message(response: httpx2.Response) -> str:
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
        following = ""
        while True:
            continuation = {"continue": following} if following else {}
            document = self.get(path, {"limit": str(_PAGE), **(query or {}), **continuation})
            if document is None:
                return
            items = document.get("items") or ()
            if not all(isinstance(item, dict) for item in items):
                msg = f"list {path}: items: expected objects"
                raise ApiUncertainError(msg)
            yield from items
            following = (document.get("metadata") or {}).get("continue", "")
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
_NO_OBJECT = (msgspec.MsgspecError, UnicodeError, RecursionError)


class _ListMetadata(msgspec.Struct, frozen=True):
    resourceVersion: str = ""  # noqa: N815  the API's name
    following: str = msgspec.field(name="continue", default="")


class _List(msgspec.Struct, Generic[T], frozen=True):
    items: list[T] | None
    metadata: _ListMetadata = _ListMetadata()


class _WatchEvent(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class Status(msgspec.Struct, frozen=True):
    """`metav1.Status`: the answer to a refused request, and to a write that returns no object."""

    code: int = 0
    message: str = ""


class _Identity(msgspec.Struct, frozen=True):
    name: str = ""
    namespace: str = ""
    resourceVersion: str = ""  # noqa: N815  the API's name


class _Identified(msgspec.Struct, frozen=True):
    metadata: _Identity = _Identity()


_raw_list = msgspec.json.Decoder(_List[msgspec.Raw])
_event = msgspec.json.Decoder(_WatchEvent)
_status = msgspec.json.Decoder(Status)
_identified = msgspec.json.Decoder(_Identified)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Objects to list and watch.

    kind: a lightkube resource with a method `view`. subject: what they are, for errors and the log.
    namespace: None for all. fields: as of lightkube's `list`.
    """

    kind: Any
    subject: str
    namespace: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)

    def path(self) -> str:
        """The path of the list, relative to the API server's URL."""
        info = api_info(self.kind)
        group, version, _ = info.resource
        scope = f"namespaces/{segment(self.namespace)}/" if self.namespace is not None else ""
        return f"{f'apis/{group}' if group else 'api'}/{version}/{scope}{info.plural}"

    def query(self) -> dict[str, str]:
        """The parameters that select them."""
        return {"fieldSelector": build_selector(dict(self.fields), for_fields=True)} if self.fields else {}


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


async def watch_objects(
    http: httpx2.AsyncClient, selection: Selection, *, silence_s: float, paged: bool = False
) -> AsyncIterator[Event[Any]]:
    """List and watch objects, as values; raises when the watch is lost or silent for so long.

    paged: whether what is listed may come in pages: a large list then takes the memory of two pages only.
    """
    subject, path, query = selection.subject, selection.path(), selection.query()
    reader = _Reader(selection.kind, subject)
    items: list[Any] = []
    with named_errors(f"list {subject}"):
        async with aclosing(cast("Any", _lists(http, path, query, reader))) as lists:
            async for found in lists:
                items += reader.views(found.items or ())
                version = found.metadata.resourceVersion
                if paged and found.metadata.following:
                    yield Page(tuple(items))
                    items.clear()
        if not version:
            msg = "a list without a version"
            raise ValueError(msg)
    yield Listed(tuple(items))
    items.clear()
    with named_errors(f"watch {subject}"):
        changes = _changes(http, path, {**query, "watch": "true", "resourceVersion": version}, reader)
        async with aclosing(cast("Any", changes)) as stream:
            while True:
                async with asyncio.timeout(silence_s):
                    event = await anext(stream)
                yield event


async def _lists(
    http: httpx2.AsyncClient, path: str, query: Mapping[str, str], reader: _Reader
) -> AsyncIterator[_List[Any]]:
    """The pages of a list; the API server makes the next one while this one is being used."""
    following: asyncio.Task[_Page] | None = None

    def request(limit: int, continuation: Mapping[str, str]) -> asyncio.Task[_Page]:
        call = _page(http, path, {**query, **continuation}, limit)
        return asyncio.get_running_loop().create_task(call)

    following = request(_PAGE, {})
    try:
        while following:
            page = await following
            found = reader.read_list(page.content)
            token = found.metadata.following
            following = request(page.next_limit(), {"continue": token}) if token else None
            yield found
    finally:
        if following:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


class _Page(NamedTuple):
    """A page of a list as it came, and the number of objects that it may have."""

    content: bytes
    limit: int

    def next_limit(self) -> int:
        """Return the number of objects for the next one: more where there was room for twice as many."""
        return min(_PAGE, 2 * self.limit) if 2 * len(self.content) <= _PAGE_BYTES else self.limit


async def _page(http: httpx2.AsyncClient, path: str, query: Mapping[str, str], limit: int) -> _Page:
    """Read a page; one that gets too long is asked for again, with half as many objects."""
    while True:
        chunks, length = [], 0
        async with http.stream("GET", path, params={**query, "limit": str(limit)}) as response:
            response.raise_for_status()
            async for chunk in response.aiter_bytes():
                chunks.append(chunk)
                length += len(chunk)
                if length > _PAGE_BYTES and limit > 1:
                    break
            else:
                return _Page(b"".join(chunks), limit)
        limit //= 2


async def _changes(
    http: httpx2.AsyncClient, path: str, query: dict[str, str], reader: _Reader
) -> AsyncIterator[Event[Any]]:
    """The changes from a version on, by one watch after another."""
    timeout = http.timeout
    patient = httpx2.Timeout(connect=timeout.connect, read=None, write=timeout.write, pool=timeout.pool)
    while True:
        async with http.stream("GET", path, params=query, timeout=patient) as response:
            response.raise_for_status()
            incomplete = b""
            async for chunk in response.aiter_bytes():
                *lines, incomplete = (incomplete + chunk).split(b"\n")
                for line in filter(None, lines):
                    event, version = reader.read_event(line)
                    query["resourceVersion"] = version or query["resourceVersion"]
                    if event is not None:
                        yield event


_CHANGES: Mapping[str, type[Changed[Any]] | type[Deleted[Any]]] = {
    "ADDED": Changed,
    "MODIFIED": Changed,
    "DELETED": Deleted,
}


class _Reader:
    """Reads lists and events of one kind of objects. subject: what is read, for the log."""

    def __init__(self, kind: Any, subject: str) -> None:
        self._subject = subject
        self._list, self._item = _decoders(kind)

    def read_list(self, data: bytes) -> _List[Any]:
        """Decode a list, without the items that cannot be read. MsgspecError when it is no list."""
        try:
            return self._list.decode(data)
        except _NO_OBJECT:
            found = _tolerant(_raw_list, data)
        items = [item for item in map(self._read_item, found.items or ()) if item is not None]
        return _List(items, found.metadata)

    def read_event(self, line: bytes) -> tuple[Event[Any] | None, str]:
        """Decode a change, None where its object cannot be read; and the version after it."""
        event = _tolerant(_event, line)
        if event.type == "ERROR":
            status = _status.decode(event.object)
            raise _api_error(f"watch {self._subject}", status.code, status.message)
        kind = _CHANGES.get(event.type)
        item = self._read_item(event.object) if kind else None
        if item is None or kind is None:  # a bookmark is a version, and no object
            return None, self._identity(event.object).resourceVersion
        version = item.metadata.resourceVersion or ""
        return next((kind(view) for view in self.views([item])), None), version

    def views(self, items: Iterable[Any]) -> Iterator[Any]:
        """The objects as values, but for those that make it fail, which is a defect."""
        for item in items:
            try:
                yield item.view()
            except Exception:
                _log.exception("object_failed", what=self._subject)

    def _read_item(self, item: msgspec.Raw) -> Any:
        try:
            return self._item.decode(item)
        except _NO_OBJECT as error:
            identity = self._identity(item)
            name = f"{identity.namespace}/{identity.name}".removeprefix("/")
            _log.warning("object_unreadable", what=self._subject, object=name, error=str(error))
            return None

    def _identity(self, item: msgspec.Raw) -> _Identity:
        try:
            return _identified.decode(item).metadata
        except _NO_OBJECT:
            return _Identity()


@lru_cache(maxsize=64)
def _decoders(kind: Any) -> tuple[msgspec.json.Decoder[_List[Any]], msgspec.json.Decoder[Any]]:
    return msgspec.json.Decoder(_List[kind]), msgspec.json.Decoder(kind)


def decode_object(kind: type[T], data: bytes) -> T:
    """Decode an object, however deep it is nested. MsgspecError when it is none of that kind."""
    _, decoder = _decoders(cast("Any", kind))
    return cast("T", _tolerant(decoder, data))


def _tolerant(decoder: msgspec.json.Decoder[T], data: bytes) -> T:
    """Decode what may be nested deeper than the interpreter's stack is."""
    try:
        return decoder.decode(data)
    except RecursionError:
        return decoder.decode(pruned(data.decode(errors="replace")))
