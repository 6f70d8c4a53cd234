"""The process `k8s-rdma agent`."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from k8s_rdma import logs
from k8s_rdma.agent.cni_socket import CniSocket
from k8s_rdma.agent.ipam import IpamPlugins
from k8s_rdma.agent.markers import Markers
from k8s_rdma.agent.node import Node
from k8s_rdma.agent.service import Service
from k8s_rdma.agent.state_socket import StatePublisher
from k8s_rdma.agent.unix_socket import listen_unix, serve_connections
from k8s_rdma.agent.verbs import Verbs
from k8s_rdma.agent.worker import Worker
from k8s_rdma.config import load_key
from k8s_rdma.core.ids import NodeName
from k8s_rdma.linux.netns import Namespaces
from k8s_rdma.linux.receipts import Receipts
from k8s_rdma.sim.virtual.kernel import VirtualSriov

if TYPE_CHECKING:
    from k8s_rdma.agent.config import AgentConfig
    from k8s_rdma.core.kernel import Kernel

_log = structlog.get_logger()
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def run(config: AgentConfig) -> None:
    """Run until SIGTERM or SIGINT; K8sRdmaError when it cannot start."""
    logs.configure("agent")
    key = load_key(config.placement_key_file)
    asyncio.run(_main(config, key))


async def _main(config: AgentConfig, key: bytes | None) -> None:
    worker = Worker()
    namespaces = Namespaces(Path(config.host_root))
    kernel = await worker.run(VirtualSriov, namespaces)
    node = await worker.run(_open_node, config, kernel)
    ipam = IpamPlugins(host_root=Path(config.host_root), timeout_s=config.ipam_timeout_s)
    verbs = Verbs(node=node, worker=worker, ipam=ipam, key=key)
    service = Service(node=node, verbs=verbs, worker=worker, namespaces=namespaces)
    loop = asyncio.get_running_loop()

    def look_again() -> None:
        # An attachment makes hundreds of changes: once told, the loop need not wake for each of them.
        if not service.hardware_changed.is_set():
            loop.call_soon_threadsafe(service.hardware_changed.set)

    end_watch = kernel.watch(look_again)
    try:
        await service.recover()
        await _serve(Path(config.run_dir), service)
    finally:
        end_watch()
        worker.close()
        kernel.close()


def _open_node(config: AgentConfig, kernel: Kernel) -> Node:
    return Node(
        name=NodeName(config.node),
        kernel=kernel,
        receipts=Receipts(Path(config.state_dir) / "ledger.db"),
        markers=Markers(Path(config.run_dir) / "attachments"),
        boot_id=BOOT_ID.read_text().strip(),
    )


async def _serve(run_dir: Path, service: Service) -> None:
    """Serve both sockets until a signal; calls that are under way are undone, and answered by a retry."""
    publisher = StatePublisher(service.report())
    cni = CniSocket(lambda request, netns: service.call(publisher, request, netns))
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    with (
        listen_unix(run_dir / "state.sock", 0o666) as state,
        listen_unix(run_dir / "cni.sock", 0o600) as calls,
    ):
        _log.info("agent_ready", run_dir=str(run_dir))
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(serve_connections(state, publisher.talk)),
                tasks.create_task(serve_connections(calls, cni.talk)),
                tasks.create_task(service.watch(publisher)),
            ]
            await stop.wait()
            for task in running:
                task.cancel()
    _log.info("agent_stopped")
