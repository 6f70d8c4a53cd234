"""Documents: the API server's objects of any kind in their original form, through lightkube's connection.

The connection knows the forms of credentials. Names in paths are checked here, and errors of lightkube become
those of `kube.errors`, by their effect on a write.
"""

from __future__ import annotations

import re
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import httpx2  # # the errors of lightkube 1.x
import msgspec
import structlog
from lightkube import ApiError, NotReadyError
from lightkube.core.exceptions import ConfigError

from k8s_rdma.kube.bounded_http import (
    LIST_S,
    MAX_ANSWER_BYTES,
    MAX_REFUSAL_BYTES,
    AnswerTooLongError,
    HttpReply,
    ListBudget,
    aread_body,
    bounded_reply,
    bounded_response,
    stream_answer,
)
from k8s_rdma.kube.connections import blocking_client
from k8s_rdma.kube.errors import TOO_LARGE, ApiRefusedError, ApiUncertainError, ApiUnreachableError
from k8s_rdma.kube.kubeconfig import command_api_server, process_api_server, usable_credentials
from k8s_rdma.kube.list_stream import ListSplitter
from k8s_rdma.kube.object_form import require_form, require_metadata, time_in_header
from k8s_rdma.kube.selection import KubeconfigSelection
from k8s_rdma.wire.json import decode_lossy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lightkube import AsyncClient


T = TypeVar("T")

PAGE = 500
"""Objects that a list call returns at once, as kubectl does; fewer if they are large."""

_PAGE_BYTES = 16 << 20
"""The length of a page, which bounds the memory that a list takes."""

MAX_LIST_BYTES = 256 << 20
"""The limit for all pages of a list: RdmaNodes of 5,000 nodes with 100,000 interfaces take a quarter."""

