"""The process `k8s-rdma agent`: how it starts, its parts, and the check of its configuration."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import structlog

from k8s_rdma import process
from k8s_rdma.agent.adoption import Adoption
from k8s_rdma.agent.cdi_socket import CdiSocket
from k8s_rdma.agent.cdi_specs import (
    AttachmentSpecs,
    CdiDirectory,
    CdiSpecs,
    DeviceNodeSource,
    SharedResourceSpecs,
)
from k8s_rdma.agent.claim_metadata import DIRECTORY as METADATA_DIRECTORY
from k8s_rdma.agent.claim_metadata import ClaimMetadata
from k8s_rdma.agent.claim_offers import ClaimOffers
from k8s_rdma.agent.claim_states import described_requests
from k8s_rdma.agent.claims import ClaimCommands, ClaimsSocket
from k8s_rdma.agent.cluster.api_cluster import PodCluster, open_client, open_cluster
from k8s_rdma.agent.cluster.held_addresses import AddressRegistry, HeldAddresses, UnknownAddresses
from k8s_rdma.agent.cluster.no_cluster import NoCluster
from k8s_rdma.agent.cni.add import AddCommand, PodSources
from k8s_rdma.agent.cni.check import CheckCommand
from k8s_rdma.agent.cni.delete import DeleteCommand
from k8s_rdma.agent.cni.grant import Policy
from k8s_rdma.agent.cni.kubelet_devices import PodDeviceLookup
from k8s_rdma.agent.cni.node_access import NodeAccess
from k8s_rdma.agent.cni.service import CniCommands, Service
from k8s_rdma.agent.gpu_monitor import GpuMonitor
from k8s_rdma.agent.host_files import HostFiles, find_executable
from k8s_rdma.agent.ledger_store import (
    CLAIMS_DIRECTORY,
    DIRECTORY,
    ClaimMarkers,
    DeferredDeletes,
    LedgerStore,
    Markers,
    mark_exclusive_devices,
)
from k8s_rdma.agent.live_rates import ClaimCaps, LiveRates
from k8s_rdma.agent.metadata_updates import MetadataUpdates
from k8s_rdma.agent.node import Node
from k8s_rdma.agent.plugins.address_blocks import AddressBlocks
from k8s_rdma.agent.plugins.execution import Plugins
from k8s_rdma.agent.plugins.ipam import CniPlugins, Delegate, IpamPlugins
from k8s_rdma.agent.reconciler import Reconciler
from k8s_rdma.agent.report import Reporter, StateSocket
from k8s_rdma.agent.sampler import Sampler
from k8s_rdma.agent.sandbox_watch import SandboxWatch
from k8s_rdma.agent.software_caps import SoftwareCaps, keep_caps
from k8s_rdma.agent.unix_sockets import (
    CniSocket,
    Handler,
    StillWaiting,
    listen_unix,
    serve_connections,
    wait_until_removed,
)
from k8s_rdma.agent.worker import Worker
from k8s_rdma.config.agent import AgentConfig, load_device_plugin
from k8s_rdma.config.namespace_policies import load_policies, policies_of
from k8s_rdma.config.placement_keys import agent_keys
from k8s_rdma.config.reloading import failures_of
from k8s_rdma.core.devices.pools import Pool
from k8s_rdma.core.kernel import Kernel
from k8s_rdma.core.macs import requested_addresses
from k8s_rdma.core.node_paths import CDI_SOCKET, CLAIMS_SOCKET, CNI_SOCKET, STATE_SOCKET
from k8s_rdma.core.pf_selection import PfRule
from k8s_rdma.core.types import NodeName
from k8s_rdma.errors import K8sRdmaError, MalformedError, Reason
from k8s_rdma.kube.pod_resources import KubeletPodResources
from k8s_rdma.linux.gpus import Gpus
from k8s_rdma.linux.host_root import HostRoot
from k8s_rdma.linux.netns import Namespaces
from k8s_rdma.linux.rdma.character_devices import PodNodes
from k8s_rdma.linux.receipts import REBUILD, CorruptLedgerError, Receipts
from k8s_rdma.process import stop_on_signals
from k8s_rdma.wire.adopt import is_adopt
from k8s_rdma.wire.state_socket import RateChangeCounts

if TYPE_CHECKING:
    import socket

    from k8s_rdma.config.devices import DevicePluginConfig
    from k8s_rdma.core.ledger import Ledger
    from k8s_rdma.kube.client import Client
    from k8s_rdma.wire.cni_socket import Reply, SocketRequest
    from k8s_rdma.wire.placement_keys import KeySource

    Talk = Callable[[socket.socket], Awaitable[None]]

_log = structlog.get_logger()
MOST_READERS = 64

MOST_READERS_OF_USER = 16
"""Readers of `state.sock` are the server, the device plugin, each `doctor node` and `gather`; further
connections are closed."""
MOST_PLUGINS = 128
"""Connections of the device plugin: one for `cdi.sock`, and one for each claim that is prepared."""

MOST_CALLS = 256
"""Connections at a time; a node has 110 pods, and each call is one connection."""

DESCRIPTORS = 8192
"""The limit of file descriptors. `MOST_CALLS` calls, each with its namespace and the pipes of some plugins,
take half of it; the usual soft limit of 1024 is used up by the pods of a starting node."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def run(config: AgentConfig) -> None:
    """Run until SIGTERM or SIGINT; K8sRdmaError when it cannot start."""
    process.configure_logging("agent")
    keys, plugin = read_named(config)
    _allow_descriptors()
    asyncio.run(_main(config, keys, plugin))


