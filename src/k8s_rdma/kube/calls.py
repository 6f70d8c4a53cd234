"""Calls of the API server through lightkube: names in paths, errors, list and watch."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import httpx2  # what lightkube 1.x raises
import msgspec
from lightkube import ApiError, AsyncClient, NotReadyError
from lightkube.core.exceptions import ConfigError

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

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


_PAGE = 500
"""Objects a list call returns at once, as kubectl does; bounds the memory that a list takes."""

_TOO_LARGE = ("etcdserver: request is too large", "trying to send message larger than max")
"""What kube-apiserver says of an object that is longer than etcd takes: nothing was written. Source:
`ErrGRPCRequestTooLarge` (etcd, api/v3rpc/rpctypes/error.go); grpc-go, stream.go."""

_TOO_LARGE_CODES = (HTTPStatus.CONFLICT, HTTPStatus.INTERNAL_SERVER_ERROR)
"""With which it says so: of a Binding, and of any other write."""

_NO_ANSWER_OF_ITS = (msgspec.MsgspecError, KeyError, ValueError, NotReadyError, RecursionError)
"""What lightkube raises for an answer that is not the API server's own, such as a proxy's page; NotReadyError
for a list without a version."""


async def watch_objects(
    client: AsyncClient, kind: Any, subject: str, *, silence_s: float, paged: bool = False, **selectors: Any
) -> AsyncIterator[Event[Any]]:
    """List and watch objects of a kind, as values; raises when the watch is lost or silent for so long.

    kind: a lightkube resource with a method `view`. paged: whether what is listed may come in pages: a large
    list then takes the memory of a page only. selectors: of lightkube's `list` and `watch`.
    """
    with named_errors(f"list {subject}"):
        listing = client.list(kind, chunk_size=_PAGE, **selectors)
        items: list[Any] = []
        async for item in listing:
            if paged and len(items) == _PAGE:
                yield Page(tuple(items))
                items.clear()
            items.append(item.view())
        version = listing.resourceVersion
    yield Listed(tuple(items))
    with named_errors(f"watch {subject}"):
        changes = client.watch(kind, resource_version=version, **selectors)
        async with aclosing(cast("Any", changes)) as stream:
            while True:
                async with asyncio.timeout(silence_s):
                    operation, item = await anext(stream)
                yield Deleted(item.view()) if operation == "DELETED" else Changed(item.view())


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
        raise _api_error(operation, error.status.code or 0, why) from error
    except httpx2.HTTPStatusError as error:  # of a watch, whose answers lightkube does not look into
        response = error.response
        raise _api_error(operation, response.status_code, _message(response)) from error
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
    """An event hook: reads the answer that refuses a watch, which nobody else would."""
    if response.is_error:
        await response.aread()


def _api_error(operation: str, code: int, why: str) -> ApiRefusedError | ApiUncertainError:
    message = f"{operation}: {why} (HTTP {code})"
    if code in _TOO_LARGE_CODES and any(text in why for text in _TOO_LARGE):
        hint = "with this it would be longer than etcd takes, 1.5 MiB by default; make it shorter"
        return ApiRefusedError(f"{message}: {hint}", status=TOO_LARGE)
    return ApiRefusedError(message, status=code) if 400 <= code < 500 else ApiUncertainError(message)


def _message(response: httpx2.Response) -> str:
    """The message of the Status object, or HTTP's phrase for the code."""
    try:
        return str(response.json()["message"])
    except (ValueError, LookupError, TypeError):
        return response.reason_phrase or "refused"
