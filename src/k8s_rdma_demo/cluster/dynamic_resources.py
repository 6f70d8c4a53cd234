"""ResourceClaims in the stand-ins: their controller, kube-scheduler's plugin, and kubelet's manager.

The controller makes claims of templates, and frees them when their pods have ended. The scheduler allocates
them (`claim_allocator`). Kubelet has drivers prepare them before the sandbox, and unprepare them after DEL.

Not simulated are finalizers, devices' health, and the end of slices whose driver is gone. Kubelet has no
checkpoint: after a restart it prepares the claims of running pods again. A prepare that failed is repeated as
a sandbox that failed, by the real one after 76 to 89 s.

Source (Kubernetes 1.36): `pkg/controller/resourceclaim`, `pkg/scheduler/framework/plugins/dynamicresources`,
`pkg/kubelet/cm/dra`; calls as recorded in `tests/recordings/dra`.
"""

from __future__ import annotations

import asyncio
import uuid
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import structlog

from k8s_rdma.errors import K8sRdmaError, MalformedError
from k8s_rdma.kube.grpc_calls import AioRpcError, call, connect
from k8s_rdma.wire.claims import ClaimAnswer, ClaimName, PreparedDevice
from k8s_rdma.wire.dra import GET_INFO, NOTIFY, PREPARE, UNPREPARE, RegistrationStatus
from k8s_rdma_demo.cluster.claim_allocator import AllocationError, Inventory, allocate
from k8s_rdma_demo.cluster.client import ApiClient, ApiError, Informer
from k8s_rdma_demo.cluster.extended_resources import (
    claim_for,
    claim_status,
    claimed_resources,
    is_for_resources,
)
from k8s_rdma_demo.cluster.objects import (
    DEVICE_CLASSES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Clock,
    JsonObject,
    annotations_of,
    is_finished,
    is_terminating,
    key_of,
    metadata,
    name_of,
    namespace_of,
    node_name_of,
    spec_of,
    status_of,
    timestamp,
    uid_of,
)
from k8s_rdma_demo.kubelet.device_manager import in_background

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from k8s_rdma.wire.protobuf import Method

POD_CLAIM = "resource.kubernetes.io/pod-claim-name"
"""The annotation of a generated claim: its name in the pod's `spec.resourceClaims`."""

CANNOT_ALLOCATE = "cannot allocate all claims"
ELSEWHERE = "resourceclaim not available on the node"
REGISTRY_CHECK_S = 0.1
RETRY_S = 1.0
GET_INFO_TIMEOUT_S, CALL_TIMEOUT_S = 1.0, 45.0
_NOT_FOUND = 404
_log = structlog.get_logger()


def claim_names(pod: JsonObject) -> dict[str, str]:
    """The pod's claims by their names in the pod; empty for one that is not made yet."""
    generated = {
        entry["name"]: entry.get("resourceClaimName") or ""
        for entry in status_of(pod).get("resourceClaimStatuses") or ()
    }
    return {
        entry["name"]: entry.get("resourceClaimName") or generated.get(entry["name"], "")
        for entry in spec_of(pod).get("resourceClaims") or ()
    }


def _names_on_node(pod: JsonObject) -> tuple[str, ...]:
    """The names of all claims of a pod that has a node, that of its extended resources too."""
    extended = status_of(pod).get("extendedResourceClaimStatus") or {}
    return tuple(filter(None, (*claim_names(pod).values(), extended.get("resourceClaimName"))))


def _consumer(pod: JsonObject) -> JsonObject:
    return {"resource": "pods", "name": name_of(pod), "uid": uid_of(pod)}


def _owners(claim: JsonObject) -> list[JsonObject]:
    return [owner for owner in metadata(claim).get("ownerReferences") or () if owner["kind"] == "Pod"]


# The controller


@asynccontextmanager
async def controlling_claims(server: str) -> AsyncIterator[None]:
    """Run the controller of the API server at that URL until the block ends."""
    async with ApiClient.connecting(server) as client:
        controller = ClaimController(client)
        async with in_background(controller.run()):
            await controller.synced()
            yield