def check(config: AgentConfig) -> None:
    """Read all files that a start would read. MalformedError names the field and the file.

    The service account (`inCluster`) is not checked: it depends on where the process runs.
    """
    read_named(config)
    load_policies(config.policy_file)
    if config.kubeconfig is not None:
        from k8s_rdma.kube.client import require_kubeconfig  # noqa: PLC0415  memory of the agent

        require_kubeconfig(config.kubeconfig)


def read_named(config: AgentConfig) -> tuple[KeySource, DevicePluginConfig | None]:
    """Read the placement keys and the device plugin's configuration, None if it is not named.

    MalformedError names the faulty field: one of these two, or `hostRoot` if that is no directory.
    """
    keys, plugin = agent_keys(config.placement_key_file), load_device_plugin(config)
    if not Path(config.host_root).is_dir():
        msg = f"hostRoot {config.host_root}: no such directory; mount the node's root file system there"
        raise MalformedError(msg)
    return keys, plugin


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentHost:
    """The node as its agent finds it: the kernel, files that outlive the agent, other plugins.

    worker: the only thread that uses the kernel and the files.
    run_dir: by its path on the node, too.
    memlock_hook: the path of our executable on the node, see `CdiDirectory`; empty if it is missing.
    sole_cdi_writer: whether all our files in cdi_dir are this agent's.
    pools: the VFs of exclusive resources. rules: which PFs are for ResourceClaims. now: seconds.
    """

    name: NodeName
    boot_id: str
    kernel: Kernel
    worker: Worker
    ledger_store: LedgerStore
    files: HostFiles
    device_nodes: DeviceNodeSource
    plugins: CniPlugins
    cdi_dir: str
    run_dir: str
    memlock_hook: str = ""
    sole_cdi_writer: bool = True
    pools: Sequence[Pool] = ()
    rules: Sequence[PfRule] = ()
    require_rdma: bool = True
    now: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """The node's state, what changes it, and the CDI files that follow it."""

    node: Node
    commands: CniCommands
    specifications: CdiSpecs
    claims: ClaimCommands
    metadata: MetadataUpdates
    live_rates: LiveRates
    claim_caps: ClaimCaps


