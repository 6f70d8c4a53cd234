"""The node's ResourceSlices, kept as the agent's offers say: kubelet deletes them at each of its starts.

kube-scheduler refuses pods for up to five minutes that it has counted twice while it bound others (Kubernetes
1.36, `GatherAllocatedState` in pkg/scheduler/framework/plugins/dynamicresources/dra_manager.go). A change of
any ResourceSlice has it try them again: a slice is annotated when claims have begun or ended.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, NoReturn, cast

import structlog

from k8s_rdma.core.backoff import Backoff
from k8s_rdma.kube.errors import API_ERRORS, ApiRefusedError
from k8s_rdma.kube.informer import REAL_TIME, Changed, Deleted, Event, Listed, ListPage, Time, follow
from k8s_rdma.wire.claims import DRIVER, Offers
from k8s_rdma.wire.objects.meta import OwnerReference
from k8s_rdma.wire.resource_slice import NUMA_NODE, slice_name, slice_specs
from k8s_rdma.wire.stored_slice import TAINTS, decode_spec, dropped_fields, equals

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from k8s_rdma.core.types import NodeName
    from k8s_rdma.kube.resource_slices import SlicesApi, SliceView

_log = structlog.get_logger()

FIRST_RETRY_S, LAST_RETRY_S = 0.2, 30.0
"""The delays between attempts to write slices."""

FIRST_DELAY_S, LAST_DELAY_S = 1.0, 300.0
"""The delays between writes."""

LAST_CHANGE_S, LAST_ABSENCE_S = 30.0, 2.0
"""The longest delay of a difference from the last write; and while there is no slice, because kubelet deletes
them when it starts."""

STEADY_S = 30.0
"""The time without a difference after which a change is written at once."""

GATE_RETRY_S = 300.0
"""The delay until an API server is tried again that drops fields of slices."""

TOUCH_DELAY_S, TOUCH_EVERY_S = 2.0, 10.0
"""The time from a claim's begin or end until the slice is annotated, and the least between two of these."""

TOUCHED = "k8s-rdma.io/touched"
"""The annotation of a slice with the time of the last change of claims."""

_NO_API = "the API server has no resource.k8s.io/v1 ResourceSlices: claims need Kubernetes 1.36"
_REFUSED, _NOT_FOUND = (401, 403, 404), 404
"""Statuses of a list that is not served, now or ever."""

_INVALID = 422
_NO_LISTS = "numaNodeList needs the feature gate DRAListTypeAttributes of kube-apiserver: "
"""The reason for which an API server without that gate finds no value in the attribute of NUMA nodes."""


_Specs = tuple[dict[str, Any], ...]


class WriteLimit:
    """The delays between writes of slices, each twice as long as the one before.

    A link may flap, and a driver of another version, before an update's end, has its own idea of the slices.
    The first write is due at once, and so is one after the slices were as offered for a while. Times are of
    one monotonic clock.
    """

    def __init__(self) -> None:
        """Start without writes."""
        self._backoff = Backoff(FIRST_DELAY_S, LAST_DELAY_S)
        self._written: _Specs | None = None
        self._written_s = -math.inf
        self._equal_since_s: float | None = None

    def reset(self) -> None:
        """Let the next write be due at once."""
        self._backoff.reset()

    def note_equal(self, now_s: float) -> None:
        """Note that the slices are as offered."""
        if self._equal_since_s is None:
            self._equal_since_s = now_s

    def note_write(self, specs: _Specs, now_s: float) -> None:
        """Note a write, after which the slices are as offered."""
        self._backoff.fail(now_s)
        self._written, self._written_s, self._equal_since_s = specs, now_s, now_s

    def left_s(self, specs: _Specs, now_s: float, *, absent: bool) -> float:
        """Return the time until these may be written, because the slices differ; 0 if they may.

        absent: whether there are no slices.
        """
        if self._equal_since_s is not None and now_s - self._equal_since_s >= STEADY_S:
            self._backoff.reset()
        self._equal_since_s = None
        longest_s = LAST_DELAY_S if specs == self._written else LAST_CHANGE_S
        if absent:
            longest_s = LAST_ABSENCE_S
        return min(self._backoff.left_s(now_s), max(0.0, self._written_s + longest_s - now_s))


