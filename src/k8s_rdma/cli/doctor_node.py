"""`k8s-rdma doctor node`: reads the node's configuration files, and has the node looked at."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from k8s_rdma.agent.config import AgentConfig, load_device_plugin
from k8s_rdma.cli.doctor import COULD_NOT_LOOK, tell
from k8s_rdma.config.devices_file import load_device_config
from k8s_rdma.config.files import load_config
from k8s_rdma.doctor.looking.host import Host
from k8s_rdma.doctor.looking.node import NodeLook
from k8s_rdma.doctor.node.configuration import ConfigurationFacts
from k8s_rdma.errors import K8sRdmaError, visible
from k8s_rdma.kube.documents import Documents
from k8s_rdma.linux.discovery.netlink_queries import NetlinkQueries
from k8s_rdma.linux.sysfs import Sysfs
from k8s_rdma.server.config import ServerConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from k8s_rdma.config.devices import DevicePluginConfig
    from k8s_rdma.linux.discovery.netlink_queries import NetlinkQueries as Queries

DIRECTORIES = (Path("/etc/k8s-rdma/config"), Path("/etc/k8s-rdma"))
"""Where the chart mounts configuration files, and where they are on a node set up by hand."""
_NODE_NAME = "NODE_NAME"
"""The environment variable that has the node's name in the chart's pods."""
_NAMELESS = "this node"
_AGENT_FILE = "agent.yaml"
_API_TIMEOUT_S = 5.0
"""Of each question; there are a few, and most of the node can be seen without an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """What the command line says; None for what it does not.

    agent, plugin: configuration files. host_root: where the node's root file system is. node: its name.
    server, plugin_url: where these processes are; empty where there should be none.
    """

    agent: Path | None = None
    node: str | None = None
    kubeconfig: str | None = None
    plugin: Path | None = None
    host_root: Path | None = None
    server: str | None = None
    plugin_url: str | None = None
    conf_dir: str | None = None
    bin_dir: str | None = None


def doctor_node(options: NodeOptions, *, as_json: bool, strict: bool) -> int:
    """The exit status: 0, 1, or 2 when this is no node's root file system, or a file cannot be used."""
    try:
        with NetlinkQueries() as queries:
            findings = tuple(look_at(options, queries).findings())
    except (K8sRdmaError, OSError) as error:
        sys.stderr.write(f"k8s-rdma: could not look: {visible(str(error))}\n")
        return COULD_NOT_LOOK
    return tell("node", findings, as_json=as_json, strict=strict)


def look_at(options: NodeOptions, queries: Queries) -> NodeLook:
    """The node that the options name. K8sRdmaError where it is none, or a file cannot be used."""
    agent_file = options.agent or _usual(_AGENT_FILE)
    agent = _agent(options, agent_file)
    root = options.host_root or Path(agent.host_root)
    if not (root / "proc" / "1").is_dir():
        msg = f"--host-root {root}: there is no /proc below it; wanted a node's root file system"
        raise K8sRdmaError(msg)
    plugin, plugin_file = _plugin(agent, options.plugin)
    return NodeLook(
        host=Host(root),
        sysfs=Sysfs(root / "sys"),
        queries=queries,
        agent=agent,
        files=ConfigurationFacts(
            file=None if agent_file is None else str(agent_file),
            looked_for=tuple(str(each / _AGENT_FILE) for each in DIRECTORIES),
        ),
        plugin=plugin,
        plugin_file=plugin_file,
        server_url=_server_url() if options.server is None else options.server or None,
        plugin_url=_plugin_url(plugin) if options.plugin_url is None else options.plugin_url or None,
        conf_dir=options.conf_dir,
        bin_dirs=(options.bin_dir,) if options.bin_dir else None,
        connect=_connect(agent, options.kubeconfig),
    )


def _agent(options: NodeOptions, file: Path | None) -> AgentConfig:
    """Of its file; all defaults without one."""
    node = options.node or os.environ.get(_NODE_NAME) or None
    if file is None:
        return AgentConfig(node=node or _NAMELESS)
    return load_config(AgentConfig, str(file), {"node": node})


def _connect(agent: AgentConfig, kubeconfig: str | None) -> Callable[[], Documents] | None:
    """By the credentials that the command line names, else by the agent's; None without."""
    path = kubeconfig or agent.kubeconfig
    return (lambda: Documents(path, timeout_s=_API_TIMEOUT_S)) if path or agent.in_cluster else None


def _plugin(agent: AgentConfig, path: Path | None) -> tuple[DevicePluginConfig | None, str]:
    """The device plugin's configuration, and its file."""
    if path is None and agent.device_plugin is not None:
        return load_device_plugin(agent), agent.device_plugin
    found = path or _usual("device-plugin.yaml")
    if found is None:
        return None, str(DIRECTORIES[0] / "device-plugin.yaml")
    return load_device_config(str(found), {}).config, str(found)


def _usual(name: str) -> Path | None:
    return next((each / name for each in DIRECTORIES if (each / name).exists()), None)


def _server_url() -> str:
    """By the server's file where it usually is, else by its defaults."""
    found = _usual("server.yaml")
    config = load_config(ServerConfig, str(found), {}) if found else ServerConfig()
    return _url("http" if config.tls is None else "https", config.listen, config.port)


def _plugin_url(plugin: DevicePluginConfig | None) -> str | None:
    if plugin is None or not plugin.port:
        return None
    return _url("http" if plugin.tls is None else "https", plugin.listen, plugin.port)


def _url(scheme: str, listen: str, port: int) -> str:
    host = listen or "127.0.0.1"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
