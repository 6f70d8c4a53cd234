"""The API server stand-in: the Kubernetes API over HTTP for pods, nodes, events, leases and custom resources.

    async with serving_api() as api:
        ...  # api.url

All objects are in memory. Requests are authorized only when `ApiConfig.access` is set, so bind to loopback.
SubjectAccessReviews are answered from the roles in the store. A watch sends one JSON document a line.

Sources: RFC 7386 for merge patches; the API conventions and the `patchMergeKey` tags of
`k8s.io/api/core/v1/types.go` for strategic merge patches, as far as pods and nodes need them;
`pkg/registry/authorization/subjectaccessreview/rest.go`.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.json import decode
from k8s_rdma_demo.cluster.http_server import HttpService, Request, Response, Stream, serving
from k8s_rdma_demo.cluster.objects import (
    BUILT_IN,
    PODS,
    RESOURCE_CLAIMS,
    SERVICE_ACCOUNTS,
    Clock,
    JsonObject,
    ResourceType,
    Target,
    go_json,
    name_of,
    namespace_of,
    resolve,
    system_clock,
)
from k8s_rdma_demo.cluster.rbac import ADMIN, ANONYMOUS, User, allowed, service_account
from k8s_rdma_demo.cluster.registry import Registry
from k8s_rdma_demo.cluster.shapes import check_shape
from k8s_rdma_demo.cluster.status import (
    StatusError,
    bad_request,
    forbidden,
    method_not_allowed,
    no_such_path,
    success,
    too_large,
    unauthorized,
    unsupported_patch,
)
from k8s_rdma_demo.cluster.store import (
    Change,
    DeleteOptions,
    Selection,
    Store,
    parse_delete_options,
    parse_selection,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


_MERGE_KEYS = {
    "addresses": "type",
    "conditions": "type",
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "hostIPs": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "podIPs": "ip",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "volumes": "name",
}


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386, section 2; neither argument is changed."""
    if not isinstance(patch, dict):
        return deepcopy(patch)
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def strategic_merge_patch(target: Any, patch: Any) -> Any:
    """Apply a merge patch with the known lists merged by key; StatusError 400 for an element without it."""
    if not isinstance(patch, dict):
        return deepcopy(patch)
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        key = _MERGE_KEYS.get(name)
        if value is None:
            merged.pop(name, None)
        elif key is not None and isinstance(value, list):
            merged[name] = _merge_by_key(name, merged.get(name) or [], value, key)
        elif not name.startswith("$"):  # directives such as $setElementOrder only order what is merged
            merged[name] = strategic_merge_patch(merged.get(name), value)
    return merged


def _merge_by_key(field: str, target: list[Any], patch: list[Any], key: str) -> list[Any]:
    merged = list(target)
    for element in patch:
        if not isinstance(element, dict) or key not in element:
            raise bad_request(f"map: {element} does not contain declared merge key: {key} (field {field})")
        index = next((i for i, present in enumerate(merged) if present.get(key) == element[key]), None)
        if element.get("$patch") == "delete":
            if index is not None:
                del merged[index]
        elif index is None:
            merged.append(deepcopy(element))
        else:
            merged[index] = strategic_merge_patch(merged[index], element)
    return merged


async def watch_lines(
    store: Store, resource: ResourceType, selection: Selection, revision: int, timeout_s: float | None
) -> AsyncIterator[bytes]:
    """Every change to the selection after a revision, for `timeout_s` or without end.

    revision 0: first every object there is as ADDED, then what changes (source: API concepts, "Semantics
    for watch"). A revision whose successors are no longer known ends the watch with an ERROR line that
    carries the 410 Status, and the HTTP status stays 200, as kube-apiserver does.
    """
    try:
        async with asyncio.timeout(timeout_s):
            if revision == 0:
                revision = store.revision
                for obj in filter(selection.matches, store.items(resource)):
                    yield _line("ADDED", obj)
            while True:
                for change in store.changes_after(revision):
                    revision = change.revision
                    if change.resource == resource and (kind := _watch_event(change, selection)):
                        yield _line(kind, change.object)
                await store.wait_after(revision)
    except StatusError as error:
        yield _line("ERROR", error.document())
    except TimeoutError:
        return


def _watch_event(change: Change, selection: Selection) -> str | None:
    """Return the event type within the selection, which an object may enter or leave; None for no event."""
    matched = selection.matches(change.previous)
    if change.type == "DELETED":
        return "DELETED" if matched else None
    matches = selection.matches(change.object)
    if matches:
        return "MODIFIED" if matched else "ADDED"
    return "DELETED" if matched else None


