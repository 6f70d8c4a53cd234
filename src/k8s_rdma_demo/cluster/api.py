"""The API server stand-in: the Kubernetes API over HTTP for pods, their workloads, nodes, and others.

    async with serving_api() as api:
        ...  # api.url

All objects are in memory. Requests are authorized only when `ApiConfig.access` is set, so bind to loopback.
kubectl works with it, except for server-side apply and requests to a kubelet (logs, exec, attach,
port-forward). GET passes through `pods/proxy`. A watch sends one JSON document a line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import httpx2
import msgspec
import structlog

from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.json import decode_large
from k8s_rdma_demo.cluster.bodies import (
    APPLY,
    JSON,
    MERGE,
    PROTOBUF,
    STRATEGIC,
    decode_protobuf,
    patching,
)
from k8s_rdma_demo.cluster.custom_resources import (
    printer_columns,
    schema_of,
    served_resources,
    unknown_fields_of,
)
from k8s_rdma_demo.cluster.delete_options import DeleteOptions, parse_delete_options, require_dry_run
from k8s_rdma_demo.cluster.discovery import discovery
from k8s_rdma_demo.cluster.http_server import HttpService, Request, Response, Stream, serving
from k8s_rdma_demo.cluster.objects import (
    BUILT_IN,
    NAMESPACES,
    PODS,
    RESOURCE_CLAIMS,
    REVIEWS,
    SERVICE_ACCOUNTS,
    TOKEN_REQUESTS,
    VERSION,
    Clock,
    JsonObject,
    ResourceType,
    Target,
    go_json,
    go_quote,
    metadata,
    name_of,
    namespace_of,
    resolve,
    status_of,
    system_clock,
)
from k8s_rdma_demo.cluster.pod_strategy import TOLERATED_S
from k8s_rdma_demo.cluster.rbac import ADMIN, Access, review, service_account, verb_of
from k8s_rdma_demo.cluster.registry import Registry
from k8s_rdma_demo.cluster.selection import Selection, parse_selection
from k8s_rdma_demo.cluster.shapes import check_shape
from k8s_rdma_demo.cluster.status import (
    StatusError,
    bad_request,
    invalid,
    method_not_allowed,
    no_kubelet,
    no_server_side_apply,
    no_such_path,
    success,
    too_large,
    unavailable,
    unsupported_body,
)
from k8s_rdma_demo.cluster.store import Change, Store
from k8s_rdma_demo.cluster.tables import Table
from k8s_rdma_demo.cluster.workload_strategy import WORKLOADS, scale_of, scaled
from k8s_rdma_demo.plain_http import NO_TLS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Render: TypeAlias = Callable[[JsonObject], JsonObject]
"""A function that makes the form in which a watch sends an object."""

MAX_BODY_BYTES = 3 * 1024 * 1024  # kube-apiserver's own limit (`MaxRequestBodyBytes`)

_OPENAPI_V2 = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_HEALTH = frozenset({"/healthz", "/livez", "/readyz"})
_KUBELET = frozenset({"log", "exec", "attach", "portforward"})
"""Subresources of pods that kubelet serves."""

_OF_CONNECTION = frozenset({"authorization", "connection", "host", "accept-encoding"})
"""Fields of a request that are not passed on."""

_log = structlog.get_logger()
_decoder = msgspec.json.Decoder(dict[str, Any])
_patch_decoder = msgspec.json.Decoder(Any)

_MIN_TOKEN_S = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """A watch's parameters.

    revision: later changes are sent; 0: first every object there is as ADDED (source: API concepts,
    "Semantics for watch"). timeout_s: unset: without end. bookmark: a BOOKMARK ends the objects there are
    (`sendInitialEvents`; "Streaming lists").
    """

    resource: ResourceType
    selection: Selection
    revision: int
    timeout_s: int | None
    bookmark: bool

    @classmethod
    def requested(cls, request: Request, target: Target) -> Watch:
        """Read a request; StatusError 400 names the fault."""
        streams_list = request.query.get("sendInitialEvents") in {"1", "true"}
        return cls(
            resource=target.resource,
            selection=parse_selection(target.resource, target.namespace, request.query),
            revision=0 if streams_list else _number(request.query, "resourceVersion") or 0,
            timeout_s=_number(request.query, "timeoutSeconds") or None,
            bookmark=streams_list,
        )


async def watch_events(store: Store, watch: Watch) -> AsyncIterator[tuple[str, JsonObject]]:
    """Every change to the selection after the revision, until the time is up.

    A revision whose successors are no longer known ends the watch with an ERROR that carries the 410 Status,
    and the HTTP status stays 200, as kube-apiserver does.
    """
    resource, selection, revision = watch.resource, watch.selection, watch.revision
    try:
        async with asyncio.timeout(watch.timeout_s):
            if revision == 0:
                revision = store.revision
                for obj in filter(selection.matches, store.items(resource)):
                    yield "ADDED", obj
                if watch.bookmark:
                    yield "BOOKMARK", _bookmark(resource, revision)
            while True:
                for change in store.changes_after(revision):
                    revision = change.revision
                    if change.resource == resource and (kind := _watch_event(change, selection)):
                        yield kind, change.object
                await store.wait_after(revision)
    except StatusError as error:
        yield "ERROR", error.document()
    except TimeoutError:
        return


def _bookmark(resource: ResourceType, revision: int) -> JsonObject:
    meta = {"resourceVersion": str(revision), "annotations": {"k8s.io/initial-events-end": "true"}}
    return {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta}


def _watch_event(change: Change, selection: Selection) -> str | None:
    """Return the event's type within the selection, which an object may enter or leave, if there is one."""
    matched = selection.matches(change.previous)
    if change.type == "DELETED":
        return "DELETED" if matched else None
    matches = selection.matches(change.object)
    if matches:
        return "MODIFIED" if matched else "ADDED"
    return "DELETED" if matched else None


