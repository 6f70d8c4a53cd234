"""List and watch of the API server's objects, as values: page by page, then change by change.

Objects are decoded straight into the few fields that are read. Everyone who may create an object writes a
part of every list that it is in. For example, `metadata.managedFields` alone may be nested 10,000 levels
deep. So an object that cannot be read is left out, and logged; the others are read. Sources: "Efficient
detection of changes" and "Retrieving large results sets in chunks" of Kubernetes' API concepts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

import httpx2
import msgspec
import structlog
from lightkube.core.resource import api_info
from lightkube.core.selector import build_selector

from k8s_rdma.kube.bounded_http import ANSWER_S, MAX_PODS_BYTES, ListBudget
from k8s_rdma.kube.documents import PAGE, api_error, named_errors, segment, status_message
from k8s_rdma.kube.informer import Changed, Deleted, Event, Listed, ListPage
from k8s_rdma.kube.list_stream import ListSplitter
from k8s_rdma.wire.nesting import pruned
from k8s_rdma.wire.objects.meta import ObjectIdentity

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

T = TypeVar("T")

_PAGE_BYTES = 16 << 20
"""The length of a page, which bounds the memory that a list takes: an object may have 1.5 MiB by the will of
who makes it, and ten times as much once it is decoded."""

LIST_S = 900.0
"""The limit for a whole list, whose objects are used while it comes. It starts again after a failure, so that
a slow API server has the time for 150,000 pods."""

_WATCHING = {"watch": "true", "allowWatchBookmarks": "true"}
"""Bookmarks keep the version of objects that seldom change from being compacted before the API server ends
the watch, after 30 to 60 minutes (KEP-956). Otherwise all must be listed again."""

_log = structlog.get_logger()

_NO_OBJECT = (msgspec.MsgspecError, UnicodeError, RecursionError)

_CHANGES: Mapping[str, type[Changed[Any]] | type[Deleted[Any]]] = {
    "ADDED": Changed,
    "MODIFIED": Changed,
    "DELETED": Deleted,
}


class _ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    following: str = msgspec.field(name="continue", default="")


class _List(msgspec.Struct, Generic[T], frozen=True):
    items: list[T] | None
    metadata: _ListMeta = _ListMeta()


class _WatchEvent(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class Status(msgspec.Struct, frozen=True):
    """`metav1.Status`: the answer to a refused request, and to a write that returns no object."""

    code: int = 0
    message: str = ""


class _Identified(msgspec.Struct, frozen=True):
    metadata: ObjectIdentity = ObjectIdentity()


_raw_list = msgspec.json.Decoder(_List[msgspec.Raw])
_event = msgspec.json.Decoder(_WatchEvent)
_status = msgspec.json.Decoder(Status)
_identified = msgspec.json.Decoder(_Identified)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectSelection:
    """Objects to list and watch.

    kind: a lightkube resource with a method `view`.
    subject: a word for them, for errors and the log.
    namespace: None for all.
    fields: as of lightkube's `list`.
    """

    kind: Any
    subject: str
    namespace: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)

    def path(self) -> str:
        """Return the path of the list, relative to the API server's URL."""
        info = api_info(self.kind)
        group, version, _ = info.resource
        scope = f"namespaces/{segment(self.namespace)}/" if self.namespace is not None else ""
        return f"{f'apis/{group}' if group else 'api'}/{version}/{scope}{info.plural}"

    def query(self) -> dict[str, str]:
        """Return the parameters that select them."""
        return {"fieldSelector": build_selector(dict(self.fields), for_fields=True)} if self.fields else {}


