"""Telling kubelet that a resource is served."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.errors import K8sRdmaError, Reason
from k8s_rdma.kube.grpc_calls import AioRpcError, call, connect
from k8s_rdma.wire.device_plugin_api import REGISTER

if TYPE_CHECKING:
    from pathlib import Path

    from k8s_rdma.core.devices.device_plugin_api import PluginRegistration

KUBELET_SOCKET = "kubelet.sock"

TIMEOUT_S = 15.0
"""Kubelet itself tries to connect to a plugin for 10 s (Kubernetes 1.36,
`pkg/kubelet/cm/devicemanager/plugin/v1beta1/client.go`)."""


async def register(kubelet: Path, registration: PluginRegistration) -> None:
    """Register with the kubelet of a socket. K8sRdmaError (`KUBELET_FAILURE`) when it does not take it."""
    channel = connect(kubelet)
    try:
        await call(channel, REGISTER, registration, timeout_s=TIMEOUT_S)
    except AioRpcError as error:
        msg = f"kubelet at {kubelet}: {error.code().name}: {error.details()}"
        raise K8sRdmaError(msg, reason=Reason.KUBELET_FAILURE) from error
    finally:
        await channel.close()