def build_agent(host: AgentHost, pods: PodSources, on_prepared: Callable[[], Awaitable[None]]) -> Agent:
    """Observe the hardware, without a change.

    on_prepared: awaited after a receipt is on disk, before anything moves to the pod.
    """
    node = Node(
        name=host.name,
        kernel=host.kernel,
        ledger_store=host.ledger_store,
        boot_id=host.boot_id,
        pools=host.pools,
        rules=host.rules,
        require_rdma=host.require_rdma,
        now=host.now,
    )
    directory = CdiDirectory(
        host.files, PurePosixPath(host.cdi_dir), host.device_nodes, memlock_hook=host.memlock_hook
    )
    metadata = ClaimMetadata(
        host.files, PurePosixPath(host.run_dir) / METADATA_DIRECTORY, partial(described_requests, node)
    )
    device_specs = AttachmentSpecs(directory, metadata)
    access = NodeAccess(node=node, worker=host.worker, device_specs=device_specs)
    specifications = CdiSpecs(
        node=node,
        worker=host.worker,
        devices=device_specs,
        shared=SharedResourceSpecs(directory),
        alone=host.sole_cdi_writer,
    )
    delete = DeleteCommand(access, host.plugins)
    commands = CniCommands(
        add=AddCommand(
            access=access, plugins=host.plugins, pods=pods, delete_command=delete, on_prepared=on_prepared
        ),
        delete=delete,
        check=CheckCommand(access, host.plugins, pods),
        caps=SoftwareCaps(node, host.worker, pods.cluster),
        locks=access.locks,
    )
    claims = ClaimCommands(node, host.worker, device_specs.claims, delete, pods)
    return Agent(
        node=node,
        commands=commands,
        specifications=specifications,
        claims=claims,
        metadata=MetadataUpdates(node, metadata, host.worker),
        live_rates=LiveRates(access, pods.cluster),
        claim_caps=ClaimCaps(access, pods.cluster, pods.policy.policies),
    )