async def watch_objects(
    http: httpx2.AsyncClient,
    selection: ObjectSelection,
    *,
    silence_s: float,
    paged: bool = False,
    max_bytes: int = MAX_PODS_BYTES,
) -> AsyncIterator[Event[Any]]:
    """List and watch objects, as values; raise when the watch is lost or silent for so long.

    paged: whether the list may come in pages: a large list then takes the memory of two pages only.
    max_bytes: the limit for a whole list.
    """
    subject, path, query = selection.subject, selection.path(), selection.query()
    reader = _Reader(selection.kind, subject)
    items: list[Any] = []
    is_anew = False
    with named_errors(f"list {subject}"):
        budget = ListBudget(max_bytes, LIST_S)
        async with aclosing(cast("Any", _lists(http, path, query, reader, budget))) as lists:
            async for part in lists:
                if part.is_anew:
                    is_anew = True
                    items.clear()
                items += reader.views(part.items)
                version = part.version
                if paged and not part.is_last:
                    yield ListPage(tuple(items), is_anew)
                    is_anew = False
                    items.clear()
        if not version:
            msg = "a list without a version"
            raise ValueError(msg)
    yield Listed(tuple(items), is_anew)
    items.clear()
    with named_errors(f"watch {subject}"):
        changes = _changes(http, path, {**query, **_WATCHING, "resourceVersion": version}, reader)
        async with aclosing(cast("Any", changes)) as stream:
            while True:
                async with asyncio.timeout(silence_s):
                    event = await anext(stream)
                yield event


class _Part(NamedTuple):
    """A part of a list. version: of the list, in the last part. is_anew: as of `ListPage`."""

    items: list[Any]
    version: str = ""
    is_last: bool = False
    is_anew: bool = False


async def _lists(
    http: httpx2.AsyncClient, path: str, query: Mapping[str, str], reader: _Reader, budget: ListBudget
) -> AsyncIterator[_Part]:
    """Yield the pages of a list; the API server makes the next one while this one is being used.

    If a continuation has expired (410), the whole list is requested at once, as Kubernetes' own clients do
    (`FullListIfExpired`, k8s.io/client-go/tools/pager), because a second list page by page may expire again.
    """
    following: asyncio.Task[_Page] | None = None

    def request(limit: int, continuation: Mapping[str, str]) -> asyncio.Task[_Page]:
        call = _page(http, path, {**query, **continuation}, limit)
        return asyncio.get_running_loop().create_task(call)

    following = request(PAGE, {})
    try:
        token = ""
        while following:
            try:
                page = await following
            except httpx2.HTTPStatusError as error:
                if not token or error.response.status_code != HTTPStatus.GONE:
                    raise
                _log.warning("list_expired", what=reader.subject, error=status_message(error.response))
                break
            budget.spend(len(page.content))
            found = reader.read_list(page.content)
            token = found.metadata.following
            following = request(page.next_limit(), {"continue": token}) if token else None
            yield _Part(found.items or [], found.metadata.resource_version, is_last=not token)
        else:
            return
        async with aclosing(cast("Any", _unpaged(http, path, query, reader, budget))) as parts:
            async for part in parts:
                yield part
    finally:
        if following:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


async def _unpaged(
    http: httpx2.AsyncClient, path: str, query: Mapping[str, str], reader: _Reader, budget: ListBudget
) -> AsyncIterator[_Part]:
    """Yield the parts of a list that comes as one answer, no longer than pages are."""
    splitter, items, length, is_anew = ListSplitter(), [], 0, True
    async with http.stream("GET", path, params=query) as response:
        response.raise_for_status()
        async for chunk in response.aiter_bytes():
            budget.spend(len(chunk))
            for item in splitter.feed(chunk):
                items.append(item)
                length += len(item)
                if len(items) == PAGE or length > _PAGE_BYTES:
                    yield _Part(reader.read_items(items), is_anew=is_anew)
                    items, length, is_anew = [], 0, False
    version = reader.read_list(splitter.frame()).metadata.resource_version
    yield _Part(reader.read_items(items), version, is_last=True, is_anew=is_anew)


class _Page(NamedTuple):
    """A page of a list as it came, and the number of objects that it may have."""

    content: bytes
    limit: int

    def next_limit(self) -> int:
        """Return the number of objects for the next page: more if there was room for twice as many."""
        return min(PAGE, 2 * self.limit) if 2 * len(self.content) <= _PAGE_BYTES else self.limit


async def _page(http: httpx2.AsyncClient, path: str, query: Mapping[str, str], limit: int) -> _Page:
    """Read a page; one that gets too long is asked for again, with half as many objects."""
    while True:
        chunks, length = [], 0
        async with (
            asyncio.timeout(ANSWER_S),
            http.stream("GET", path, params={**query, "limit": str(limit)}) as response,
        ):
            response.raise_for_status()
            async for chunk in response.aiter_bytes():
                chunks.append(chunk)
                length += len(chunk)
                if length > _PAGE_BYTES:
                    break
            else:
                return _Page(b"".join(chunks), limit)
        if limit == 1:
            msg = f"an object of more than {_PAGE_BYTES} bytes"
            raise ValueError(msg)
        limit //= 2


