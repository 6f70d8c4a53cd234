"""The controllers of Deployments, ReplicaSets and nodes, and the garbage collector of their dependents.

Each looks at all its objects after every change, and writes missing changes. A controller remembers pods
that it has created or deleted until its informer shows them, so that it creates and deletes each only once.

Source (Kubernetes 1.36): `cmd/kube-controller-manager`; the decisions are in `replica_sets`, `deployments`
and `node_lifecycle`. Not simulated: foreground deletion, finalizers, and other workloads.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn

import structlog

from k8s_rdma_demo.cluster import deployments, replica_sets
from k8s_rdma_demo.cluster.client import ApiClient, ApiError, EventRecorder, Informer
from k8s_rdma_demo.cluster.node_lifecycle import (
    EVICTION_RATE,
    NODE_LEASES,
    Eviction,
    due_taints,
    ends_pods,
    eviction_rates,
    eviction_time,
    not_ready_status,
    silent_condition,
    zone_of,
)
from k8s_rdma_demo.cluster.objects import (
    DEPLOYMENTS,
    LEASES,
    NODES,
    PODS,
    REPLICA_SETS,
    Clock,
    JsonObject,
    ResourceType,
    condition_of,
    is_terminating,
    key_of,
    metadata,
    name_of,
    namespace_of,
    node_name_of,
    spec_of,
    status_of,
    system_clock,
    timestamp,
    uid_of,
)
from k8s_rdma_demo.kubelet.device_manager import in_background

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Mapping
    from datetime import datetime

RETRY_S = 1.0
GRACE_S = 50.0
_GONE = frozenset({404, 409})  # no such object, or a newer one; the next change shows it
_OWNERS = {"Deployment": DEPLOYMENTS, "ReplicaSet": REPLICA_SETS}
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerConfig:
    """The configuration of the controllers.

    grace_s: the seconds after which a node whose Lease is not renewed is unreachable
    (`--node-monitor-grace-period`).
    """

    grace_s: float = GRACE_S
    clock: Clock = field(default=system_clock)


@asynccontextmanager
async def managing(server: str, config: ManagerConfig, token: str = "") -> AsyncIterator[None]:
    """Run all controllers of the API server at that URL until the block ends.

    token: of a user with their permissions, if the API server asks for one.
    """
    async with ApiClient.connecting(server, token) as client, AsyncExitStack() as stack:
        controllers = (
            ReplicaSetController(client, config.clock),
            DeploymentController(client, config.clock),
            NodeController(client, config),
            GarbageCollector(client),
        )
        for controller in controllers:
            await stack.enter_async_context(in_background(controller.run()))
        for controller in controllers:
            await controller.synced()
        yield


class Reconciler:
    """Calls `sync` after every change of the objects that it watches, and at the time that `sync` returns."""

    watched: tuple[ResourceType, ...] = ()

    def __init__(self, client: ApiClient) -> None:
        """Make the informers, which do not watch yet."""
        self.client = client
        self.changed = asyncio.Event()
        self.informers = {resource: Informer(client, resource, self.on_change) for resource in self.watched}

    async def synced(self) -> None:
        """Return when all objects that there were are known."""
        for informer in self.informers.values():
            await informer.synced.wait()

    async def run(self) -> NoReturn:
        """Serve until cancelled."""
        async with asyncio.TaskGroup() as group:
            for informer in self.informers.values():
                group.create_task(informer.run())
            await self.synced()
            while True:
                self.changed.clear()
                await self._wait(await self._synced_once())
        raise AssertionError

    def objects(self, resource: ResourceType) -> list[JsonObject]:
        """List the objects of a kind, as they are known."""
        return list(self.informers[resource].objects.values())

    def on_change(self, old: JsonObject | None, new: JsonObject | None) -> None:  # noqa: ARG002 - an informer's
        """Take a change."""
        self.changed.set()

    async def sync(self) -> float | None:
        """Write missing changes; return the seconds after which to look again (unset: at the next change)."""
        raise NotImplementedError

    async def _synced_once(self) -> float | None:
        try:
            return await self.sync()
        except ApiError as error:
            if error.code not in _GONE:
                _log.warning("controller.retry", controller=type(self).__name__, error=error.message)
            return RETRY_S

    async def _wait(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.changed.wait()
        except TimeoutError:
            return


async def ignoring_absence(request: Awaitable[object]) -> None:
    """Send a request about an object that may be gone."""
    try:
        await request
    except ApiError as error:
        if error.code not in _GONE:
            raise


class ReplicaSetController(Reconciler):
    """Keeps as many pods of each set as it asks for."""

    watched = (REPLICA_SETS, PODS)

    def __init__(self, client: ApiClient, clock: Clock) -> None:
        """Start without expectations."""
        super().__init__(client)
        self._recorder = EventRecorder(
            client=client, component="replicaset-controller", clock=clock, about=REPLICA_SETS
        )
        self._created: dict[str, str] = {}
        self._deleted: set[str] = set()

    def on_change(self, old: JsonObject | None, new: JsonObject | None) -> None:
        """Forget the expectations of a pod that is seen."""
        uid = uid_of(new or old or {})
        self._created.pop(uid, None)
        if new is None or is_terminating(new):
            self._deleted.discard(uid)
        super().on_change(old, new)

    async def sync(self) -> None:
        """Claim pods, create and delete them, and report."""
        for replica_set in self.objects(REPLICA_SETS):
            found = replica_sets.claim(replica_set, self.objects(PODS))
            for pod in found.adopted:
                reference = replica_sets.controller_reference(
                    REPLICA_SETS.api_version, replica_set, REPLICA_SETS.kind
                )
                await self._own(pod, reference)
            for pod in found.released:
                await self._own(pod, {"$patch": "delete", "uid": uid_of(replica_set)})
            active = [
                pod
                for pod in (*found.owned, *found.adopted)
                if replica_sets.is_active(pod) and uid_of(pod) not in self._deleted
            ]
            if not is_terminating(replica_set):
                await self._keep_replicas(replica_set, active)
            await self._report(replica_set, active)

    async def _own(self, pod: JsonObject, reference: JsonObject) -> None:
        patch = {"metadata": {"uid": uid_of(pod), "ownerReferences": [reference]}}
        await ignoring_absence(self.client.patch(PODS, key_of(pod), patch))

    async def _keep_replicas(self, replica_set: JsonObject, active: list[JsonObject]) -> None:
        expected = sum(owner == uid_of(replica_set) for owner in self._created.values())
        lacking = replica_sets.replicas_of(replica_set) - len(active) - expected
        for _ in range(lacking):
            pod = await self.client.create(PODS, replica_sets.new_pod(replica_set))
            if key_of(pod) not in self.informers[PODS].objects:
                self._created[uid_of(pod)] = uid_of(replica_set)
            await self._recorder.normal(replica_set, "SuccessfulCreate", f"Created pod: {name_of(pod)}")
        for pod in replica_sets.surplus(active, -lacking) if lacking < 0 else ():
            self._deleted.add(uid_of(pod))
            await ignoring_absence(self.client.delete(PODS, pod))
            await self._recorder.normal(replica_set, "SuccessfulDelete", f"Deleted pod: {name_of(pod)}")

    async def _report(self, replica_set: JsonObject, active: list[JsonObject]) -> None:
        status = replica_sets.status_now(replica_set, active)
        if status != status_of(replica_set):
            await ignoring_absence(self.client.update_status(REPLICA_SETS, {**replica_set, "status": status}))


class DeploymentController(Reconciler):
    """Keeps a set of each deployment's template, and moves replicas to it from former ones."""

    watched = (DEPLOYMENTS, REPLICA_SETS)

    def __init__(self, client: ApiClient, clock: Clock) -> None:
        """Start without expectations."""
        super().__init__(client)
        self._clock = clock
        self._recorder = EventRecorder(
            client=client, component="deployment-controller", clock=clock, about=DEPLOYMENTS
        )

    async def sync(self) -> None:
        """Adopt, create and scale sets, delete those beyond the history, and report."""
        for deployment in self.objects(DEPLOYMENTS):
            if is_terminating(deployment):
                continue
            found = replica_sets.claim(deployment, self.objects(REPLICA_SETS))
            for item in found.adopted:
                reference = replica_sets.controller_reference(
                    DEPLOYMENTS.api_version, deployment, DEPLOYMENTS.kind
                )
                patch = {"metadata": {"ownerReferences": [reference]}}
                await ignoring_absence(self.client.patch(REPLICA_SETS, key_of(item), patch))
            await self._roll(deployment, [*found.owned, *found.adopted])

    async def _roll(self, deployment: JsonObject, sets: list[JsonObject]) -> None:
        new = deployments.new_replica_set(deployment, sets)
        if new is None:
            revision = 1 + max(map(deployments.revision_of, sets), default=0)
            await ignoring_absence(
                self.client.create(REPLICA_SETS, deployments.made_replica_set(deployment, revision))
            )
            return
        old = [item for item in sets if item is not new]
        for name, count in deployments.scales(deployment, new, old).items():
            patch = {"spec": {"replicas": count}}
            former = next(replica_sets.replicas_of(item) for item in sets if name_of(item) == name)
            await ignoring_absence(self.client.patch(REPLICA_SETS, (namespace_of(deployment), name), patch))
            direction = "up" if count > former else "down"
            message = f"Scaled {direction} replica set {name} from {former} to {count}"
            await self._recorder.normal(deployment, "ScalingReplicaSet", message)
        for item in deployments.outdated(deployment, old):
            await ignoring_absence(self.client.delete(REPLICA_SETS, item))
        await self._report(deployment, new, old)

    async def _report(self, deployment: JsonObject, new: JsonObject, old: list[JsonObject]) -> None:
        status = deployments.status_now(deployment, new, old, timestamp(self._clock()))
        if status != status_of(deployment):
            await ignoring_absence(self.client.update_status(DEPLOYMENTS, {**deployment, "status": status}))
        annotations = metadata(deployment).get("annotations") or {}
        if (revision := str(deployments.revision_of(new))) != annotations.get(deployments.REVISION):
            patch = {"metadata": {"annotations": {deployments.REVISION: revision}}}
            await ignoring_absence(self.client.patch(DEPLOYMENTS, key_of(deployment), patch))