class SlicePublisher:
    """Keeps the slices of one node and driver in the API server.

    problem: why they are not as offered; empty while they are.
    """

    def __init__(
        self,
        api: SlicesApi,
        node: NodeName,
        time: Time = REAL_TIME,
        near_nodes: Callable[[int], Sequence[int]] | None = None,
    ) -> None:
        """Wait for the first offers: the slices of an earlier process stay until then.

        near_nodes: as of `slice_specs`.
        """
        self._near_nodes = near_nodes
        self._api = api
        self._node = node
        self._time = time
        self._found: dict[str, SliceView] | None = None
        self._offers: tuple[Offers, bool] | None = None
        self._with_taints = True
        self._keeps_fields = False
        self._specs: _Specs | None = None
        self._limit = WriteLimit()
        self._change, self._retry, self._touch = (asyncio.Event() for _ in range(3))
        self._backoff = Backoff(FIRST_RETRY_S, LAST_RETRY_S)
        self.problem = "no slices are published yet"
        self.writes = 0

    @property
    def count(self) -> int:
        """The number of slices in the API server."""
        return len(self._found or ())

    def offer(self, offers: Offers, *, agent_away: bool = False) -> None:
        """Publish these offers from now on. agent_away: whether no new pods are to come."""
        if offers.node != self._node:
            self._fail(f"the agent is of node {offers.node}, and the device plugin of {self._node}")
            return
        self._offers = (offers, agent_away)
        self._encode()

    def touch(self) -> None:
        """Have kube-scheduler try pods again that it has refused, soon."""
        self._touch.set()

    async def run(self) -> NoReturn:
        """Keep the slices until cancelled; they stay behind."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            tasks.create_task(self._annotate())
            while True:
                await self._change.wait()
                self._change.clear()
                self._retry.clear()
                delay_s = await self._try_to_reconcile()
                if delay_s:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(delay_s):
                            await self._retry.wait()
                    self._change.set()

    def _encode(self) -> None:
        if self._offers is None:
            return
        offers, agent_away = self._offers
        specs = slice_specs(
            offers, agent_away=agent_away, with_taints=self._with_taints, near_nodes=self._near_nodes
        )
        if specs != self._specs:
            self._specs = specs
            self._change.set()
            self._retry.set()

    async def _follow(self) -> NoReturn:
        await follow(
            f"resourceslices of node {self._node}",
            self._events,
            self._on_event,
            time=self._time,
            first_retry_s=FIRST_RETRY_S,
        )

    async def _events(self) -> AsyncIterator[Event[SliceView]]:
        try:
            async with aclosing(cast("Any", self._api.follow_slices(self._node, DRIVER))) as events:
                async for event in events:
                    yield event
        except ApiRefusedError as refused:
            if refused.status in _REFUSED:
                self._fail(_NO_API if refused.status == _NOT_FOUND else refused.message)
            raise

    def _on_event(self, event: Event[SliceView]) -> None:
        found = dict(self._found or {})
        match event:
            case ListPage():
                return
            case Listed(items):  # perhaps of an API server that was updated
                found = {item.name: item for item in items}
                self._with_taints, self._keeps_fields = True, False
                self._encode()
                self._retry.set()
            case Changed(item) | Deleted(item) if _is_older(item, found.get(item.name)):
                return
            case Changed(item):
                found[item.name] = item
            case Deleted(item):
                found.pop(item.name, None)
                if not found:
                    self._retry.set()
        self._found = found
        self._change.set()

    async def _try_to_reconcile(self) -> float:
        """Make the slices equal to the offers. Return the delay until the next attempt, 0 without one."""
        if self._specs is None or self._found is None:
            return 0.0
        if self._differs(self._found, self._specs):
            now_s = self._time.monotonic()
            if early_s := self._limit.left_s(self._specs, now_s, absent=not self._found):
                return early_s
            try:
                dropped = await self._write(self._found, self._specs)
            except API_ERRORS as error:
                self._fail(f"{self._lists_refused(error)}{error.message}")
                return self._backoff.fail()
            if dropped:
                return await self._withdraw(dropped)
        self._backoff.reset()
        self._limit.note_equal(self._time.monotonic())
        if self.problem:
            _log.info("slices_published", slices=len(self._specs))
        self.problem = ""
        return 0.0

    def _lists_refused(self, error: Exception) -> str:
        """Return the advice if slices are refused for lists of NUMA nodes, otherwise nothing."""
        is_invalid = isinstance(error, ApiRefusedError) and error.status == _INVALID
        return _NO_LISTS if self._near_nodes and is_invalid and NUMA_NODE in str(error) else ""

    def _fail(self, problem: str) -> None:
        if problem != self.problem:
            _log.warning("slices_not_published", error=problem)
        self.problem = problem

    def _differs(self, found: dict[str, SliceView], specs: _Specs) -> bool:
        names = [slice_name(self._node, index) for index in range(len(specs))]
        return found.keys() != set(names) or not all(
            equals(decode_spec(found[name].spec), spec) for name, spec in zip(names, specs, strict=True)
        )

    async def _write(self, found: dict[str, SliceView], specs: _Specs) -> tuple[str, ...]:
        """Write the slices, as the pool's next generation. Return the fields that the API server dropped."""
        names = [slice_name(self._node, index) for index in range(len(specs))]
        for name in found.keys() - set(names):
            await self._delete(name)
        generation = 1 + max((decode_spec(view.spec).pool.generation for view in found.values()), default=0)
        owner = OwnerReference.of_node(self._node, await self._api.node_uid(self._node))
        if not found and specs and not self._keeps_fields:
            if dropped := await self._try_out(names[0], specs[0], owner):
                return dropped
            self._keeps_fields = True
        fields: set[str] = set()
        for name, spec in zip(names, specs, strict=True):
            whole = spec | {"pool": spec["pool"] | {"generation": generation}}
            if name in found:
                stored = await self._api.replace_slice(found[name], whole, owner)
            else:
                stored = await self._api.create_slice(name, whole, owner)
            self.writes += 1
            self._found = {**(self._found or {}), name: stored}
            fields |= set(dropped_fields(decode_spec(stored.spec), spec))
        self._limit.note_write(specs, self._time.monotonic())
        return tuple(sorted(fields))

    async def _try_out(self, name: str, spec: dict[str, Any], owner: OwnerReference) -> tuple[str, ...]:
        """Name the fields that the API server would drop, before kube-scheduler sees a slice without them."""
        whole = spec | {"pool": spec["pool"] | {"generation": 1}}
        stored = await self._api.create_slice(name, whole, owner, dry_run=True)
        return dropped_fields(decode_spec(stored.spec), spec)

    async def _withdraw(self, dropped: tuple[str, ...]) -> float:
        """Publish without fields that the API server drops. Return the delay until the next attempt, or 0."""
        if dropped == (TAINTS,):
            _log.warning("taints_dropped", gate="DRADeviceTaints", instead="their PFs are left out")
            self._with_taints = False
            self._limit.reset()
            self._encode()
            return 0.0
        self._fail(
            f"the API server drops {', '.join(dropped)} of ResourceSlices: it needs the feature gate "
            "DRAConsumableCapacity, which is on from Kubernetes 1.36"
        )
        with suppress(*API_ERRORS):
            for name in dict(self._found or {}):
                await self._delete(name)
        return GATE_RETRY_S

    async def _delete(self, name: str) -> None:
        await self._api.delete_slice(name)
        self._found = {view.name: view for view in (self._found or {}).values() if view.name != name}

    async def _annotate(self) -> NoReturn:
        while True:
            await self._touch.wait()
            await self._time.pause(TOUCH_DELAY_S)
            self._touch.clear()
            if self._specs and not self.problem:
                with suppress(*API_ERRORS):
                    now = self._time.now().isoformat(timespec="seconds")
                    await self._api.annotate_slice(slice_name(self._node, 0), TOUCHED, now)
            await self._time.pause(TOUCH_EVERY_S)


def _is_older(item: SliceView, current: SliceView | None) -> bool:
    """Report whether an event came before the current object; versions of one kind may be compared."""
    if current is None or not (item.version.isdecimal() and current.version.isdecimal()):
        return False
    return int(item.version) < int(current.version)
