"""Checks of the files that an agent's configuration names, at a start and by `check-config`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from k8s_rdma.agent.config import load_device_plugin
from k8s_rdma.config.namespace_policies import load_policies
from k8s_rdma.config.placement_keys import agent_keys
from k8s_rdma.errors import MalformedError

if TYPE_CHECKING:
    from k8s_rdma.agent.config import AgentConfig
    from k8s_rdma.config.devices import DevicePluginConfig
    from k8s_rdma.wire.placement_keys import KeySource


def read_named(config: AgentConfig) -> tuple[KeySource, DevicePluginConfig | None]:
    """Read the placement keys and the device plugin's configuration, None where none is named.

    MalformedError names the faulty field: one of these two, or `hostRoot` where that is no directory.
    """
    keys, plugin = agent_keys(config.placement_key_file), load_device_plugin(config)
    if not Path(config.host_root).is_dir():
        msg = f"hostRoot {config.host_root}: no such directory; mount the node's root file system there"
        raise MalformedError(msg)
    return keys, plugin


def check(config: AgentConfig) -> None:
    """Read all files that a start would read. MalformedError names the field and the file.

    The service account (`inCluster`) is not checked: it depends on where the process runs.
    """
    read_named(config)
    load_policies(config.policy_file)
    if config.kubeconfig is not None:
        from k8s_rdma.kube.client import require_kubeconfig  # noqa: PLC0415  memory of the agent

        require_kubeconfig(config.kubeconfig)