def _allow_descriptors() -> None:
    """Raise the limit of descriptors as far as needed; plugins inherit it, and some close them all."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    limit = DESCRIPTORS if hard == unlimited else min(DESCRIPTORS, hard)
    if soft != unlimited and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


async def _main(config: AgentConfig, keys: KeySource, plugin: DevicePluginConfig | None) -> None:
    with closing(Worker()) as worker:
        await _run_on(worker, config, keys, plugin)


async def _run_on(
    worker: Worker, config: AgentConfig, keys: KeySource, plugin: DevicePluginConfig | None
) -> None:
    namespaces = Namespaces(Path(config.host_root))
    client = open_client(config)
    host = await worker.run(_open_host, config, namespaces, plugin, worker, client)
    policies = policies_of(config.policy_file)
    cluster: PodCluster = (
        NoCluster(
            NodeName(config.node),
            keys,
            lambda: host.ledger_store.ledger.generations(),  # noqa: PLW0108 - it is another one each time
        )
        if client is None
        else open_cluster(config, keys, policies, client)
    )
    kubelet = _open_kubelet(config, plugin)
    pod_devices, gpus = _open_lookups(config, plugin, kubelet)
    policy = Policy(
        keys=keys,
        strict=config.strict,
        allow_unplaced=config.allow_unplaced,
        policies=policies,
        memlock=config.memlock_bytes(),
    )
    pods = PodSources(
        policy=policy,
        cluster=cluster,
        devices=pod_devices,
        addresses=_open_addresses(config, client),
    )

    async def on_prepared() -> None:
        sandboxes.follow()
        reporter.publish_soon()

    agent = await worker.run(build_agent, host, pods, on_prepared)
    node, commands, specifications = agent.node, agent.commands, agent.specifications
    live_rates = agent.live_rates
    offers = ClaimOffers(node).publisher
    reporter = Reporter(
        node,
        lambda: (
            *failures_of(keys, policies),
            *live_rates.problems(),
            *agent.claim_caps.problems(),
            *pods.addresses.problems(),
            *node.homes.failures.values(),
        ),
        gpus.gpus,
        live_rates.refusals,
        takes_placements=cluster.takes_placements,
        further=(offers, agent.metadata.publisher),
    )
    sampler = Sampler(
        node=node,
        worker=worker,
        quiet=commands.locks.idle,
        rate_changes=partial(_rate_changes, agent),
        pause_frames=host.kernel.pause_frames,
    )
    service = Service(
        node=node,
        commands=commands,
        namespaces=namespaces,
        reporter=reporter,
        pods_changed=gpus.pods_changed.set,
    )
    adoption = Adoption(node=node, worker=worker, reporter=reporter, pod_devices=pod_devices)
    upkeep = Reconciler(
        commands=commands,
        specifications=specifications,
        reporter=reporter,
        reconcile_s=config.reconcile_s,
    )
    vanished = upkeep.sandbox_vanished.set
    sandboxes = SandboxWatch(node=node, on_host=namespaces.on_host, vanished=vanished)
    loop = asyncio.get_running_loop()

    def look_again() -> None:
        # An attachment makes hundreds of changes: the first one wakes the loop, the others need not.
        if not upkeep.hardware_changed.is_set():
            loop.call_soon_threadsafe(upkeep.hardware_changed.set)

    async def answer(request: SocketRequest, netns: int | None, still_waiting: StillWaiting) -> Reply:
        if is_adopt(request):
            return await adoption.call(request)
        return await service.call(request, netns, still_waiting)

    end_watch = host.kernel.watch(look_again)
    try:
        await upkeep.recover()
        await live_rates.recover()
        sandboxes.start(loop)
        state_socket = StateSocket(reporter.publisher, sampler.counters, cluster.deliver)
        cdi_socket = CdiSocket(specifications.shared, worker)
        claims_socket = ClaimsSocket(agent.claims, offers)
        background_tasks: list[Callable[[], Awaitable[None]]] = [
            upkeep.run,
            reporter.run,
            partial(keep_caps, commands.caps, reporter, every_s=config.reconcile_s),
            cluster.run,
            agent.claims.guard,
            partial(live_rates.run, reporter),
            partial(agent.claim_caps.run, reporter),
            partial(pods.addresses.run, lambda: requested_addresses(node.ledger), reporter),
            specifications.run,
            agent.metadata.run,
            partial(gpus.run, reporter.publish),
        ]
        background_tasks += _publishing(config, client, reporter, cluster)
        talks = {CDI_SOCKET: cdi_socket.talk, CLAIMS_SOCKET: claims_socket.talk}
        await _serve(config, answer, state_socket, talks, background_tasks)
    finally:
        sandboxes.stop(loop)
        await pod_devices.close()
        end_watch()


def _rate_changes(agent: Agent) -> RateChangeCounts:
    live_rates = agent.live_rates
    return RateChangeCounts(
        made=live_rates.changed,
        refused=live_rates.refused,
        waiting=len(live_rates.problems()) + len(agent.claim_caps.problems()),
    )


def _publishing(
    config: AgentConfig, client: Client | None, reporter: Reporter, cluster: PodCluster
) -> Iterable[Callable[[], Awaitable[None]]]:
    if client is None or not config.publish.anything():
        return ()
    from k8s_rdma.agent.cluster.publisher import Publishing  # noqa: PLC0415  memory, as its client

    return (Publishing(config, client, reporter, cluster=cluster).run,)


def open_pod_devices(config: AgentConfig, plugin: DevicePluginConfig | None) -> PodDeviceLookup:
    """Open the lookup of pods' devices; its first query connects to kubelet."""
    return PodDeviceLookup(_open_kubelet(config, plugin), plugin.resources if plugin else ())


