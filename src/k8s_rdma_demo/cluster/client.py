"""The API client of the scheduler and the kubelet, an informer, and the recorder of events on pods.

An informer is a cache filled by list and watch. `kubectl describe` shows the events of a pod.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias

import httpx2
import msgspec
import structlog

from k8s_rdma.errors import K8sRdmaError, Reason
from k8s_rdma.wire.json import decode_large
from k8s_rdma_demo.cluster.objects import (
    EVENTS,
    PODS,
    Clock,
    JsonObject,
    Key,
    ResourceType,
    key_of,
    metadata,
    name_of,
    namespace_of,
    system_clock,
    timestamp,
    uid_of,
    untyped,
)
from k8s_rdma_demo.plain_http import NO_TLS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

_TIMEOUT_S = 30.0
_STRATEGIC = "application/strategic-merge-patch+json"
_decoder = msgspec.json.Decoder(dict[str, Any])

OnChange: TypeAlias = "Callable[[JsonObject | None, JsonObject | None], None]"

_STATUS_GONE = 410
_log = structlog.get_logger()

_NOTE_LIMIT = 1024  # k8s.io/kubernetes/pkg/apis/core/validation: NoteLengthLimit


class ApiError(K8sRdmaError):
    """The API server refused a request, or could not be asked. code: its HTTP status; 0: no answer."""

    reason = Reason.API_FAILURE

    def __init__(self, message: str, *, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class ApiClient:
    """Requests to one API server; its connections are reused. Every method raises ApiError."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self._http = http

    @classmethod
    @asynccontextmanager
    async def connecting(cls, server: str, token: str = "") -> AsyncIterator[ApiClient]:
        """A client of the API server at that URL, for as long as the block lasts; token: who it is."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        limits = httpx2.Limits(max_connections=None)
        timeout = httpx2.Timeout(_TIMEOUT_S)
        async with httpx2.AsyncClient(
            base_url=server, headers=headers, timeout=timeout, limits=limits, trust_env=False, verify=NO_TLS
        ) as http:
            yield cls(http)

    async def get(self, resource: ResourceType, key: Key) -> JsonObject:
        """The object of that namespace and name."""
        return await self._send("GET", resource.path(namespace=key[0], name=key[1]))

    async def list(self, resource: ResourceType, field_selector: str = "") -> tuple[list[JsonObject], str]:
        """All objects of all namespaces that the selector takes, and the revision at which they were so."""
        answer = await self._send("GET", resource.path(), params={"fieldSelector": field_selector})
        return answer["items"], metadata(answer)["resourceVersion"]

    async def watch(
        self, resource: ResourceType, revision: str, field_selector: str = ""
    ) -> AsyncIterator[tuple[str, JsonObject]]:
        """Type and object of every change after a revision; ends when the server ends it.

        ApiError 410 when the revision is too old.
        """
        params = {"watch": "true", "resourceVersion": revision, "fieldSelector": field_selector}
        try:
            async with self._http.stream(
                "GET", resource.path(), params=params, timeout=httpx2.Timeout(_TIMEOUT_S, read=None)
            ) as answer:
                if answer.is_error:
                    raise _status_error("GET", resource.path(), answer.status_code, await answer.aread())
                async for line in answer.aiter_lines():
                    event = decode_large(line, _decoder, f"watch {resource.plural}")
                    if event["type"] == "ERROR":
                        raise ApiError(event["object"]["message"], code=event["object"]["code"])
                    yield event["type"], event["object"]
        except httpx2.HTTPError as error:
            raise _transport_error("GET", resource.path(), error) from error

    async def create(self, resource: ResourceType, obj: JsonObject) -> JsonObject:
        """Create an object in its own namespace."""
        return await self._send("POST", resource.path(namespace=namespace_of(obj)), document=obj)

    async def post(self, path: str, document: JsonObject) -> JsonObject:
        """Post to a subresource."""
        return await self._send("POST", path, document=document)

    async def patch(self, resource: ResourceType, key: Key, patch: JsonObject) -> JsonObject:
        """Merge into an object, strategically."""
        path = resource.path(namespace=key[0], name=key[1])
        return await self._send("PATCH", path, document=patch, content_type=_STRATEGIC)

    async def patch_status(self, resource: ResourceType, key: Key, status: JsonObject) -> JsonObject:
        """Merge into an object's status, strategically."""
        path = resource.path(namespace=key[0], name=key[1], subresource="status")
        return await self._send("PATCH", path, document={"status": status}, content_type=_STRATEGIC)

    async def update_status(self, resource: ResourceType, obj: JsonObject) -> JsonObject:
        """Replace an object's status, unless the object has changed (ApiError 409)."""
        path = resource.path(namespace=namespace_of(obj), name=name_of(obj), subresource="status")
        return await self._send("PUT", path, document=obj)

    async def delete(self, resource: ResourceType, obj: JsonObject) -> None:
        """Delete as gracefully as the object wants."""
        await self._send("DELETE", resource.path(namespace=namespace_of(obj), name=name_of(obj)))

    async def delete_now(self, resource: ResourceType, obj: JsonObject) -> None:
        """Delete with a grace period of 0, if the object is still the one with that UID."""
        path = resource.path(namespace=namespace_of(obj), name=name_of(obj))
        preconditions = {"uid": metadata(obj)["uid"]}
        await self._send("DELETE", path, document={"gracePeriodSeconds": 0, "preconditions": preconditions})

    async def delete_all(self, resource: ResourceType, field_selector: str) -> None:
        """Delete all objects that the selector takes."""
        await self._send("DELETE", resource.path(), params={"fieldSelector": field_selector})

    async def _send(
        self,
        method: str,
        path: str,
        *,
        document: JsonObject | None = None,
        content_type: str = "application/json",
        params: dict[str, str] | None = None,
    ) -> JsonObject:
        content = b"" if document is None else msgspec.json.encode(document)
        headers = {"Content-Type": content_type} if document is not None else {}
        try:
            answer = await self._http.request(method, path, content=content, headers=headers, params=params)
        except httpx2.HTTPError as error:
            raise _transport_error(method, path, error) from error
        if answer.is_error:
            raise _status_error(method, path, answer.status_code, answer.content)
        return decode_large(answer.content, _decoder, f"{method} {path}")