async def _lines(events: AsyncIterator[tuple[str, JsonObject]], render: Render) -> AsyncIterator[bytes]:
    async for kind, obj in events:
        shown = obj if kind in {"ERROR", "BOOKMARK"} else render(obj)
        yield go_json({"type": kind, "object": shown}) + b"\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiConfig:
    """The configuration of the API server.

    port 0: the system chooses. history_limit: changes kept for watches. access: permissions by bearer
    tokens and roles; unset: everybody may do everything. gates_off: feature gates that are off. namespaces:
    those that exist; unset: all that are named. tolerated_s: the seconds for which pods without a toleration
    for it tolerate a node that is not ready (`--default-not-ready-toleration-seconds`, and of `unreachable`).
    """

    host: str = "127.0.0.1"
    port: int = 0
    custom_resources: tuple[ResourceType, ...] = ()
    history_limit: int = 10_000
    max_body_bytes: int = MAX_BODY_BYTES
    clock: Clock = field(default=system_clock)
    access: Access | None = None
    gates_off: frozenset[str] = frozenset()
    namespaces: tuple[str, ...] | None = None
    tolerated_s: int = TOLERATED_S


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningApi:
    """An API server that serves. store: its objects, for a test to look into."""

    host: str
    port: int
    store: Store

    @property
    def url(self) -> str:
        """The server's URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


@asynccontextmanager
async def serving_api(config: ApiConfig | None = None) -> AsyncIterator[RunningApi]:
    """Serve the API until the block ends."""
    config = config or ApiConfig()
    store = Store(history_limit=config.history_limit)
    resources = (*BUILT_IN, *config.custom_resources)
    registry = Registry(
        store=store,
        clock=config.clock,
        gates_off=config.gates_off,
        checks_namespaces=config.namespaces is not None,
        tolerated_s=config.tolerated_s,
    )
    for name in config.namespaces or ():
        registry.create(Target(resource=NAMESPACES), {"metadata": {"name": name}})
    api = Api(registry, resources, config.access)
    service = HttpService(
        handle=api.handle,
        refuse=partial(_refuse, config.max_body_bytes),
        max_body_bytes=config.max_body_bytes,
    )
    async with serving(service, config.host, config.port) as port:
        yield RunningApi(host=config.host, port=port, store=store)


class Api:
    """Requests of the Kubernetes API, answered from a registry."""

    def __init__(
        self,
        registry: Registry,
        resources: tuple[ResourceType, ...] = BUILT_IN,
        access: Access | None = None,
    ) -> None:
        self._registry = registry
        self._resources = resources
        self._access = access

    async def handle(self, request: Request) -> Response | Stream:
        """Answer a request; everything that is wrong with it is answered by a Status object."""
        try:
            return await self._answer(request)
        except StatusError as error:
            return _json(error.code, error.document())
        except MalformedError as error:
            return _json(400, bad_request(error.message).document())
        except Exception as error:  # a fault of ours: this request fails, the server goes on
            _log.exception("api.fault", method=request.method, path=request.path)
            message = f"Internal error occurred: {error!r}"
            return _json(500, StatusError(500, "InternalError", message).document())

    async def _answer(self, request: Request) -> Response | Stream:
        if request.path in _HEALTH:
            return Response(status=200, body=b"ok", content_type="text/plain; charset=utf-8")
        resources = self._served()
        target = resolve(request.path, resources)
        if target is None:
            return self._describe(request, resources)
        if target.resource in REVIEWS:
            return self._review(request, target)
        if self._access is not None:
            self._access.check(request, target, self._registry.store)
        if target.subresource:
            return await self._on_subresource(request, target)
        if verb_of(request, target) not in target.resource.verbs:
            raise method_not_allowed()
        if target.name:
            return self._on_object(request, target)
        return self._on_collection(request, target)

    def _served(self) -> tuple[ResourceType, ...]:
        """Return the configured resources and those of CustomResourceDefinitions."""
        defined = served_resources(self._registry.store)
        return (*self._resources, *(resource for resource in defined if resource not in self._resources))

    def _describe(self, request: Request, resources: tuple[ResourceType, ...]) -> Response:
        """Return the API's description of itself; StatusError 404 for an unknown path."""
        path = request.path.rstrip("/")
        if path == "/version":
            return _json(200, VERSION)
        if path == "/openapi/v2":  # empty, so that kubectl learns no schema from it
            return Response(status=200, body=b"", content_type=_OPENAPI_V2)
        document = discovery(path, resources, partial(schema_of, store=self._registry.store))
        if document is None or request.method != "GET":
            raise no_such_path()
        return _json(200, document)

    def _review(self, request: Request, target: Target) -> Response:
        if request.method != "POST" or target.name:
            raise method_not_allowed()
        user = self._access.user_of(request) if self._access is not None else ADMIN
        answer = review(target.resource.kind, _body(request), user, self._registry.store)
        return _json(201, answer)

    def _on_collection(self, request: Request, target: Target) -> Response | Stream:
        match request.method:
            case "GET" if request.query.get("watch") in {"1", "true"}:
                return self._watch(request, target)
            case "GET":
                return self._list(request, target)
            case "POST":
                document = _body(request)
                _check_type(target.resource, document)
                self._check_fields(request, target, document)
                registry = self._registry_for(request)
                return _json(201, registry.create(_with_namespace(target, document), document))
            case "DELETE":
                return self._delete_collection(request, target)
        raise method_not_allowed()

    def _registry_for(self, request: Request) -> Registry:
        """Return the registry, or for a dry run one whose writes are dropped; StatusError 400."""
        directive = request.query.get("dryRun")
        if not directive:
            return self._registry
        require_dry_run(directive)
        return self._registry.draft()

    def _check_fields(self, request: Request, target: Target, document: JsonObject) -> None:
        """Refuse (StatusError 400) unknown fields, if the request has them validated strictly."""
        validation = request.query.get("fieldValidation", "")
        if validation not in {"", "Ignore", "Warn", "Strict"}:
            raise bad_request(f'fieldValidation: Unsupported value: "{validation}"')
        if validation != "Strict":
            return
        resource = target.resource
        unknown = unknown_fields_of(document, resource, self._registry.store)
        if faults := ", ".join(f"unknown field {go_quote(path)}" for path in unknown):
            raise bad_request(
                f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: '
                f"strict decoding error: {faults}"
            )

    def _delete_collection(self, request: Request, target: Target) -> Response:
        """Delete all objects that are selected, as kubelet does with the slices of its node."""
        selection = parse_selection(target.resource, target.namespace, request.query)
        found = list(filter(selection.matches, self._registry.store.items(target.resource, target.namespace)))
        for obj in found:
            self._delete(request, replace(target, namespace=namespace_of(obj), name=name_of(obj)))
        return _json(200, success())

    def _delete(self, request: Request, target: Target) -> JsonObject:
        return self._registry_for(request).delete(target, _delete_options(request))

    def _on_object(self, request: Request, target: Target) -> Response:
        match request.method:
            case "GET":
                return self._get(request, target)
            case "PUT":
                document = _body(request)
                self._check_fields(request, target, document)
                registry = self._registry_for(request)
                return _json(200, registry.update(target, document))
            case "PATCH":
                return self._patch(request, target)
            case "DELETE":
                return _json(200, self._delete(request, target))
        raise method_not_allowed()

    def _get(self, request: Request, target: Target) -> Response:
        obj = self._registry.get(target)
        if not _wants_table(request):
            return _json(200, obj)
        revision = str(metadata(obj)["resourceVersion"])
        return _json(200, self._table(request, target).document([obj], revision, self._registry.clock()))

    def _table(self, request: Request, target: Target) -> Table:
        columns = printer_columns(target.resource, self._registry.store)
        return Table.for_resource(target.resource, columns, request.query.get("includeObject", ""))

    async def _on_subresource(self, request: Request, target: Target) -> Response:
        registry = self._registry_for(request)
        match (target.subresource, request.method):
            case ("status", "GET" | "PUT" | "PATCH") if target.resource.has_status:
                return self._on_object(request, target)
            case ("binding", "POST") if target.resource == PODS:
                return _json(201, registry.bind(target, _body(request)))
            case ("eviction", "POST") if target.resource == PODS:
                return _json(201, registry.evict(target, _body(request)))
            case ("token", "POST") if target.resource == SERVICE_ACCOUNTS:
                return _json(201, self._token(target, _body(request)))
            case ("scale", "GET" | "PUT" | "PATCH") if target.resource in WORKLOADS:
                return self._scale(request, replace(target, subresource=""))
            case ("proxy", "GET") if target.resource == PODS:
                return await self._proxied(request, target)
            case ("status" | "binding" | "eviction" | "proxy", _):
                raise method_not_allowed()
        if target.resource == PODS and target.subresource in _KUBELET:
            registry.get(target)
            raise no_kubelet(target.subresource)
        raise no_such_path()

    def _scale(self, request: Request, target: Target) -> Response:
        """Read or change how many replicas a workload has."""
        obj = self._registry.get(target)
        if request.method == "GET":
            return _json(200, scale_of(obj))
        scale = _body(request) if request.method == "PUT" else self._patched_scale(request, scale_of(obj))
        changed = self._registry_for(request).patch(target, lambda old: scaled(old, scale))
        return _json(200, scale_of(changed))

    @staticmethod
    def _patched_scale(request: Request, scale: JsonObject) -> JsonObject:
        patch = decode_large(request.body, _patch_decoder, "the request's body")
        return patching(_content_type(request), "Scale", patch)(scale)

    async def _proxied(self, request: Request, target: Target) -> Response:
        """Answer as the pod's process at `NAME:PORT` does, which gets no `Authorization`.

        Source: "Manually constructing apiserver proxy URLs", Kubernetes' documentation.
        """
        name, _, port = target.name.partition(":")
        pod = self._registry.get(replace(target, name=name, subresource=""))
        url = f"http://{status_of(pod).get('podIP')}:{port}{target.proxy_path}"
        headers = {name: value for name, value in request.headers.items() if name not in _OF_CONNECTION}
        try:
            async with httpx2.AsyncClient(trust_env=False, verify=NO_TLS) as http:
                answer = await http.get(url, params=request.query, headers=headers)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise unavailable(f"error trying to reach service: {error}") from error
        content_type = answer.headers.get("content-type", "")
        return Response(status=answer.status_code, body=answer.content, content_type=content_type)

    def _token(self, target: Target, document: JsonObject) -> JsonObject:
        """Answer a TokenRequest; the token does not expire, and counts only with `access`."""
        self._registry.get(target)
        _check_token_request(document)
        access = self._access or Access()
        token = access.token_for(service_account(target.namespace, target.name))
        requests = TOKEN_REQUESTS
        return {"kind": requests.kind, "apiVersion": requests.api_version, "status": {"token": token}}

    def _patch(self, request: Request, target: Target) -> Response:
        content_type = _content_type(request)
        if content_type == APPLY and target.resource == RESOURCE_CLAIMS and target.subresource == "status":
            content_type = MERGE  # one driver alone writes devices here
        if content_type == APPLY:
            raise no_server_side_apply()
        accepted = (JSON, MERGE) if target.resource.custom else (JSON, MERGE, STRATEGIC)
        if content_type not in accepted:
            raise unsupported_body(accepted)
        patch = decode_large(request.body, _patch_decoder, "the request's body")
        merge = patching(content_type, target.resource.kind, patch)

        def merged(old: JsonObject) -> JsonObject:
            new = merge(old)
            self._check_fields(request, target, new)
            return new

        return _json(200, self._registry_for(request).patch(target, merged))

    def _list(self, request: Request, target: Target) -> Response:
        selection = parse_selection(target.resource, target.namespace, request.query)
        store = self._registry.store
        found = list(filter(selection.matches, store.items(target.resource, target.namespace)))
        if _wants_table(request):
            table = self._table(request, target)
            return _json(200, table.document(found, str(store.revision), self._registry.clock()))
        return _json(
            200,
            {
                "kind": f"{target.resource.kind}List",
                "apiVersion": target.resource.api_version,
                "metadata": {"resourceVersion": str(store.revision)},
                "items": [{k: v for k, v in obj.items() if k not in {"kind", "apiVersion"}} for obj in found],
            },
        )

    def _watch(self, request: Request, target: Target) -> Stream:
        events = watch_events(self._registry.store, Watch.requested(request, target))
        render = self._rows(self._table(request, target)) if _wants_table(request) else dict
        return Stream(parts=_lines(events, render))

    def _rows(self, table: Table) -> Render:
        """Render each object as a Table of its own, the first one with column definitions."""
        headers = [True]

        def row(obj: JsonObject) -> JsonObject:
            revision, first = str(metadata(obj)["resourceVersion"]), bool(headers)
            headers.clear()
            return table.document([obj], revision, self._registry.clock(), headers=first)

        return row