def _open_kubelet(config: AgentConfig, plugin: DevicePluginConfig | None) -> KubeletPodResources | None:
    """Open kubelet's API, at the socket that the device plugin's configuration names."""
    if plugin is None:
        return None
    socket = HostRoot(Path(config.host_root)).path_of(plugin.pod_resources)
    return KubeletPodResources(socket, timeout_s=config.pod_resources_timeout_s)


def _open_lookups(
    config: AgentConfig, plugin: DevicePluginConfig | None, kubelet: KubeletPodResources | None
) -> tuple[PodDeviceLookup, GpuMonitor]:
    """Open the lookups of pods' devices and of the node's GPUs, by kubelet."""
    machine = Gpus()
    locate = process.DetachedCall(machine.by_device, name="gpus")
    resources, own = (plugin.resources, plugin.resource_names()) if plugin else ((), ())
    monitor = GpuMonitor(
        kubelet,
        locate,
        present=partial(asyncio.to_thread, machine.present),
        own_resources=own,
        every_s=config.reconcile_s,
    )
    return PodDeviceLookup(kubelet, resources, locate), monitor


def _open_plugins(config: AgentConfig, client: Client | None) -> CniPlugins:
    host_root, timeout_s = Path(config.host_root), config.ipam_timeout_s
    return CniPlugins(
        ipam=IpamPlugins(Plugins(host_root=host_root, timeout_s=timeout_s), _open_blocks(config, client)),
        delegate=Delegate(Plugins(host_root=host_root, timeout_s=timeout_s, reason=Reason.PLUGIN_FAILURE)),
    )


def _open_blocks(config: AgentConfig, client: Client | None) -> AddressBlocks | None:
    if client is None:
        return None
    return AddressBlocks(
        client,
        NodeName(config.node),
        config.publish.lease_namespace,
        Path(config.state_dir) / "address-blocks.json",
    )


def _open_addresses(config: AgentConfig, client: Client | None) -> AddressRegistry:
    if client is None:
        return UnknownAddresses()
    return HeldAddresses(
        client,
        NodeName(config.node),
        config.publish.lease_namespace,
        Path(config.state_dir) / "held-addresses.json",
    )


def open_ledger_store(config: AgentConfig) -> LedgerStore:
    """Load the ledger; a corrupt one also stops deferred DELs: a rebuild needs the interfaces of pods."""
    deferred_deletes = open_deferred_deletes(config)
    markers = Markers(Path(config.run_dir) / "attachments")
    claim_markers = ClaimMarkers(Path(config.run_dir) / CLAIMS_DIRECTORY)
    try:
        with ExitStack() as undo:
            receipts = undo.enter_context(closing(_open_receipts(config, markers, claim_markers)))
            store = LedgerStore(receipts, markers, deferred_deletes, claim_markers)
            undo.pop_all()
            return store
    except CorruptLedgerError:
        deferred_deletes.refuse()
        raise


def _open_receipts(config: AgentConfig, markers: Markers, claim_markers: ClaimMarkers) -> Receipts:
    """Open the ledger; CorruptLedgerError also if it is lost although pods of this boot have VFs."""
    path = Path(config.state_dir) / "ledger.db"
    if path.exists() and path.stat().st_size:
        return Receipts(path)
    containers, pods = markers.count(), len(claim_markers.pods())
    if containers or pods:
        msg = (
            f"ledger {path}: not there, or empty, though {containers} containers and {pods} pods with "
            f"ResourceClaims have something of it; `{REBUILD}` makes a new one from the kernel and the "
            "container runtime"
        )
        raise CorruptLedgerError(msg)
    return Receipts(path)


def open_deferred_deletes(config: AgentConfig) -> DeferredDeletes:
    """Open the directory of DELs that found no agent."""
    return DeferredDeletes(Path(config.run_dir) / DIRECTORY)