def _status_error(method: str, path: str, code: int, body: bytes) -> ApiError:
    try:
        message = json.loads(body)["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        message = f"HTTP status {code}"
    return ApiError(f"{method} {path}: {message}", code=code)


def _transport_error(method: str, path: str, error: httpx2.HTTPError) -> ApiError:
    return ApiError(f"{method} {path}: no answer from the API server: {error!r}")


class Informer:
    """Keeps `objects` current and tells `on_change(old, new)` of each change, in order.

    old is None for a new object, new for a deleted one; an object that was deleted and created again
    under its name is reported as deleted and new. synced is set once all existing objects have been reported.
    """

    def __init__(
        self,
        client: ApiClient,
        resource: ResourceType,
        on_change: OnChange,
        *,
        field_selector: str = "",
        retry_s: float = 1.0,
    ) -> None:
        self.objects: dict[Key, JsonObject] = {}
        self.synced = asyncio.Event()
        self._client = client
        self._resource = resource
        self._on_change = on_change
        self._field_selector = field_selector
        self._retry_s = retry_s

    async def run(self) -> NoReturn:
        """Follow the API server; one that does not answer is asked again every `retry_s`."""
        while True:
            try:
                revision = await self._list()
                await self._watch(revision)
            except ApiError as error:
                if error.code != _STATUS_GONE:
                    _log.warning("informer.retry", resource=self._resource.plural, error=error.message)
                    await asyncio.sleep(self._retry_s)

    async def _list(self) -> str:
        items, revision = await self._client.list(self._resource, self._field_selector)
        found = {key_of(obj): obj for obj in items}
        for key in [key for key in self.objects if key not in found]:
            self._replace(key, None)
        for key, obj in found.items():
            self._replace(key, obj)
        self.synced.set()
        return revision

    async def _watch(self, revision: str) -> None:
        while True:
            async for kind, obj in self._client.watch(self._resource, revision, self._field_selector):
                revision = obj["metadata"]["resourceVersion"]
                self._replace(key_of(obj), None if kind == "DELETED" else untyped(obj))
            # The server ends a watch now and then; the next one continues from its revision.
            await asyncio.sleep(0)

    def _replace(self, key: Key, new: JsonObject | None) -> None:
        old = self.objects.pop(key, None)
        if new is not None:
            self.objects[key] = new
        if old is not None and new is not None and uid_of(old) != uid_of(new):
            self._on_change(old, None)
            old = None
        if old != new:
            self._on_change(old, new)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecorder:
    """Posts events of one component; an event that cannot be posted is logged and lost.

    host: the node, for a component that runs on one. about: the kind of the objects.
    """

    client: ApiClient
    component: str
    host: str = ""
    clock: Clock = system_clock
    about: ResourceType = PODS

    async def normal(self, obj: JsonObject, reason: str, message: str) -> None:
        """Record a success as an event of type Normal."""
        await self._post(obj, "Normal", reason, message)

    async def warning(self, obj: JsonObject, reason: str, message: str) -> None:
        """Record a failure as an event of type Warning."""
        await self._post(obj, "Warning", reason, message)

    async def _post(
        self, obj: JsonObject, kind: Literal["Normal", "Warning"], reason: str, message: str
    ) -> None:
        now = timestamp(self.clock())
        # As client-go names them: an object's events sort by their time.
        name = f"{name_of(obj)}.{time.time_ns():x}"
        source = {"component": self.component, "host": self.host}
        event = {
            "metadata": {"name": name, "namespace": namespace_of(obj)},
            "involvedObject": _reference(self.about, obj),
            "reason": reason,
            "message": _shortened(message),
            "source": {name: value for name, value in source.items() if value},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "type": kind,
            "reportingComponent": self.component,
            "reportingInstance": self.host,
        }
        try:
            await self.client.create(EVENTS, event)
        except ApiError as error:
            _log.warning("event.lost", reason=reason, about=name_of(obj), error=error.message)


def _reference(resource: ResourceType, obj: JsonObject) -> JsonObject:
    return {
        "kind": resource.kind,
        "namespace": namespace_of(obj),
        "name": name_of(obj),
        "uid": uid_of(obj),
        "apiVersion": resource.api_version,
        "resourceVersion": obj["metadata"]["resourceVersion"],
    }


def _shortened(message: str) -> str:
    if len(message) <= _NOTE_LIMIT:
        return message
    return f"{message[: _NOTE_LIMIT - 4]} ..."
