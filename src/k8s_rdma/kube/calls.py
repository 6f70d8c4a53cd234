"""Calls of the API server through lightkube: names in paths, errors.

`Documents` are the API server's objects of any kind as they are, for doctor; through lightkube's connection,
which knows the forms that credentials have.
"""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Self

import httpx2  # what lightkube 1.x raises
import msgspec
from lightkube import ApiError, NotReadyError
from lightkube import Client as LightkubeClient
from lightkube.core.exceptions import ConfigError

from k8s_rdma.kube.api import (
    TOO_LARGE,
    ApiRefusedError,
    ApiUncertainError,
    ApiUnreachableError,
)
from k8s_rdma.kube.credentials import authenticate, credentials, usable_credentials
from k8s_rdma.wire.json import decode_lossy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


PAGE = 500
"""Objects a list call returns at once, as kubectl does; bounds the memory that a list takes."""

_MERGE_PATCH = {"Content-Type": "application/merge-patch+json"}
_TOO_LARGE = ("etcdserver: request is too large", "trying to send message larger than max")
"""The errors of kube-apiserver for an object that is too large for etcd: nothing was written. Source:
`ErrGRPCRequestTooLarge` (etcd, api/v3rpc/rpctypes/error.go); grpc-go, stream.go."""

_TOO_LARGE_CODES = (HTTPStatus.CONFLICT, HTTPStatus.INTERNAL_SERVER_ERROR)
"""The status codes of that error: for a Binding, and for any other write."""

_NO_ANSWER_OF_ITS = (msgspec.MsgspecError, KeyError, ValueError, NotReadyError, RecursionError)
"""The errors of lightkube for an answer that is not the API server's own, such as a proxy's page;
NotReadyError for a list without a version."""


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
        raise api_error(operation, error.status.code or 0, why) from error
    except httpx2.HTTPStatusError as error:  # of a list or a watch, which lightkube does not look into
        response = error.response
        raise api_error(operation, response.status_code, _message(response)) from error
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


def api_error(operation: str, code: int, why: str) -> ApiRefusedError | ApiUncertainError:
    """The error for an answer with that code; it was refused, or may have been carried out."""
    message = f"{operation}: {why} (HTTP {code})"
    if code in _TOO_LARGE_CODES and any(text in why for text in _TOO_LARGE):
        hint = "with this it would be longer than etcd takes, 1.5 MiB by default; make it shorter"
        return ApiRefusedError(f"{message}: {hint}", status=TOO_LARGE)
    return ApiRefusedError(message, status=code) if 400 <= code < 500 else ApiUncertainError(message)


def _message(response: httpx2.Response) -> str:
    """The message of the Status object, or HTTP's phrase for the code."""
    try:
        return str(response.json()["message"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return response.reason_phrase or "refused"


class Documents:
    """Objects as JSON. Blocking; of one thread. A context manager."""

    def __init__(self, kubeconfig: str | None = None, *, timeout_s: float = 10.0) -> None:
        """Connect by a kubeconfig file, or as `kube.credentials` finds one.

        MalformedError when there is no such configuration.
        """
        with usable_credentials(kubeconfig):
            config = credentials(kubeconfig)
            self._client = LightkubeClient(config, timeout=httpx2.Timeout(timeout_s))
        self._http: httpx2.Client = self._client._client._client  # no other way in
        authenticate(self._http, config.user, timeout_s=timeout_s)
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

    def items(self, path: str, query: Mapping[str, str] | None = None) -> Iterator[dict[str, Any]]:
        """The objects of a list, page by page; none where there is no such kind."""
        following = ""
        while True:
            continuation = {"continue": following} if following else {}
            document = self.get(path, {"limit": str(PAGE), **(query or {}), **continuation})
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
        """The answer to a document that is posted and kept nowhere, such as an access review."""
        with named_errors(f"post {path}"):
            return self._document(self._http.post(path, json=dict(document)))

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