def open_kernel(config: AgentConfig, namespaces: Namespaces, ledger: Ledger) -> Kernel:
    """Open the configured kernel; it also manages omitted PFs whose VFs pods have.

    Only the configured one is imported: each takes 1 to 2 MiB.
    """
    if config.kernel == "virtual":
        from k8s_rdma.linux.virtual.kernel import VirtualSriov  # noqa: PLC0415

        return VirtualSriov(namespaces)
    from k8s_rdma.linux.kernel import SriovKernel  # noqa: PLC0415

    pfs_in_use = frozenset(vf.pf for vf in (*ledger.holders(), *ledger.prepared_vfs()))
    return SriovKernel(namespaces, replace(config.hardware.to_core(), allocated=pfs_in_use))


def _open_host(
    config: AgentConfig,
    namespaces: Namespaces,
    plugin: DevicePluginConfig | None,
    worker: Worker,
    client: Client | None,
) -> AgentHost:
    """Open the host of the configuration; the worker closes its kernel and its ledger."""
    ledger_store = worker.opened.enter_context(closing(open_ledger_store(config)))
    kernel = worker.opened.enter_context(closing(open_kernel(config, namespaces, ledger_store.ledger)))
    pools = plugin.pools() if plugin else ()
    mark_exclusive_devices(Path(config.run_dir), present=bool(pools))
    files = HostFiles(Path(config.host_root))
    return AgentHost(
        name=NodeName(config.node),
        boot_id=BOOT_ID.read_text().strip(),
        kernel=kernel,
        worker=worker,
        ledger_store=ledger_store,
        files=files,
        device_nodes=PodNodes(),
        cdi_dir=config.cdi_dir,
        run_dir=config.run_dir,
        memlock_hook=find_executable(files, config.cni_path),
        sole_cdi_writer=config.kernel == "linux" or plugin is not None,
        plugins=_open_plugins(config, client),
        pools=pools,
        rules=config.hardware.to_core().rules,
        require_rdma=config.kernel == "linux" and config.hardware.require_rdma,
    )


async def _serve(
    config: AgentConfig,
    answer: Handler,
    state_socket: StateSocket,
    talks: Mapping[str, Talk],
    background_tasks: Iterable[Callable[[], Awaitable[None]]],
) -> None:
    """Serve all sockets until a signal; calls under way are undone, and the runtime retries them.

    talks: serve the device plugin's connections, by socket. background_tasks: run as long as the sockets.
    K8sRdmaError when `cni.sock` is removed: no executable could call any more, and markers may be lost as
    well. The next start makes both anew.
    """
    run_dir = Path(config.run_dir)
    stop = stop_on_signals()
    taken_away = False

    async def end_when_taken_away() -> None:
        nonlocal taken_away
        await wait_until_removed(run_dir / CNI_SOCKET)
        taken_away = True
        stop.set()

    with ExitStack() as opened:
        state = opened.enter_context(listen_unix(run_dir / STATE_SOCKET, 0o660, config.state_group))
        calls = opened.enter_context(listen_unix(run_dir / CNI_SOCKET, 0o600))
        plugins = {
            opened.enter_context(listen_unix(run_dir / name, 0o600)): talk for name, talk in talks.items()
        }
        _log.info("agent_ready", run_dir=str(run_dir))
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(
                    serve_connections(
                        state, state_socket.talk, limit=MOST_READERS, most_of_user=MOST_READERS_OF_USER
                    )
                ),
                tasks.create_task(serve_connections(calls, CniSocket(answer).talk, limit=MOST_CALLS)),
                *(
                    tasks.create_task(serve_connections(listener, talk, limit=MOST_PLUGINS))
                    for listener, talk in plugins.items()
                ),
                *(
                    tasks.create_task(_running(background_task))
                    for background_task in (end_when_taken_away, *background_tasks)
                ),
            ]
            await stop.wait()
            for task in running:
                task.cancel()
    if taken_away:
        msg = f"{run_dir / CNI_SOCKET} was taken away: the CNI executable cannot call the agent; restart it"
        raise K8sRdmaError(msg)
    _log.info("agent_stopped")


async def _running(work: Callable[[], Awaitable[None]]) -> None:
    await work()
