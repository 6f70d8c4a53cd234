"""The configuration files of all processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.config.agent import AgentConfig
from k8s_rdma.config.devices import DevicePluginConfig
from k8s_rdma.config.extender import ExtenderConfig
from k8s_rdma.config.init import InitConfig
from k8s_rdma.config.server import ServerConfig
from k8s_rdma.config.web import WebConfig
from k8s_rdma.config.webhook import WebhookConfig

if TYPE_CHECKING:
    import msgspec

CONFIGURATIONS: dict[str, type[msgspec.Struct]] = {
    "init": InitConfig,
    "agent": AgentConfig,
    "server": ServerConfig,
    "device-plugin": DevicePluginConfig,
    "extender": ExtenderConfig,
    "webhook": WebhookConfig,
    "web": WebConfig,
}
"""The model of the file that a process reads, by the name of its command."""