async def _changes(
    http: httpx2.AsyncClient, path: str, query: dict[str, str], reader: _Reader
) -> AsyncIterator[Event[Any]]:
    """Yield the changes from a version on, by one watch after another."""
    timeout = http.timeout
    patient = httpx2.Timeout(connect=timeout.connect, read=None, write=timeout.write, pool=timeout.pool)
    while True:
        async with http.stream("GET", path, params=query, timeout=patient) as response:
            response.raise_for_status()
            incomplete = b""
            async for chunk in response.aiter_bytes():
                *lines, incomplete = (incomplete + chunk).split(b"\n")
                if len(incomplete) > _PAGE_BYTES:
                    msg = f"a change of more than {_PAGE_BYTES} bytes"
                    raise ValueError(msg)
                for line in filter(None, lines):
                    event, version = reader.read_event(line)
                    query["resourceVersion"] = version or query["resourceVersion"]
                    if event is not None:
                        yield event


class _Reader:
    """Reads lists and events of one kind of objects. subject: a word for them, for the log."""

    def __init__(self, kind: Any, subject: str) -> None:
        self.subject = subject
        self._list, self._item = _decoders(kind)

    def read_list(self, data: bytes) -> _List[Any]:
        """Decode a list, without the items that cannot be read. MsgspecError when it is no list."""
        try:
            return self._list.decode(data)
        except _NO_OBJECT:
            found = _tolerant(_raw_list, data)
        items = [item for item in map(self._read_item, found.items or ()) if item is not None]
        return _List(items, found.metadata)

    def read_items(self, items: Iterable[bytes]) -> list[Any]:
        """Decode items of a list, without those that cannot be read."""
        return self.read_list(b'{"items":[%b]}' % b",".join(items)).items or []

    def read_event(self, line: bytes) -> tuple[Event[Any] | None, str]:
        """Decode a change, None if its object cannot be read; and the version after it."""
        event = _tolerant(_event, line)
        if event.type == "ERROR":
            status = _status.decode(event.object)
            raise api_error(f"watch {self.subject}", status.code, status.message)
        kind = _CHANGES.get(event.type)
        item = self._read_item(event.object) if kind else None
        if item is None or kind is None:  # a bookmark is a version, and no object
            return None, self._identity(event.object).resource_version
        version = item.metadata.resource_version
        return next((kind(view) for view in self.views([item])), None), version

    def views(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield the objects as values, without those that make it fail, which is a defect."""
        for item in items:
            try:
                yield item.view()
            except Exception:
                _log.exception("object_failed", what=self.subject)

    def _read_item(self, item: msgspec.Raw) -> Any:
        try:
            return _tolerant(self._item, item)
        except _NO_OBJECT as error:
            identity = self._identity(item)
            name = f"{identity.namespace or ''}/{identity.name}".removeprefix("/")
            _log.warning("object_unreadable", what=self.subject, object=name, error=str(error))
            return None

    def _identity(self, item: msgspec.Raw) -> ObjectIdentity:
        try:
            return _identified.decode(item).metadata
        except _NO_OBJECT:
            return ObjectIdentity()


@lru_cache(maxsize=64)
def _decoders(kind: Any) -> tuple[msgspec.json.Decoder[_List[Any]], msgspec.json.Decoder[Any]]:
    return msgspec.json.Decoder(_List[kind]), msgspec.json.Decoder(kind)


def decode_object(kind: type[T], data: bytes) -> T:
    """Decode an object nested to any depth. MsgspecError if it is no object of that kind."""
    _, decoder = _decoders(cast("Any", kind))
    return cast("T", _tolerant(decoder, data))


def _tolerant(decoder: msgspec.json.Decoder[T], data: bytes) -> T:
    """Decode a document that may be nested deeper than the interpreter's stack."""
    try:
        return decoder.decode(data)
    except RecursionError:
        return decoder.decode(pruned(bytes(data).decode(errors="replace")))
