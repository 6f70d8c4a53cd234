"""The node's ResourceSlices, kept as the agent's offers say: kubelet deletes them at each of its starts.

kube-scheduler refuses pods for up to five minutes that it has counted twice while it bound others (Kubernetes
1.36, `GatherAllocatedState` in pkg/scheduler/framework/plugins/dynamicresources/dra_manager.go). A change of
any ResourceSlice has it try them again: a slice is annotated when claims have begun or ended.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

import structlog

from k8s_rdma.core.backoff import Backoff
from k8s_rdma.kube.api import API_ERRORS, REAL_TIME, Changed, Deleted, Event, Listed, Page, Time, follow
from k8s_rdma.kube.objects import OwnerReference
from k8s_rdma.wire.claims import DRIVER, Offers
from k8s_rdma.wire.resource_slice import decode_spec, dropped_fields, equals, slice_name, slice_specs

if TYPE_CHECKING:
    from k8s_rdma.core.types import NodeName
    from k8s_rdma.kube.resource_slices import SlicesApi, SliceView

_log = structlog.get_logger()

FIRST_RETRY_S, LAST_RETRY_S = 0.2, 30.0
"""The delays between attempts to write slices."""

GATE_RETRY_S = 300.0
"""The delay until an API server is tried again that drops fields of slices."""

TOUCH_DELAY_S, TOUCH_EVERY_S = 2.0, 10.0
"""The time from a claim's begin or end until the slice is annotated, and the least between two of these."""

TOUCHED = "k8s-rdma.io/touched"
"""The annotation of a slice with the time of the last change of claims."""


class SlicePublisher:
    """Keeps the slices of one node and driver in the API server.

    problem: why they are not as offered; empty while they are.
    """

    def __init__(self, api: SlicesApi, node: NodeName, time: Time = REAL_TIME) -> None:
        """Publish nothing before the first offers: what an earlier process published stays."""
        self._api = api
        self._node = node
        self._time = time
        self._found: dict[str, SliceView] | None = None
        self._specs: tuple[dict[str, Any], ...] | None = None
        self._change = asyncio.Event()
        self._touch = asyncio.Event()
        self._backoff = Backoff(FIRST_RETRY_S, LAST_RETRY_S)
        self.problem = "no slices are published yet"
        self.writes = 0

    def offer(self, offers: Offers, *, agent_away: bool = False) -> None:
        """Publish these offers from now on."""
        specs = slice_specs(offers, agent_away=agent_away)
        if specs != self._specs:
            self._specs = specs
            self._change.set()

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
                delay_s = await self._try_to_reconcile()
                if delay_s:
                    await self._time.pause(delay_s)
                    self._change.set()

    async def _follow(self) -> NoReturn:
        await follow(
            f"resourceslices of node {self._node}",
            lambda: self._api.follow_slices(self._node, DRIVER),
            self._on_event,
            time=self._time,
            first_retry_s=FIRST_RETRY_S,
        )

    def _on_event(self, event: Event[SliceView]) -> None:
        match event:
            case Page():
                return
            case Listed(items):
                self._found = {item.name: item for item in items}
            case Changed(item):
                self._found = {**(self._found or {}), item.name: item}
            case Deleted(item):
                self._found = {name: view for name, view in (self._found or {}).items() if name != item.name}
        self._change.set()

    async def _try_to_reconcile(self) -> float:
        """Make the slices equal to the offers. Returns the delay until the next attempt, 0 for none."""
        if self._specs is None or self._found is None:
            return 0.0
        try:
            dropped = await self._reconcile(self._found, self._specs)
        except API_ERRORS as error:
            delay_s = self._backoff.fail()
            self._fail(error.message)
            return delay_s
        self._backoff.reset()
        if dropped:
            self._fail(
                f"the API server drops {', '.join(dropped)} of ResourceSlices: it needs the feature gate "
                "DRAConsumableCapacity, which is on from Kubernetes 1.36"
            )
            return GATE_RETRY_S
        if self.problem:
            _log.info("slices_published", slices=len(self._specs))
        self.problem = ""
        return 0.0

    def _fail(self, problem: str) -> None:
        if problem != self.problem:
            _log.warning("slices_not_published", error=problem)
        self.problem = problem

    async def _reconcile(
        self, found: dict[str, SliceView], specs: tuple[dict[str, Any], ...]
    ) -> tuple[str, ...]:
        """Write what differs. Returns the fields that the API server dropped: then nothing is published."""
        names = [slice_name(self._node, index) for index in range(len(specs))]
        for name in found.keys() - set(names):
            await self._api.delete_slice(name)
        current = {name: decode_spec(view.spec) for name, view in found.items()}
        pairs = list(zip(names, specs, strict=True))
        if all(name in current and equals(current[name], spec) for name, spec in pairs):
            return ()
        generation = 1 + max((spec.generation for spec in current.values()), default=0)
        owner = OwnerReference(name=self._node, uid=await self._api.node_uid(self._node))
        for name, spec in pairs:
            whole = spec | {"pool": spec["pool"] | {"generation": generation}}
            if name in found:
                stored = await self._api.replace_slice(found[name], whole, owner)
            else:
                stored = await self._api.create_slice(name, whole, owner)
            self.writes += 1
            if dropped := dropped_fields(decode_spec(stored.spec), spec["devices"]):
                await self._api.delete_slice(name)
                return dropped
        return ()

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
