"""An API server's ResourceSlices, ResourceClaims and pods, in memory."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import msgspec

from k8s_rdma.kube.errors import ApiRefusedError, ApiUnreachableError
from k8s_rdma.kube.informer import Changed, Deleted, Event, Listed
from k8s_rdma.kube.resource_slices import SliceView
from k8s_rdma_demo.cluster.resource_slices import stored_slice

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from k8s_rdma.core.types import NodeName
    from k8s_rdma.wire.objects.meta import OwnerReference


class FakeSlices:
    """A `kube.resource_slices.SlicesApi`.

    gates_off: feature gates that are off. served: whether it can be reached. forbidden: kinds of objects that
    may not be read. annotated: slices by name, with the number of their annotations so far. applied: statuses
    of claims, in order. refused_status: why they are refused; empty: not at all. reads: of claims and pods,
    in vain too.
    """

    def __init__(self) -> None:
        self.slices: dict[str, SliceView] = {}
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.gates_off: frozenset[str] = frozenset()
        self.served = True
        self.forbidden: frozenset[str] = frozenset()
        self.annotated: dict[str, int] = {}
        self.applied: list[dict[str, Any]] = []
        self.refused_status = ""
        self.reads = 0
        self._version = 0
        self._followers: list[asyncio.Queue[Event[SliceView]]] = []

    def specs(self) -> dict[str, dict[str, Any]]:
        return {name: msgspec.json.decode(view.spec) for name, view in self.slices.items()}

    async def follow_slices(self, node: NodeName, driver: str) -> AsyncIterator[Event[SliceView]]:
        self._require_served()
        queue: asyncio.Queue[Event[SliceView]] = asyncio.Queue()
        queue.put_nowait(Listed(tuple(self.slices.values())))
        self._followers.append(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._followers.remove(queue)

    async def create_slice(
        self, name: str, spec: dict[str, Any], owner: OwnerReference, *, dry_run: bool = False
    ) -> SliceView:
        self._require_served()
        if name in self.slices:
            raise ApiRefusedError(f"create resourceslice {name}: exists", status=409)
        return self._store(name, spec, dry_run=dry_run)

    async def replace_slice(self, found: SliceView, spec: dict[str, Any], owner: OwnerReference) -> SliceView:
        self._require_served()
        current = self.slices.get(found.name)
        if current is None or current.version != found.version:
            raise ApiRefusedError(f"replace resourceslice {found.name}: changed", status=409)
        return self._store(found.name, spec)

    async def delete_slice(self, name: str) -> None:
        self._require_served()
        if (view := self.slices.pop(name, None)) is not None:
            self._tell(Deleted(view))

    async def annotate_slice(self, name: str, key: str, value: str) -> None:
        self._require_served()
        self.annotated[name] = self.annotated.get(name, 0) + 1

    async def get_claim_document(self, namespace: str, name: str) -> bytes | None:
        return self._object("claim", namespace, name)

    async def apply_claim_status(self, namespace: str, name: str, status: dict[str, Any], uid: str) -> None:
        self._require_served()
        found = self.objects.get(("claim", namespace, name))
        if found is None or found["metadata"]["uid"] != uid:
            raise ApiRefusedError(f"apply resourceclaim {namespace}/{name}: not found", status=404)
        if self.refused_status:
            raise ApiRefusedError(self.refused_status, status=422)
        self.applied.append(status)
        self.objects["claim", namespace, name] = {**found, "status": found["status"] | deepcopy(status)}

    async def get_pod_document(self, namespace: str, name: str) -> bytes | None:
        return self._object("pod", namespace, name)

    async def node_uid(self, node: NodeName) -> str:
        self._require_served()
        return f"uid-{node}"

    def _object(self, kind: str, namespace: str, name: str) -> bytes | None:
        self.reads += 1
        self._require_served()
        if kind in self.forbidden:
            raise ApiRefusedError(f'get {kind} {namespace}/{name}: cannot get resource "{kind}"', status=403)
        found = self.objects.get((kind, namespace, name))
        return None if found is None else msgspec.json.encode(found)

    def _store(self, name: str, spec: dict[str, Any], *, dry_run: bool = False) -> SliceView:
        self._version += 1
        old = self.slices.get(name)
        stored = stored_slice(
            {"metadata": {"name": name}, "spec": spec},
            {"spec": msgspec.json.decode(old.spec)} if old else None,
            gates_off=self.gates_off,
            now=f"2026-01-01T00:00:{self._version % 60:02d}Z",
        )
        view = SliceView(name=name, version=str(self._version), spec=msgspec.json.encode(stored["spec"]))
        if dry_run:
            return view
        self.slices[name] = view
        self._tell(Changed(view))
        return view

    def _tell(self, event: Event[SliceView]) -> None:
        for queue in self._followers:
            queue.put_nowait(event)

    def _require_served(self) -> None:
        if not self.served:
            raise ApiUnreachableError("the API server cannot be reached")