def _wants_table(request: Request) -> bool:
    """Report whether the client prefers a Table of `meta.k8s.io/v1` to a plain object."""
    for accepted in request.headers.get("accept", "").split(","):
        media, *parameters = (part.strip() for part in accepted.split(";"))
        if media == "application/json":
            return {"as=Table", "v=v1", "g=meta.k8s.io"} <= set(parameters)
    return False


def _content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip()


def _json(status: int, document: JsonObject) -> Response:
    return Response(status=status, body=go_json(document))


def _body(request: Request) -> JsonObject:
    """Decode the request's body; StatusError 415 for a content type that is not taken."""
    content_type = _content_type(request)
    if content_type == PROTOBUF:
        return decode_protobuf(request.body)
    if content_type not in {"", "application/json"}:
        raise unsupported_body(("application/json", PROTOBUF))
    return decode_large(request.body, _decoder, "the request's body")


def _check_type(resource: ResourceType, document: JsonObject) -> None:
    kind = document.get("kind") or resource.kind
    version = document.get("apiVersion") or resource.api_version
    if (kind, version) != (resource.kind, resource.api_version):
        msg = (
            f"{kind} in version {version!r} cannot be handled as a {resource.kind}: "
            f"wanted {resource.api_version!r}"
        )
        raise bad_request(msg)