class NodeController(Reconciler):
    """Taints nodes that are not ready or silent, and ends the pods that do not tolerate it."""

    watched = (NODES, PODS, LEASES)

    def __init__(self, client: ApiClient, config: ManagerConfig) -> None:
        """Know no node yet."""
        super().__init__(client)
        self._config = config
        self._recorder = EventRecorder(
            client=client, component="taint-eviction-controller", clock=config.clock
        )
        self._renewals: dict[str, tuple[str, float]] = {}
        self._next_evictions: dict[str, float] = {}
        self._is_disrupted = False
        self._ended: set[str] = set()

    def on_change(self, old: JsonObject | None, new: JsonObject | None) -> None:
        """Forget that a pod was ended once that is seen."""
        if new is None or is_terminating(new):
            self._ended.discard(uid_of(new or old or {}))
        super().on_change(old, new)

    async def sync(self) -> float | None:
        """Look at every node; return the seconds to the next moment at which a node or a pod is due."""
        nodes = self.objects(NODES)
        silent = [node for node in nodes if await self._mark_silent(node)]
        if silent:  # the state of their zones is known once they are seen with their new condition
            return None
        rates = eviction_rates(nodes)
        if (
            self._is_disrupted and rates is not None
        ):  # Leases that could not come have the whole time once more
            now_s = asyncio.get_running_loop().time()
            self._renewals = {node: (renewed, now_s) for node, (renewed, _) in self._renewals.items()}
        self._is_disrupted = rates is None
        due = [self._left_s(name_of(node)) for node in nodes]
        due += [await self._taint(node, rates) for node in nodes]
        due += [await self._end_pods(node) for node in nodes]
        return min((seconds for seconds in due if seconds is not None and seconds > 0), default=None)

    async def _mark_silent(self, node: JsonObject) -> bool:
        """Write the condition of a silent node; report whether it had another one."""
        left_s = self._left_s(name_of(node))
        if left_s is None or left_s > 0:
            return False
        condition = silent_condition(node, timestamp(self._config.clock()))
        if condition is None:
            return False
        await self.client.patch_status(NODES, key_of(node), {"conditions": [condition]})
        return True

    async def _taint(self, node: JsonObject, rates: Mapping[str, float] | None) -> float | None:
        """Write the node's taints; return the seconds after which those that end its pods are due."""
        zone, now_s = zone_of(node), asyncio.get_running_loop().time()
        rate = 0.0 if rates is None else rates.get(zone, EVICTION_RATE)
        wait_s = self._next_evictions.get(zone, now_s) - now_s
        eviction = Eviction.DUE if rate and wait_s <= 0 else Eviction.DEFERRED
        if rates is None:
            eviction = Eviction.STOPPED
        taints = due_taints(node, timestamp(self._config.clock()), eviction)
        if taints is not None:
            await self.client.patch(NODES, key_of(node), {"spec": {"taints": taints or None}})
            if ends_pods({"spec": {"taints": taints}}) and not ends_pods(node):
                self._next_evictions[zone] = now_s + 1 / rate
        return wait_s if rate else None

    def _left_s(self, node: str) -> float | None:
        """Return the seconds after which the node is silent, if it has a Lease.

        The time is that of this process, since it saw the Lease change: clocks of nodes may differ.
        """
        lease = self.informers[LEASES].objects.get((NODE_LEASES, node))
        if lease is None:
            return None
        now_s, renewed = asyncio.get_running_loop().time(), str(spec_of(lease).get("renewTime"))
        if self._renewals.get(node, ("", 0.0))[0] != renewed:
            self._renewals[node] = renewed, now_s
        return self._renewals[node][1] + self._config.grace_s - now_s

    async def _end_pods(self, node: JsonObject) -> float | None:
        """Mark and end the node's pods; return the seconds to the next end."""
        now = self._config.clock()
        is_ready = (condition_of(node, "Ready") or {}).get("status") == "True"
        due: list[float] = []
        for pod in self.objects(PODS):
            if node_name_of(pod) != name_of(node):
                continue
            if not is_ready and (status := not_ready_status(pod, now)):
                await ignoring_absence(self.client.patch_status(PODS, key_of(pod), status))
            if (seconds := await self._end_when_due(pod, node, now)) is not None:
                due.append(seconds)
        return min(due, default=None)

    async def _end_when_due(self, pod: JsonObject, node: JsonObject, now: datetime) -> float | None:
        end = None if uid_of(pod) in self._ended else eviction_time(pod, node)
        if end is None:
            return None
        if end > now:
            return (end - now) / timedelta(seconds=1)
        message = f"Marking for deletion Pod {namespace_of(pod)}/{name_of(pod)}"
        self._ended.add(uid_of(pod))
        await self._recorder.normal(pod, "TaintManagerEviction", message)
        await ignoring_absence(self.client.delete(PODS, pod))
        return None


class GarbageCollector(Reconciler):
    """Deletes pods and sets whose controller, a set or a deployment, is gone."""

    watched = (DEPLOYMENTS, REPLICA_SETS, PODS)

    async def sync(self) -> None:
        """Look at every object with such a controller that is not known, and ask the API server for it."""
        for resource in (REPLICA_SETS, PODS):
            for obj in self.objects(resource):
                reference = replica_sets.controller_of(obj)
                kind = _OWNERS.get(str((reference or {}).get("kind")))
                if reference is None or kind is None or is_terminating(obj):
                    continue
                owner = self.informers[kind].objects.get((namespace_of(obj), reference["name"]))
                if owner is None or uid_of(owner) != reference["uid"]:
                    await self._delete_orphan(resource, obj, kind, reference)

    async def _delete_orphan(
        self, resource: ResourceType, obj: JsonObject, kind: ResourceType, reference: JsonObject
    ) -> None:
        try:
            owner = await self.client.get(kind, (namespace_of(obj), reference["name"]))
        except ApiError as error:
            if error.code not in _GONE:
                raise
            owner = {}
        if uid_of(owner) != reference["uid"]:
            await ignoring_absence(self.client.delete(resource, obj))