def _line(kind: str, obj: JsonObject) -> bytes:
    return go_json({"type": kind, "object": obj}) + b"\n"


_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True, slots=True)
class Access:
    """The bearer tokens that are known, and whose each is."""

    users: dict[str, User] = field(default_factory=dict)

    def token_for(self, user: User = ADMIN) -> str:
        """Make a new token."""
        token = secrets.token_urlsafe(24)
        self.users[token] = user
        return token

    def user_of(self, request: Request) -> User:
        """Return the user of a request; StatusError 401 for an unknown token."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return ANONYMOUS
        if token not in self.users:
            raise unauthorized()
        return self.users[token]

    def check(self, request: Request, target: Target, store: Store) -> None:
        """StatusError 401 or 403 unless the roles in the store allow it."""
        user, verb = self.user_of(request), _verb(request, target)
        if not allowed(user, verb, target, store):
            raise forbidden(user.name, verb, target)


def _verb(request: Request, target: Target) -> str:
    if request.method == "DELETE" and not target.name:
        return "deletecollection"
    if request.method != "GET":
        return _VERBS.get(request.method, request.method.lower())
    if target.name:
        return "get"
    return "watch" if request.query.get("watch") in {"1", "true"} else "list"


PATH = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class _Attributes(msgspec.Struct, frozen=True):
    verb: str
    resource: str
    group: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    resource_attributes: _Attributes
    user: str = ""
    groups: tuple[str, ...] = ()


class _Review(msgspec.Struct, frozen=True):
    spec: _Spec


def review(document: JsonObject, store: Store) -> JsonObject:
    """Return the document with its status; StatusError 400 for a review without attributes."""
    try:
        spec = msgspec.convert(document, _Review).spec
    except msgspec.ValidationError as error:
        raise bad_request(str(error)) from error
    attributes = spec.resource_attributes
    kind = ResourceType(
        group=attributes.group, version="", plural=attributes.resource, kind="", namespaced=True
    )
    target = Target(
        resource=kind,
        namespace=attributes.namespace,
        name=attributes.name,
        subresource=attributes.subresource,
    )
    user = User(name=spec.user, groups=frozenset(spec.groups))
    return document | {"status": {"allowed": allowed(user, attributes.verb, target, store)}}


MAX_BODY_BYTES = 3 * 1024 * 1024  # kube-apiserver's own limit (`MaxRequestBodyBytes`)

_MERGES: dict[str, Callable[[Any, Any], Any]] = {
    "application/merge-patch+json": merge_patch,
    "application/strategic-merge-patch+json": strategic_merge_patch,
}
_APPLY = "application/apply-patch+yaml"
"""Server-side apply: of the status of ResourceClaims, a merge, since one driver alone writes devices here."""
_HEALTH = frozenset({"/healthz", "/livez", "/readyz"})
_VERSION = {"major": "1", "minor": "36", "gitVersion": "v1.36.2", "platform": "linux/amd64"}
_log = structlog.get_logger()
_decoder = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiConfig:
    """The configuration of the API server.

    port 0: the system chooses. history_limit: changes kept for watches. access: who may do what, by bearer
    tokens and roles; None: everybody everything. gates_off: feature gates that are off.
    """

    host: str = "127.0.0.1"
    port: int = 0
    custom_resources: tuple[ResourceType, ...] = ()
    history_limit: int = 10_000
    max_body_bytes: int = MAX_BODY_BYTES
    clock: Clock = field(default=system_clock)
    access: Access | None = None
    gates_off: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningApi:
    """An API server that serves. store: what it keeps, for a test to look into."""

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
    api = Api(Registry(store=store, clock=config.clock, gates_off=config.gates_off), resources, config.access)
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
            return self._answer(request)
        except StatusError as error:
            return _json(error.code, error.document())
        except MalformedError as error:
            return _json(400, bad_request(error.message).document())
        except Exception as error:  # a fault of ours: this request fails, the server goes on
            _log.exception("api.fault", method=request.method, path=request.path)
            message = f"Internal error occurred: {error!r}"
            return _json(500, StatusError(500, "InternalError", message).document())

    def _answer(self, request: Request) -> Response | Stream:
        if request.path in _HEALTH:
            return Response(status=200, body=b"ok", content_type="text/plain; charset=utf-8")
        if request.path == "/version":
            return _json(200, _VERSION)
        if request.path == PATH and request.method == "POST":
            return _json(201, review(_body(request), self._registry.store))
        target = resolve(request.path, self._resources)
        if target is None:
            raise no_such_path()
        if self._access is not None:
            self._access.check(request, target, self._registry.store)
        if target.subresource:
            return self._on_subresource(request, target)
        if target.name:
            return self._on_object(request, target)
        return self._on_collection(request, target)

    def _on_collection(self, request: Request, target: Target) -> Response | Stream:
        if request.method == "GET" and request.query.get("watch") in {"1", "true"}:
            return self._watch(request, target)
        if request.method == "GET":
            return self._list(request, target)
        if request.method == "POST":
            dry_run = request.query.get("dryRun") == "All"
            document = _body(request, dry_run=dry_run)
            _check_type(target.resource, document)
            created = self._registry.create(_with_namespace(target, document), document, dry_run=dry_run)
            return _json(201, created)
        if request.method == "DELETE":
            return self._delete_collection(request, target)
        raise method_not_allowed()

    def _delete_collection(self, request: Request, target: Target) -> Response:
        """Delete all objects that are selected, as kubelet does with the slices of its node."""
        selection = parse_selection(target.resource, target.namespace, request.query)
        found = list(filter(selection.matches, self._registry.store.items(target.resource, target.namespace)))
        for obj in found:
            selected = replace(target, namespace=namespace_of(obj), name=name_of(obj))
            self._registry.delete(selected, _delete_options(request))
        return _json(200, success())

    def _on_object(self, request: Request, target: Target) -> Response:
        match request.method:
            case "GET":
                return _json(200, self._registry.get(target))
            case "PUT":
                return _json(200, self._registry.update(target, _body(request)))
            case "PATCH":
                return self._patch(request, target)
            case "DELETE":
                return _json(200, self._registry.delete(target, _delete_options(request)))
        raise method_not_allowed()

    def _on_subresource(self, request: Request, target: Target) -> Response:
        match (target.subresource, request.method):
            case ("status", "GET" | "PUT" | "PATCH") if target.resource.has_status:
                return self._on_object(request, target)
            case ("binding", "POST") if target.resource == PODS:
                return _json(201, self._registry.bind(target, _body(request)))
            case ("eviction", "POST") if target.resource == PODS:
                return _json(201, self._registry.evict(target, _body(request)))
            case ("token", "POST") if target.resource == SERVICE_ACCOUNTS and self._access is not None:
                return _json(201, self._token(target, self._access))
            case ("status" | "binding" | "eviction", _):
                raise method_not_allowed()
        raise no_such_path()

    def _token(self, target: Target, access: Access) -> JsonObject:
        """`authentication/v1.TokenRequest`; the token does not expire."""
        self._registry.get(target)
        token = access.token_for(service_account(target.namespace, target.name))
        return {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "status": {"token": token}}

    def _patch(self, request: Request, target: Target) -> Response:
        content_type = request.headers.get("content-type", "").partition(";")[0].strip()
        strategic = content_type.startswith("application/strategic")
        applied = target.resource == RESOURCE_CLAIMS and target.subresource == "status"
        if content_type == _APPLY and applied:
            content_type = "application/merge-patch+json"
        if content_type not in _MERGES or (strategic and target.resource.custom):
            raise unsupported_patch(content_type)
        patch = _body(request)
        return _json(200, self._registry.patch(target, lambda old: _MERGES[content_type](old, patch)))

    def _list(self, request: Request, target: Target) -> Response:
        selection = parse_selection(target.resource, target.namespace, request.query)
        store = self._registry.store
        found = filter(selection.matches, store.items(target.resource, target.namespace))
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
        selection = parse_selection(target.resource, target.namespace, request.query)
        revision = _number(request.query, "resourceVersion") or 0
        timeout_s = _number(request.query, "timeoutSeconds") or None
        store = self._registry.store
        return Stream(parts=watch_lines(store, target.resource, selection, revision, timeout_s))


def _json(status: int, document: JsonObject) -> Response:
    return Response(status=status, body=go_json(document))


def _body(request: Request, *, dry_run: bool = False) -> JsonObject:
    """Decode the request's body. dry_run: whether the request may be one."""
    if request.query.get("dryRun") and not dry_run:
        raise bad_request("dryRun is not supported")
    return decode(request.body, _decoder, "the request's body")


def _check_type(resource: ResourceType, document: JsonObject) -> None:
    kind = document.get("kind") or resource.kind
    version = document.get("apiVersion") or resource.api_version
    if (kind, version) != (resource.kind, resource.api_version):
        msg = (
            f"{kind} in version {version!r} cannot be handled as a {resource.kind}: "
            f"wanted {resource.api_version!r}"
        )
        raise bad_request(msg)


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