def _check_token_request(document: JsonObject) -> None:
    """Refuse a lifetime as `ValidateTokenRequest` does (kubernetes, pkg/apis/authentication/validation)."""
    check_shape(TOKEN_REQUESTS.kind, document)
    seconds = (document.get("spec") or {}).get("expirationSeconds")
    if seconds is not None and seconds < _MIN_TOKEN_S:
        why = f"Invalid value: {seconds}: may not specify a duration less than 10 minutes"
        raise invalid(TOKEN_REQUESTS, "", "spec.expirationSeconds", "FieldValueInvalid", why)


def _with_namespace(target: Target, document: JsonObject) -> Target:
    if not target.resource.namespaced:
        return target
    if not target.namespace:
        raise method_not_allowed()
    check_shape(target.resource.kind, document)
    if namespace_of(document) not in {"", target.namespace}:
        msg = "the namespace of the provided object does not match the namespace sent on the request"
        raise bad_request(msg)
    return target


def _delete_options(request: Request) -> DeleteOptions:
    """Return the options of a deletion, which come in the body or in the query."""
    options = _body(request) if request.body else {}
    if "gracePeriodSeconds" in request.query:
        options["gracePeriodSeconds"] = _number(request.query, "gracePeriodSeconds")
    return parse_delete_options(options)


def _number(query: dict[str, str], name: str) -> int | None:
    text = query.get(name, "")
    if not text:
        return None
    try:
        return int(text)
    except ValueError as error:
        raise bad_request(f"{name}: wanted an integer, found {text!r}") from error


def _refuse(max_body_bytes: int, status: int) -> Response:
    error = too_large(max_body_bytes) if status == 413 else bad_request("the request is not valid HTTP/1.1")
    return _json(error.code, error.document())