class ClaimController:
    """Makes pods' claims of templates, and frees and deletes those of pods that have ended."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._changed = asyncio.Event()
        self._pods, self._claims, self._templates = self._informers = tuple(
            Informer(client, resource, self._on_change)
            for resource in (PODS, RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES)
        )
        self._generated: dict[tuple[str, str], str] = {}

    async def synced(self) -> None:
        """Return when all objects that there were are known."""
        for informer in self._informers:
            await informer.synced.wait()

    async def run(self) -> NoReturn:
        """Serve until cancelled."""
        async with asyncio.TaskGroup() as group:
            for informer in self._informers:
                group.create_task(informer.run())
            await self.synced()
            while True:
                await self._changed.wait()
                self._changed.clear()
                try:
                    await self._sync()
                except ApiError as error:
                    _log.warning("claims.retry", error=error.message)
                    await asyncio.sleep(RETRY_S)
                    self._changed.set()
        raise AssertionError

    def _on_change(self, *_: JsonObject | None) -> None:
        self._changed.set()

    async def _sync(self) -> None:
        for pod in list(self._pods.objects.values()):
            if spec_of(pod).get("resourceClaims") and not _has_ended(pod):
                await self._generate(pod)
        for claim in list(self._claims.objects.values()):
            await self._free(claim)

    async def _generate(self, pod: JsonObject) -> None:
        """Make the claims that the pod has templates for, and report their names in its status."""
        names = claim_names(pod)
        for entry in spec_of(pod)["resourceClaims"]:
            template_key = namespace_of(pod), entry.get("resourceClaimTemplateName") or ""
            template = self._templates.objects.get(template_key)
            if not names[entry["name"]] and template is not None:
                names[entry["name"]] = await self._claim_of(pod, entry["name"], template)
        reported = {entry["name"] for entry in status_of(pod).get("resourceClaimStatuses") or ()}
        from_templates = {
            entry["name"] for entry in spec_of(pod)["resourceClaims"] if not entry.get("resourceClaimName")
        }
        if any(names[name] for name in from_templates - reported):
            statuses = [
                {"name": name, "resourceClaimName": names[name]}
                for name in names
                if names[name] and name in from_templates
            ]
            await self._client.patch_status(PODS, key_of(pod), {"resourceClaimStatuses": statuses})

    async def _claim_of(self, pod: JsonObject, entry: str, template: JsonObject) -> str:
        """The name of a pod's claim, which is made if need be; the informer may not have it yet."""
        key = uid_of(pod), entry
        for claim in self._claims.objects.values():
            is_of_pod = uid_of(pod) in {owner["uid"] for owner in _owners(claim)}
            if is_of_pod and annotations_of(claim).get(POD_CLAIM) == entry:
                return name_of(claim)
        if key not in self._generated:
            content = spec_of(template)
            owner = {"apiVersion": "v1", "kind": "Pod", "name": name_of(pod), "uid": uid_of(pod)}
            meta = {
                **metadata(content),
                "generateName": f"{name_of(pod)}-{entry}-",
                "namespace": namespace_of(pod),
                "annotations": {**annotations_of(content), POD_CLAIM: entry},
                "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
            }
            claim = await self._client.create(RESOURCE_CLAIMS, {"metadata": meta, "spec": spec_of(content)})
            self._generated[key] = name_of(claim)
        return self._generated[key]

    async def _free(self, claim: JsonObject) -> None:
        """Reserve a claim for pods alone that have not ended, end the allocation of one without any."""
        owners = _owners(claim)
        if owners and not any([await self._is_active(claim, owner) for owner in owners]):
            for owner in owners:
                self._generated.pop((owner["uid"], annotations_of(claim).get(POD_CLAIM, "")), None)
            await self._ignoring_absence(self._client.delete(RESOURCE_CLAIMS, claim))
            return
        status = status_of(claim)
        reserved = status.get("reservedFor") or []
        active = [consumer for consumer in reserved if await self._is_active(claim, consumer)]
        if active != reserved or (status.get("allocation") and not active):
            remaining = {**status, "reservedFor": active} if active else {}
            await self._ignoring_absence(
                self._client.update_status(RESOURCE_CLAIMS, {**claim, "status": remaining})
            )

    async def _is_active(self, claim: JsonObject, reference: JsonObject) -> bool:
        """Report whether a pod has not ended; the informer may not have it yet."""
        key = namespace_of(claim), reference["name"]
        pod = self._pods.objects.get(key)
        if pod is None or uid_of(pod) != reference["uid"]:
            try:
                pod = await self._client.get(PODS, key)
            except ApiError as error:
                if error.code != _NOT_FOUND:
                    raise
                return False
        return uid_of(pod) == reference["uid"] and not _has_ended(pod)

    @staticmethod
    async def _ignoring_absence(request: Any) -> None:
        try:
            await request
        except ApiError as error:
            if error.code != _NOT_FOUND:
                raise


def _has_ended(pod: JsonObject) -> bool:
    return is_finished(pod) or (is_terminating(pod) and not node_name_of(pod))


# The scheduler