_MERGE_PATCH = {"Content-Type": "application/merge-patch+json"}
_TOO_LARGE = ("etcdserver: request is too large", "trying to send message larger than max")
"""The errors of kube-apiserver for an object that is too large for etcd, which was not written. Source:
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
    """Return the name as part of a path; refuse it (400) if it could lead to another path.

    Source: `IsValidPathSegmentName`, k8s.io/apimachinery/pkg/api/validation/path; the longest name is that of
    `DNS1123SubdomainMaxLength`.
    """
    if name in {"", ".", ".."} or len(name) > _MAX_NAME or not name.isprintable() or set(name) & _NO_PART:
        msg = f"not the name of an object: {name[:_MAX_NAME]!r}"
        raise ApiRefusedError(msg, status=400)
    return name


@contextmanager
def named_errors(operation: str) -> Iterator[None]:
    """Sort a failure by its effect on the write; the message starts with `operation`."""
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
    """Read the answer that refuses a watch, as an event hook, because it is not read otherwise."""
    if response.is_error:
        await aread_body(response, MAX_REFUSAL_BYTES)


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
    """Return the header `Retry-After`, which API servers write as seconds."""
    value = "" if response is None else response.headers.get("retry-after", "")
    return float(min(int(value), MAX_RETRY_AFTER_S)) if _SECONDS.fullmatch(value) else 0.0


def status_message(response: httpx2.Response) -> str:
    """Return the message of the Status object, or HTTP's phrase for the code."""
    try:
        return str(response.json()["message"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return response.reason_phrase or "refused"


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
        """Connect to the API server that kubectl would use, by a file alone or by its options.

        MalformedError if there is no usable configuration.

        in_cluster: by the service account only.
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
        """Return the API server's clock, to the second, by the latest answer; ours if it has no date."""
        return self._now or datetime.now(UTC)

    def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any] | None:
        """Read the document at a path, if it exists (404 if not). ApiRefusedError and the like."""
        try:
            with named_errors(f"get {path}"):
                return self._document(self._send("GET", path, params=dict(query or {})))
        except ApiRefusedError as refused:
            if refused.status == 404:
                return None
            raise

    def get_object(self, path: str) -> dict[str, Any] | None:
        """Read the object at a path, of the form that all have, if it exists. Errors as of `get`."""
        found = self.get(path)
        if found is not None:
            require_form(found, f"get {path}")
        return found

    def text(self, path: str) -> str:
        """Read a text, such as metrics. ApiRefusedError and the like, also if it does not exist."""
        with named_errors(f"get {path}"):
            return self._send("GET", path).raise_for_status().text

    def proxied(
        self, path: str, *, query: Mapping[str, str | list[str]], headers: Mapping[str, str], max_bytes: int
    ) -> HttpReply:
        """Get an answer of any status through the API server's proxy.

        ApiUncertainError and the like if there is no answer, or one of more than max_bytes.
        """
        with named_errors(f"get {path}"):
            request = self._http.build_request("GET", path, params=dict(query), headers=dict(headers))
            return bounded_reply(self._http, request, max_bytes)

    def items(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        max_bytes: int = MAX_LIST_BYTES,
        any_form: bool = False,
    ) -> Iterator[dict[str, Any]]:
        """Yield the objects of a list, page by page; without objects if there is no such kind.

        ApiUncertainError for a list without end, and for objects without a name.

        any_form: whether the caller checks the form of each object.
        """
        continuation, names = dict[str, str](), set[tuple[str, str]]()
        limit, budget = PAGE, ListBudget(max_bytes, LIST_S)
        while True:
            try:
                page = self._page(path, {**(query or {}), **continuation}, limit)
            except ApiRefusedError as refused:
                if not continuation or refused.status != HTTPStatus.GONE:
                    raise
                # The continuation has expired: a list without pages follows, without the objects so far.
                for item in self._unpaged(path, query or {}, budget, any_form=any_form):
                    if _full_name(item) not in names:
                        yield item
                return
            items = _items_of(path, page.document, any_form=any_form)
            names.update(map(_full_name, items))
            yield from items
            del items
            following = (page.document.get("metadata") or {}).get("continue", "")
            if not following:
                return
            continuation, limit = {"continue": following}, page.next_limit()
            with named_errors(f"list {path}"):
                budget.spend(page.length)

    def _unpaged(
        self, path: str, query: Mapping[str, str], budget: ListBudget, *, any_form: bool
    ) -> Iterator[dict[str, Any]]:
        """Yield the objects of a list that comes as one answer, which is in memory object by object."""
        splitter, operation = ListSplitter(), f"list {path}"
        request = self._http.build_request("GET", path, params=dict(query))
        pieces = stream_answer(self._http, request, budget)
        with closing(pieces):
            while True:
                with named_errors(operation):
                    piece = next(pieces, b"")
                    items = [decode_lossy(item) for item in splitter.feed(piece)]
                    document = None if piece else decode_lossy(splitter.frame())
                yield from _items_of(path, {"items": items}, any_form=any_form)
                if not piece:
                    if not isinstance(document, dict):
                        raise ApiUncertainError(f"{operation}: expected an object")
                    _items_of(path, document, any_form=any_form)
                    return

    def _page(self, path: str, query: Mapping[str, str], limit: int) -> _DocumentPage:
        """Read a page; one that gets too long is asked for again, with half as many objects."""
        while True:
            try:
                return self._answer(path, {"limit": str(limit), **query}, _PAGE_BYTES, limit)
            except ApiRefusedError as refused:
                if refused.status == HTTPStatus.NOT_FOUND:
                    return _DocumentPage({}, 0, limit)
                raise
            except ApiUncertainError as error:
                if limit == 1 or not isinstance(error.__cause__, AnswerTooLongError):
                    raise
            limit //= 2

    def _answer(
        self, path: str, query: Mapping[str, str], max_bytes: int, limit: int = PAGE
    ) -> _DocumentPage:
        with named_errors(f"get {path}"):
            request = self._http.build_request("GET", path, params=dict(query))
            response = bounded_response(self._http, request, max_bytes)
            return _DocumentPage(self._document(response), len(response.content), limit)

    def _send(self, method: str, path: str, **parts: Any) -> httpx2.Response:
        return bounded_response(self._http, self._http.build_request(method, path, **parts), MAX_ANSWER_BYTES)

    def post(self, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """Post a document; return the new object, or the answer to one that is not stored (a review)."""
        with named_errors(f"post {path}"):
            return self._document(self._send("POST", path, json=dict(document)))

    def delete(self, path: str) -> None:
        """Delete the object at a path, which may take its time; an absent object is no error."""
        try:
            with named_errors(f"delete {path}"):
                self._document(self._send("DELETE", path))
        except ApiRefusedError as refused:
            if refused.status != HTTPStatus.NOT_FOUND:
                raise

    def patch(self, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return the object after a JSON merge patch; 409 if it has another `resourceVersion`."""
        with named_errors(f"patch {path}"):
            return self._document(self._send("PATCH", path, json=dict(document), headers=_MERGE_PATCH))

    def _document(self, response: httpx2.Response) -> dict[str, Any]:
        if date := response.headers.get("date"):
            self._now = time_in_header(date)
        response.raise_for_status()
        found = decode_lossy(response.content)
        if not isinstance(found, dict):
            msg = f"expected an object, got {type(found).__name__}"
            raise ValueError(msg)  # noqa: TRY004 - as the JSON decoder says it
        if not isinstance(found.get("metadata"), dict | None):
            msg = "metadata: expected an object"
            raise ValueError(msg)  # noqa: TRY004 - as the JSON decoder says it
        return found


class _DocumentPage(NamedTuple):
    """A page of a list, its length in bytes, and the number of objects that it may have."""

    document: dict[str, Any]
    length: int
    limit: int

    def next_limit(self) -> int:
        """Return the number of objects for the next page: more if there was room for twice as many."""
        return min(PAGE, 2 * self.limit) if 2 * self.length <= _PAGE_BYTES else self.limit


def _items_of(path: str, document: Mapping[str, Any], *, any_form: bool) -> list[dict[str, Any]]:
    """Return the objects of a list. ApiUncertainError if its items are no objects, or have no names."""
    items = document.get("items")
    items = [] if items is None else items
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        msg = f"list {path}: items: expected objects"
        raise ApiUncertainError(msg)
    for item in () if any_form else items:
        require_metadata(item, f"list {path}")
    return items


def _full_name(item: Mapping[str, Any]) -> tuple[str, str]:
    metadata = item.get("metadata")
    if not isinstance(metadata, dict):
        return "", ""
    return str(metadata.get("namespace", "")), str(metadata.get("name", ""))


def connections_of(client: AsyncClient) -> httpx2.AsyncClient:
    """Return the connections of a lightkube client, with its credentials."""
    return client._client._client  # no other way in
