"""The process `k8s-rdma device-plugin`."""

from __future__ import annotations

import asyncio
import signal
from contextlib import ExitStack
from typing import TYPE_CHECKING

import structlog
import uvloop

from k8s_rdma import logs
from k8s_rdma.deviceplugin.device_monitor import DeviceMonitor
from k8s_rdma.deviceplugin.health_events import node_events
from k8s_rdma.deviceplugin.service import DevicePlugin
from k8s_rdma.http_server import listen
from k8s_rdma.http_server.memory import give_back_large_buffers
from k8s_rdma.signals import stop_on_signals

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from k8s_rdma.config.devices import DevicePluginConfig

_log = structlog.get_logger()


def run(config: DevicePluginConfig, *, ignored: Sequence[str] = ()) -> None:
    """Serve until SIGTERM, SIGINT or SIGQUIT. K8sRdmaError when it cannot start.

    ignored: keys of the configuration's file that mean nothing.
    """
    logs.configure("device-plugin")
    give_back_large_buffers()
    for key in ignored:
        _log.warning("setting_ignored", key=key)
    with ExitStack() as opened:
        listener = None
        if config.port is not None:
            listener = opened.enter_context(listen(config.listen, config.port))
        runner = opened.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        runner.run(_until_signalled(config, listener))


async def _until_signalled(config: DevicePluginConfig, listener: socket.socket | None) -> None:
    stop = stop_on_signals(signal.SIGQUIT)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # by default it would end a process that only begins
    if listener is not None:
        host, port = listener.getsockname()[:2]
        _log.info("listening", address=host, port=port)
    async with node_events(config) as heard, DeviceMonitor(config, heard=heard) as monitor:
        plugin = DevicePlugin(config, monitor)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, plugin.renew)
        await plugin.run(stop, listener)