class DynamicResources:
    """The plugin of that name: filters nodes by pods' claims, and allocates these before pods are bound.

    on_change: called when pods may fit, or may be tried, that did not before.
    """

    def __init__(self, client: ApiClient, clock: Clock, on_change: Callable[[], None]) -> None:
        self._client = client
        self._clock = clock
        self._on_change = on_change
        self._claims = Informer(client, RESOURCE_CLAIMS, self._on_claim)
        self._slices = Informer(client, RESOURCE_SLICES, lambda *_: on_change())
        self._classes = Informer(client, DEVICE_CLASSES, lambda *_: on_change())
        self._assumed: dict[str, JsonObject] = {}
        self._for_resources: dict[str, tuple[JsonObject, Mapping[str, str]]] = {}

    @property
    def informers(self) -> tuple[Informer, ...]:
        """The informers that are to run."""
        return self._claims, self._slices, self._classes

    def waits(self, pod: JsonObject) -> bool:
        """Report whether a claim of the pod is not made yet, so that it is not to be tried."""
        return any(claim is None for claim in self._claims_of(pod))

    def claimed(self, pod: JsonObject, node: JsonObject) -> frozenset[str]:
        """Return the pod's extended resources that the node serves by claim, as no device plugin does."""
        return frozenset(claimed_resources(pod, node, self._classes.objects.values()))

    def refusal(self, pod: JsonObject, node: JsonObject) -> str:
        """Return why the pod's claims cannot be allocated on a node, empty when they can."""
        try:
            claims = self._claims_on(pod, node)
            if not claims:
                return ""
            allocations = filter(None, map(self._allocation, claims))
            if any(not _is_on(allocation, name_of(node)) for allocation in allocations):
                return ELSEWHERE
            return CANNOT_ALLOCATE if self._allocate(claims, name_of(node)) is None else ""
        except AllocationError as error:
            return error.message

    def reserve(self, pod: JsonObject, node: JsonObject) -> bool:
        """Assume that the pod's claims are allocated on a node; False if that is not possible any more."""
        if self.refusal(pod, node):
            return False
        claims = self._claims_on(pod, node)
        self._assumed |= self._allocate(claims, name_of(node)) or {}
        if claims and not name_of(claims[-1]):
            resources = claimed_resources(pod, node, self._classes.objects.values())
            self._for_resources[uid_of(pod)] = claims[-1], resources
        return True

    def unreserve(self, pod: JsonObject) -> None:
        """Free the allocations that were assumed for a pod that is not bound, and were not written."""
        for_resources, _ = self._for_resources.pop(uid_of(pod), ({}, {}))
        for claim in (*self._claims_of(pod), for_resources):
            self._assumed.pop(uid_of(claim or {}), None)

    async def bind(self, pod: JsonObject) -> None:
        """Write the allocations, and reserve the claims for the pod; ApiError."""
        await self._make_claim(pod)
        for claim in self._claims_of(pod):
            allocation = self._allocation(claim) if claim is not None else None
            if claim is None or allocation is None:
                raise ApiError(f"pod {name_of(pod)}: a claim was deleted", code=_NOT_FOUND)
            status, consumer = status_of(claim), _consumer(pod)
            reserved = status.get("reservedFor") or []
            if consumer not in reserved:
                moment = {"allocationTimestamp": timestamp(self._clock())}
                added = {"allocation": moment | allocation, "reservedFor": [*reserved, consumer]}
                await self._client.update_status(RESOURCE_CLAIMS, {**claim, "status": {**status, **added}})

    async def _make_claim(self, pod: JsonObject) -> None:
        """Make the claim for the pod's extended resources, allocated, and name it in the pod's status."""
        claim, resources = self._for_resources.get(uid_of(pod), ({}, {}))
        if not claim:
            return
        meta = {key: value for key, value in metadata(claim).items() if key != "uid"}
        stored = await self._client.create(RESOURCE_CLAIMS, {**claim, "metadata": meta})
        allocation = {"allocationTimestamp": timestamp(self._clock()), **self._assumed[uid_of(claim)]}
        status = {"allocation": allocation, "reservedFor": [_consumer(pod)]}
        await self._client.update_status(RESOURCE_CLAIMS, {**stored, "status": status})
        pod_status = {"extendedResourceClaimStatus": claim_status(pod, stored, resources)}
        await self._client.patch_status(PODS, key_of(pod), pod_status)

    def _claims_on(self, pod: JsonObject, node: JsonObject) -> list[JsonObject]:
        """The pod's claims that are made, and at last the one for resources that the node serves by claim."""
        claims = [claim for claim in self._claims_of(pod) if claim is not None]
        resources = claimed_resources(pod, node, self._classes.objects.values())
        return [*claims, claim_for(pod, resources)] if resources else claims

    def _claims_of(self, pod: JsonObject) -> list[JsonObject | None]:
        """The pod's claims; None for one that is not made yet."""
        return [
            self._claims.objects.get((namespace_of(pod), name)) if name else None
            for name in claim_names(pod).values()
        ]

    def _allocation(self, claim: JsonObject) -> JsonObject | None:
        return status_of(claim).get("allocation") or self._assumed.get(uid_of(claim))

    def _allocate(self, claims: Sequence[JsonObject], node: str) -> dict[str, JsonObject] | None:
        """Allocate the claims that are not yet allocated; return allocations by UID, if there is room."""
        pending = [claim for claim in claims if self._allocation(claim) is None]
        inventory = Inventory(
            slices=list(self._slices.objects.values()),
            classes={name: device_class for (_, name), device_class in self._classes.objects.items()},
            allocations=[found for found in map(self._allocation, self._counted()) if found],
        )
        found = allocate(pending, inventory, node, lambda: str(uuid.uuid4()))
        return None if found is None else dict(zip(map(uid_of, pending), found, strict=True))

    def _counted(self) -> Iterator[JsonObject]:
        """Yield all claims, and those for extended resources that are assumed alone."""
        yield from self._claims.objects.values()
        for claim, _ in self._for_resources.values():
            yield claim

    def _on_claim(self, old: JsonObject | None, new: JsonObject | None) -> None:
        if new is not None and is_for_resources(new) and status_of(new).get("allocation"):
            for owner in _owners(new):
                assumed, _ = self._for_resources.pop(owner["uid"], ({}, {}))
                self._assumed.pop(uid_of(assumed), None)
        if new is None or status_of(new).get("allocation"):
            self._assumed.pop(uid_of(new or old or {}), None)
        was_allocated = bool(old) and bool(status_of(old or {}).get("allocation"))
        is_free = was_allocated and not status_of(new or {}).get("allocation")
        if old is None or is_free:
            self._on_change()


