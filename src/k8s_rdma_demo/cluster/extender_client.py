"""kube-scheduler's side of the extender protocol, byte for byte: filter, prioritize, preempt and bind.

A scheduler calls its extenders one after the other. Objects are sent as kube-scheduler caches them. Errors
have Go's wording, since users see them.

Source: recorded exchanges of kube-scheduler 1.36; `pkg/scheduler/extender.go`;
`k8s.io/kube-scheduler/extender/v1`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, get_origin
from urllib.parse import urlsplit

import httpx2
import msgspec
import structlog

from k8s_rdma.errors import K8sRdmaError, Reason
from k8s_rdma_demo.cluster.objects import (
    JsonObject,
    fields_regardless_of_case,
    go_json,
    go_quote,
    metadata,
    name_of,
    namespace_of,
    spec_of,
    uid_of,
    untyped,
)
from k8s_rdma_demo.plain_http import NO_TLS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

T = TypeVar("T")
_OK = 200

_IDLE_S = 90.0
"""The time that an idle connection is kept for the next request (Go's `DefaultTransport.IdleConnTimeout`)."""
_log = structlog.get_logger()


class ExtenderError(K8sRdmaError):
    """A call to the extender failed, or it answered with an error."""

    reason = Reason.API_FAILURE


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderConfig:
    """An entry of `extenders` in KubeSchedulerConfiguration; an empty verb is not called.

    ignored_resources: those of the managed ones that the scheduler does not count itself.
    """

    url_prefix: str
    filter_verb: str = ""
    prioritize_verb: str = ""
    preempt_verb: str = ""
    bind_verb: str = ""
    weight: int = 1
    node_cache_capable: bool = False
    managed_resources: frozenset[str] = frozenset()
    ignored_resources: frozenset[str] = frozenset()
    ignorable: bool = False
    http_timeout_s: float = 5.0


class Extenders:
    """Source: `findNodesThatPassExtenders`, `prioritizeNodes`, `extendersBinding` in `schedule_one.go`.

    An extender that is `ignorable` and fails is passed over; the failure of another is ExtenderError.
    """

    def __init__(self, clients: Sequence[ExtenderClient]) -> None:
        self._clients = clients

    @classmethod
    @asynccontextmanager
    async def connecting(cls, configs: Sequence[ExtenderConfig]) -> AsyncIterator[Extenders]:
        """Clients of all of them for as long as the block lasts."""
        async with AsyncExitStack() as stack:
            yield cls([await stack.enter_async_context(ExtenderClient.connecting(c)) for c in configs])

    async def filter(self, pod: JsonObject, nodes: list[JsonObject]) -> Filtered:
        """Return the nodes that all extenders leave; an extender is not asked if no node is left."""
        refused: dict[str, str] = {}
        never: frozenset[str] = frozenset()
        for client in self._interested(pod):
            if not nodes:
                break
            try:
                answer = await client.filter(pod, nodes)
            except ExtenderError as error:
                _ignore(client, error)
                continue
            nodes = answer.nodes
            refused |= answer.refused
            never |= answer.unresolvable
        return Filtered(nodes=nodes, refused=refused, unresolvable=never)

    async def best(self, pod: JsonObject, nodes: list[JsonObject]) -> list[str]:
        """The names of the nodes with the highest sum of scores, sorted; a failed call gives no score."""
        scores = dict.fromkeys((name_of(node) for node in nodes), 0)
        for client in self._interested(pod):
            try:
                priorities = await client.prioritize(pod, nodes)
            except ExtenderError as error:
                _log.warning("extender.no_score", extender=client.config.url_prefix, error=error.message)
                continue
            for node, score in priorities.items():
                if node in scores:
                    scores[node] += score
        highest = max(scores.values())
        return sorted(node for node, score in scores.items() if score == highest)

    async def preempt(
        self, pod: JsonObject, victims: Mapping[str, Victims], pods_on: Callable[[str], Iterable[JsonObject]]
    ) -> Mapping[str, Victims]:
        """The victims that all of them leave or add. Source: `callExtenders`, `framework/preemption`."""
        for client in self._interested(pod):
            if not client.config.preempt_verb or not victims:
                continue
            try:
                victims = _victims_by_node(await client.preempt(pod, victims), pods_on, client.config)
            except ExtenderError as error:
                _ignore(client, error)
        return victims

    async def bind(self, pod: JsonObject, node: str) -> bool:
        """Have the first one with a bind verb bind the pod; report whether one did."""
        for client in self._interested(pod):
            if not client.config.bind_verb:
                continue
            try:
                await client.bind(pod, node)
            except ExtenderError as error:
                _ignore(client, error)
                continue
            return True
        return False

    def _interested(self, pod: JsonObject) -> Iterator[ExtenderClient]:
        return (client for client in self._clients if client.is_interested(pod))


class ExtenderClient:
    """Calls one extender over kept-alive connections; every call raises ExtenderError."""

    def __init__(self, config: ExtenderConfig, http: httpx2.AsyncClient) -> None:
        self.config = config
        self._http = http

    @classmethod
    @asynccontextmanager
    async def connecting(cls, config: ExtenderConfig) -> AsyncIterator[ExtenderClient]:
        """A client for as long as the block lasts."""
        limits = httpx2.Limits(max_connections=None, keepalive_expiry=_IDLE_S)
        async with httpx2.AsyncClient(limits=limits, timeout=None, trust_env=False, verify=NO_TLS) as http:
            yield cls(config, http)

    def is_interested(self, pod: JsonObject) -> bool:
        """Report whether the extender is called for the pod at all (`managedResources`)."""
        managed = self.config.managed_resources
        spec = spec_of(pod)
        containers = [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]
        requested = (
            name
            for container in containers
            for amounts in (container.get("resources") or {}).values()
            if isinstance(amounts, dict)
            for name in amounts
        )
        return not managed or any(name in managed for name in requested)

    async def filter(self, pod: JsonObject, nodes: list[JsonObject]) -> Filtered:
        """Ask which of the nodes the pod can go to."""
        if not self.config.filter_verb:
            return Filtered(nodes=nodes)
        names_only = self.config.node_cache_capable
        body = scheduling_arguments(pod, nodes, names_only=names_only)
        reply = await self._call(self.config.filter_verb, body, _FilterReply)
        if reply.error:
            raise ExtenderError(reply.error)
        # A node in both maps counts as unresolvable.
        never = reply.failed_and_unresolvable_nodes or {}
        refused = {**(reply.failed_nodes or {}), **never}
        # Full nodes are taken as they come back: kube-scheduler does not check their names either.
        fitting = reply.nodes.items if reply.nodes is not None else None
        if names_only and reply.node_names is not None:
            fitting = self._by_name(nodes, reply.node_names)
        return Filtered(nodes=fitting or [], refused=refused, unresolvable=frozenset(never))

    async def prioritize(self, pod: JsonObject, nodes: list[JsonObject]) -> dict[str, int]:
        """Ask for the nodes' scores, weighted; a reply with one score that is no integer fails as a whole."""
        if not self.config.prioritize_verb:
            return {}
        body = scheduling_arguments(pod, nodes, names_only=self.config.node_cache_capable)
        scores = await self._call(self.config.prioritize_verb, body, list[_HostPriority])
        return {score.host: score.score * self.config.weight for score in scores}

    async def preempt(self, pod: JsonObject, victims: Mapping[str, Victims]) -> dict[str, MetaVictims]:
        """Ask which evictions make room; UIDs by node."""
        body = preemption_arguments(pod, victims, uids_only=self.config.node_cache_capable)
        reply = await self._call(self.config.preempt_verb, body, PreemptReply)
        try:
            return meta_victims(reply)
        except (msgspec.ValidationError, AttributeError) as error:
            raise ExtenderError(f"json: {error}") from error

    async def bind(self, pod: JsonObject, node: str) -> None:
        """Have the extender bind the pod."""
        reply = await self._call(self.config.bind_verb, binding_arguments(pod, node), _BindReply)
        if reply.error:
            raise ExtenderError(reply.error)

    def _by_name(self, nodes: list[JsonObject], names: list[str]) -> list[JsonObject]:
        by_name = {name_of(node): node for node in nodes}
        for name in names:
            if name not in by_name:
                msg = (
                    f"extender {go_quote(self.config.url_prefix)} claims a filtered node {go_quote(name)} "
                    "which is not found in the input node list"
                )
                raise ExtenderError(msg)
        return [by_name[name] for name in names]

    async def _call(self, verb: str, body: bytes, reply: type[T]) -> T:
        url = f"{self.config.url_prefix.rstrip('/')}/{verb}"
        try:
            async with asyncio.timeout(self.config.http_timeout_s):
                answer = await self._http.send(_request(url, body))
        except TimeoutError as error:
            why = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
            raise ExtenderError(f'Post "{url}": {why}') from error
        except httpx2.ConnectError as error:
            why = f"dial tcp {urlsplit(url).netloc}: connect: connection refused"
            raise ExtenderError(f'Post "{url}": {why}') from error
        except httpx2.HTTPError as error:
            raise ExtenderError(f'Post "{url}": {error or "EOF"}') from error
        if answer.status_code != _OK:
            msg = f"failed {verb} with extender at URL {url}, code {answer.status_code}"
            raise ExtenderError(msg)
        return _decoded(answer.content, reply)


@dataclass(frozen=True, slots=True)
class Victims:
    """Pods to evict from a node, and how many of the evictions no disruption budget allows."""

    pods: tuple[JsonObject, ...]
    violations: int


@dataclass(frozen=True, slots=True)
class MetaVictims:
    """The victims on a node, by UID."""

    uids: tuple[str, ...]
    violations: int


class PreemptReply(msgspec.Struct, frozen=True, rename=lambda name: name.replace("_", "")):
    """`ExtenderPreemptionResult`, its field in lower case."""

    node_name_to_meta_victims: dict[str, dict[str, Any] | None] | None = None


class _Meta(msgspec.Struct, frozen=True):
    pods: list[dict[str, Any]] | None = None
    numpdbviolations: int = 0


class _MetaPod(msgspec.Struct, frozen=True):
    uid: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filtered:
    """The result of a filter call: node objects in the extender's order, and messages by refused node.

    unresolvable: those of the refused nodes that no eviction could help.
    """

    nodes: list[JsonObject]
    refused: Mapping[str, str] = field(default_factory=dict)
    unresolvable: frozenset[str] = frozenset()


class _NodeList(msgspec.Struct, frozen=True):
    items: list[dict[str, Any]] | None = None


class _FilterReply(msgspec.Struct, frozen=True, rename=lambda name: name.replace("_", "")):
    nodes: _NodeList | None = None
    node_names: list[str] | None = None
    failed_nodes: dict[str, str] | None = None
    failed_and_unresolvable_nodes: dict[str, str] | None = None
    error: str = ""


class _HostPriority(msgspec.Struct, frozen=True):
    host: str = ""
    score: int = 0


class _BindReply(msgspec.Struct, frozen=True):
    error: str = ""


def preemption_arguments(pod: JsonObject, victims: Mapping[str, Victims], *, uids_only: bool) -> bytes:
    """The body of preempt (`ExtenderPreemptionArgs`); nodes in alphabetical order, as Go writes maps."""
    by_node = {node: victims[node] for node in sorted(victims)}
    whole = None if uids_only else {node: _whole(pods) for node, pods in by_node.items()}
    meta = {node: _meta(pods) for node, pods in by_node.items()} if uids_only else None
    return go_json({"Pod": cached_pod(pod), "NodeNameToVictims": whole, "NodeNameToMetaVictims": meta})


def meta_victims(reply: PreemptReply) -> dict[str, MetaVictims]:
    """The victims by node; msgspec.ValidationError if they are malformed."""
    return {
        node: _read(msgspec.convert(fields_regardless_of_case(meta or {}), _Meta))
        for node, meta in (reply.node_name_to_meta_victims or {}).items()
    }


def _read(meta: _Meta) -> MetaVictims:
    pods = [msgspec.convert(fields_regardless_of_case(pod), _MetaPod) for pod in meta.pods or ()]
    return MetaVictims(tuple(pod.uid for pod in pods), meta.numpdbviolations)


def _whole(victims: Victims) -> JsonObject:
    return {"Pods": [cached_pod(pod) for pod in victims.pods], "NumPDBViolations": victims.violations}


def _meta(victims: Victims) -> JsonObject:
    return {"Pods": [{"UID": uid_of(pod)} for pod in victims.pods], "NumPDBViolations": victims.violations}


def cached_pod(pod: JsonObject) -> JsonObject:
    """Remove a pod's `managedFields`, as kube-scheduler does on receipt to save memory; nodes keep theirs."""
    fields = {name: value for name, value in metadata(pod).items() if name != "managedFields"}
    return {**untyped(pod), "metadata": fields}


def scheduling_arguments(pod: JsonObject, nodes: Iterable[JsonObject], *, names_only: bool) -> bytes:
    """The body of filter and prioritize (`ExtenderArgs`); objects keep the order of their fields."""
    return go_json(
        {
            "Pod": cached_pod(pod),
            "Nodes": None if names_only else {"metadata": {}, "items": [untyped(node) for node in nodes]},
            "NodeNames": [name_of(node) for node in nodes] if names_only else None,
        }
    )


def binding_arguments(pod: JsonObject, node: str) -> bytes:
    """The body of bind (`ExtenderBindingArgs`)."""
    return go_json(
        {
            "PodName": name_of(pod),
            "PodNamespace": namespace_of(pod),
            "PodUID": uid_of(pod),
            "Node": node,
        }
    )


def _request(url: str, body: bytes) -> httpx2.Request:
    headers = [
        ("Host", urlsplit(url).netloc),
        ("User-Agent", "Go-http-client/1.1"),
        ("Content-Length", str(len(body))),
        ("Content-Type", "application/json"),
        ("Accept-Encoding", "gzip"),
    ]
    return httpx2.Request("POST", url, headers=headers, content=body)


def _decoded(content: bytes, reply: type[T]) -> T:
    """Decode as json.Unmarshal: names regardless of case, unknown ones ignored, null for the empty value."""
    try:
        document = msgspec.json.decode(content)
        if get_origin(reply) is list:
            document = [fields_regardless_of_case(element or {}) for element in document or []]
        else:
            document = fields_regardless_of_case(document or {})
        return msgspec.convert(document, reply)
    except (msgspec.MsgspecError, AttributeError, TypeError, UnicodeDecodeError, RecursionError) as error:
        raise ExtenderError(f"json: {error}") from error


def _victims_by_node(
    answer: Mapping[str, MetaVictims],
    pods_on: Callable[[str], Iterable[JsonObject]],
    config: ExtenderConfig,
) -> dict[str, Victims]:
    """The pods of an answer; one that is not on its node fails it, and so does a node without any."""
    victims: dict[str, Victims] = {}
    for node, meta in answer.items():
        by_uid = {uid_of(pod): pod for pod in pods_on(node)}
        for uid in meta.uids:
            if uid not in by_uid:
                msg = (
                    f"extender: {config.url_prefix} claims to preempt pod (UID: {uid}) on node: {node}, "
                    "but the pod is not found on that node"
                )
                raise ExtenderError(msg)
        if meta.uids:
            victims[node] = Victims(tuple(by_uid[uid] for uid in meta.uids), meta.violations)
        elif not config.ignorable:
            msg = f"expected at least one victim pod on node {go_quote(node)}"
            raise ExtenderError(msg)
    return victims


def _ignore(client: ExtenderClient, error: ExtenderError) -> None:
    if not client.config.ignorable:
        raise error
    _log.warning("extender.passed_over", extender=client.config.url_prefix, error=error.message)
