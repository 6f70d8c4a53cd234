"""An API server for benchmarks: one fast process that has everything encoded before a request comes.

It serves the requests of an extender: lists in pages, watches, one pod, Bindings, Leases. A Binding is shown
in the watch of pods as the API server shows it; `POST /create-pods?count=N` makes pods that wait for a node.
Other requests are answered with an empty list, or 404.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httptools
import msgspec

PODS = "/api/v1/pods"
_encode = msgspec.json.encode


@dataclass(slots=True)
class Collection:
    """One kind of objects: encoded, in order; their places by namespace and name; and their watchers."""

    kind: str
    items: list[bytes] = field(default_factory=list)
    places: dict[tuple[str, str], int] = field(default_factory=dict)
    watchers: set[asyncio.Transport] = field(default_factory=set)

    def page(self, version: int, limit: int, start: int) -> Iterator[bytes]:
        """Return a list document, in parts."""
        end = start + limit if limit else len(self.items)
        meta: dict[str, Any] = {"resourceVersion": str(version)}
        if end < len(self.items):
            meta["continue"] = str(end)
        yield b'{"kind":"%s","apiVersion":"v1","metadata":%s,"items":[' % (self.kind.encode(), _encode(meta))
        yield b",".join(self.items[start:end])
        yield b"]}"

    def tell(self, operation: str, item: bytes) -> None:
        """Send one change to all watchers."""
        line = b'{"type":"%s","object":%s}\n' % (operation.encode(), item)
        for watcher in self.watchers:
            watcher.write(b"%x\r\n%s\r\n" % (len(line), line))


@dataclass(slots=True)
class Api:
    """The objects of the cluster. pending: pods that had no node when they came, by namespace and name.

    new_pod: makes the next of these pods.
    """

    new_pod: Callable[[int], dict[str, Any]]

    collections: defaultdict[str, Collection] = field(
        default_factory=lambda: defaultdict(lambda: Collection("List"))
    )
    pending: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    leases: dict[str, dict[str, Any]] = field(default_factory=dict)
    versions: Iterator[int] = field(default_factory=lambda: itertools.count(1_000_000))

    def fill(self, path: str, kind: str, objects: Iterable[dict[str, Any]]) -> None:
        """Add these objects."""
        found = self.collections[path] = Collection(kind)
        for each in objects:
            meta = each["metadata"]
            found.places[meta.get("namespace", ""), meta["name"]] = len(found.items)
            found.items.append(_encode(each))

    def create_pods(self, count: int) -> None:
        """Add pods that are not bound."""
        for _ in range(count):
            pod = self.new_pod(len(self.pending))
            meta = pod["metadata"]
            self.pending[meta["namespace"], meta["name"]] = pod
            self.collections[PODS].tell("ADDED", _encode(pod))

    def bind(self, namespace: str, name: str, binding: dict[str, Any]) -> tuple[int, bytes]:
        """Set node and annotations at once, as the API server does, and send the change to watchers."""
        pod = self.pending[namespace, name]
        if pod["spec"].get("nodeName"):
            return 409, _encode({"kind": "Status", "status": "Failure", "code": 409, "message": "bound"})
        pod["spec"]["nodeName"] = binding["target"]["name"]
        pod["metadata"]["annotations"] |= binding["metadata"].get("annotations") or {}
        pod["metadata"]["resourceVersion"] = str(next(self.versions))
        self.collections[PODS].tell("MODIFIED", _encode(pod))
        return 201, b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","code":201}'

    def touch(self, namespace: str, name: str, patch: dict[str, Any]) -> tuple[int, bytes]:
        """Write annotations of a pod, and send the change to watchers."""
        pods = self.collections[PODS]
        place = pods.places.get((namespace, name))
        pod = self.pending[namespace, name] if place is None else json.loads(pods.items[place])
        pod["metadata"]["annotations"] |= patch["metadata"].get("annotations") or {}
        pod["metadata"]["resourceVersion"] = str(next(self.versions))
        written = _encode(pod)
        if place is not None:
            pods.items[place] = written
        pods.tell("MODIFIED", written)
        return 200, written

    def lease(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Return or write a Lease by its path."""
        if method == "GET" and path not in self.leases:
            return 404, b'{"kind":"Status","status":"Failure","code":404,"message":"no such lease"}'
        if method != "GET":
            written = json.loads(body)
            path = path if method == "PATCH" else f"{path}/{written['metadata']['name']}"
            known = self.leases.setdefault(path, {"metadata": {}, "spec": {}})
            known["metadata"] |= written["metadata"] | {"resourceVersion": str(next(self.versions))}
            known["spec"] |= written["spec"]
        return 200, _encode(self.leases[path])


class ApiProtocol(asyncio.Protocol):
    """One connection."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._parser = httptools.HttpRequestParser(self)
        self._url, self._body = b"", bytearray()
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = transport

    def connection_lost(self, _why: Exception | None) -> None:
        """End its watches."""
        for collection in self._api.collections.values():
            collection.watchers.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        """Parse the bytes."""
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        """Note a part of the request's URL."""
        self._url += url

    def on_body(self, body: bytes) -> None:
        """Note a part of the request's body."""
        self._body += body

    def on_message_complete(self) -> None:
        """Answer the request."""
        url, body = urlsplit(self._url.decode()), bytes(self._body)
        self._url, self._body = b"", bytearray()
        self._answer(self._parser.get_method().decode(), url.path, parse_qs(url.query), body)

    def _answer(self, method: str, path: str, query: dict[str, list[str]], body: bytes) -> None:
        parts = path.split("/")
        if method == "POST" and path.endswith("/binding"):
            self._send(*self._api.bind(parts[4], parts[6], json.loads(body)))
        elif method == "POST" and path == "/create-pods":
            self._api.create_pods(int(query["count"][0]))
            self._send(200, b"{}")
        elif path.startswith("/apis/coordination.k8s.io") and path not in self._api.collections:
            self._send(*self._api.lease(method, path, body))
        elif method == "GET" and len(parts) == 7 and parts[5] == "pods":
            self._send(200, _encode(self._api.pending[parts[4], parts[6]]))
        elif method == "PATCH" and len(parts) == 7 and parts[5] == "pods":
            self._send(*self._api.touch(parts[4], parts[6], json.loads(body)))
        elif method == "PATCH":
            self._send(200, b"{}")
        elif "watch" in query:
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
            self._transport.write(head)
            self._api.collections[path].watchers.add(self._transport)
        else:
            limit, start = (int(query.get(key, ["0"])[0]) for key in ("limit", "continue"))
            found = self._api.collections[path]
            if "metadata.name" in query.get("fieldSelector", [""])[0]:
                found = Collection(found.kind)
            self._send(200, *found.page(next(self._api.versions), limit, start))

    def _send(self, status: int, *parts: bytes) -> None:
        length = sum(map(len, parts))
        head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self._transport.writelines([head % (status, length), *parts])