def _is_on(allocation: JsonObject, node: str) -> bool:
    terms = (allocation.get("nodeSelector") or {}).get("nodeSelectorTerms") or ()
    entries = [entry for term in terms for entry in term.get("matchFields") or ()]
    return all(node in entry["values"] for entry in entries)


# Kubelet


class ClaimError(K8sRdmaError):
    """A pod's claims could not be prepared or unprepared now; kubelet tries again."""


@dataclass(slots=True, kw_only=True)
class _PodClaim:
    """A claim of pods of this node. devices: by each driver that has prepared it. pods: their UIDs."""

    name: ClaimName
    drivers: frozenset[str]
    devices: dict[str, tuple[PreparedDevice, ...]] = field(default_factory=dict)
    pods: set[str] = field(default_factory=set)


@asynccontextmanager
async def running_claim_manager(client: ApiClient, node: str, registry: Path) -> AsyncIterator[ClaimManager]:
    """Run a node's claim manager until the block ends. registry: the directory where drivers register."""
    manager = ClaimManager(client, node, registry)
    async with in_background(manager.run()):
        yield manager


class ClaimManager:
    """Kubelet's manager of claims and of the drivers that register in a directory."""

    def __init__(self, client: ApiClient, node: str, registry: Path) -> None:
        self._client = client
        self._node = node
        self._registry = registry
        self._drivers: dict[Path, tuple[str, Path]] = {}
        self._claims: dict[str, _PodClaim] = {}
        self._turn = asyncio.Lock()

    async def run(self) -> NoReturn:
        """Delete the node's slices, as each start of kubelet does, and register drivers until cancelled."""
        self._registry.mkdir(mode=0o750, parents=True, exist_ok=True)
        while True:
            try:
                await self._client.delete_all(RESOURCE_SLICES, f"spec.nodeName={self._node}")
                break
            except ApiError as error:
                _log.warning("slices.not_deleted", error=error.message)
                await asyncio.sleep(RETRY_S)
        while True:
            present = set(self._registry.glob("*.sock"))
            for socket in self._drivers.keys() - present:
                del self._drivers[socket]
            for socket in present - self._drivers.keys():
                await self._register(socket)
            await asyncio.sleep(REGISTRY_CHECK_S)

    async def prepare(self, pod: JsonObject) -> None:
        """Have the pod's claims prepared that are not yet; ClaimError."""
        async with self._turn:
            for name in _names_on_node(pod):
                claim = self._find(pod, name) or await self._read(pod, name)
                claim.pods.add(uid_of(pod))
                self._claims[claim.name.uid] = claim
            claims = [claim for claim in self._claims.values() if uid_of(pod) in claim.pods]
            for driver in sorted(
                {driver for claim in claims for driver in claim.drivers - claim.devices.keys()}
            ):
                new = [claim for claim in claims if driver in claim.drivers - claim.devices.keys()]
                answers = await self._ask(driver, PREPARE, new)
                for claim in new:
                    claim.devices[driver] = answers[claim.name.uid].devices

    async def unprepare(self, pod_uid: str) -> None:
        """Have the claims unprepared that no other pod of this node has; ClaimError."""
        async with self._turn:
            ended = [claim for claim in self._claims.values() if claim.pods == {pod_uid}]
            for driver in sorted({driver for claim in ended for driver in claim.drivers}):
                await self._ask(driver, UNPREPARE, [claim for claim in ended if driver in claim.drivers])
            for claim in self._claims.values():
                claim.pods.discard(pod_uid)
            self._claims = {uid: claim for uid, claim in self._claims.items() if claim.pods}

    def cdi_devices(self, pod: JsonObject, container: str) -> tuple[str, ...]:
        """The qualified names of a container's devices, as the pod's claims have been prepared."""
        names = claim_names(pod)
        containers = [*(spec_of(pod).get("initContainers") or ()), *spec_of(pod)["containers"]]
        resources = next(entry.get("resources") or {} for entry in containers if entry["name"] == container)
        devices: dict[str, None] = {}
        for entry in resources.get("claims") or ():
            claim = self._find(pod, names[entry["name"]])
            for prepared in claim.devices.values() if claim is not None else ():
                for device in prepared:
                    if entry.get("request", device.request) == device.request:
                        devices |= dict.fromkeys(device.cdi)
        extended = status_of(pod).get("extendedResourceClaimStatus") or {}
        claim = self._find(pod, extended.get("resourceClaimName", ""))
        mappings = extended.get("requestMappings") or ()
        requests = {entry["requestName"] for entry in mappings if entry["containerName"] == container}
        for prepared in claim.devices.values() if claim is not None else ():
            for device in prepared:
                if device.request in requests:
                    devices |= dict.fromkeys(device.cdi)
        return tuple(devices)

    def _find(self, pod: JsonObject, name: str) -> _PodClaim | None:
        claims = self._claims.values()
        key = namespace_of(pod), name
        return next((claim for claim in claims if (claim.name.namespace, claim.name.name) == key), None)

    async def _read(self, pod: JsonObject, name: str) -> _PodClaim:
        try:
            claim = await self._client.get(RESOURCE_CLAIMS, (namespace_of(pod), name))
        except ApiError as error:
            raise ClaimError(f"failed to fetch ResourceClaim {name}: {error.message}") from error
        if _consumer(pod) not in (status_of(claim).get("reservedFor") or ()):
            raise ClaimError(f"pod {name_of(pod)} is not allowed to use ResourceClaim {name}")
        devices = (status_of(claim).get("allocation") or {}).get("devices") or {}
        return _PodClaim(
            name=ClaimName(namespace=namespace_of(pod), name=name, uid=uid_of(claim)),
            drivers=frozenset(result["driver"] for result in devices.get("results") or ()),
        )

    async def _ask(
        self, driver: str, method: Method[Any, Any], claims: Sequence[_PodClaim]
    ) -> Mapping[str, ClaimAnswer]:
        endpoints = [endpoint for name, endpoint in self._drivers.values() if name == driver]
        if not endpoints:
            raise ClaimError(f"DRA driver {driver} is not registered")
        names = tuple(claim.name for claim in claims)
        try:
            async with connect(endpoints[-1]) as channel:  # the one that registered last
                answers: Mapping[str, ClaimAnswer] = await call(
                    channel, method, names, timeout_s=CALL_TIMEOUT_S
                )
        except (AioRpcError, MalformedError) as error:
            raise ClaimError(f"{method.name}: {error}") from error
        for name in names:
            why = answers[name.uid].error if name.uid in answers else "no answer"
            if why:
                raise ClaimError(f"{method.name} failed for ResourceClaim {name.name}: {why}")
        return answers

    async def _register(self, socket: Path) -> None:
        try:
            async with connect(socket) as channel:
                info = await call(channel, GET_INFO, None, timeout_s=GET_INFO_TIMEOUT_S)
                await call(channel, NOTIFY, RegistrationStatus(registered=True), timeout_s=GET_INFO_TIMEOUT_S)
        except (AioRpcError, MalformedError) as error:
            _log.info("driver.not_registered", socket=str(socket), error=str(error))
            return
        self._drivers[socket] = info.name, type(socket)(info.endpoint)
