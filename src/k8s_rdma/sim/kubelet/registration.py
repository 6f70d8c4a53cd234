"""Kubelet's checks of a plugin that registers.

Source: `pkg/kubelet/cm/devicemanager/plugin/v1beta1/server.go`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from k8s_rdma.core.devices.device_plugin_api import DEVICE_PLUGIN_VERSION
from k8s_rdma.kube.grpc_calls import RefusedCallError, StatusCode

if TYPE_CHECKING:
    from k8s_rdma.core.devices.device_plugin_api import PluginRegistration

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_MAX_DOMAIN = 253
_MAX_NAME = 63
_QUOTA = "requests."


def check_registration(registration: PluginRegistration) -> None:
    """RefusedCallError, with the code that every error of kubelet has, for what it does not take."""
    if registration.version != DEVICE_PLUGIN_VERSION:
        raise RefusedCallError(
            StatusCode.UNKNOWN,
            f'requested API version "{registration.version}" is not supported by kubelet. Supported version '
            f'is ["{DEVICE_PLUGIN_VERSION}"]',
        )
    if not _is_extended_resource(registration.resource):
        raise RefusedCallError(StatusCode.UNKNOWN, f'the ResourceName "{registration.resource}" is invalid')


def _is_extended_resource(resource: str) -> bool:
    """Qualified by a domain that is not Kubernetes' own, and so that a quota can name it as well."""
    domain, slash, name = resource.partition("/")
    return bool(
        slash
        and "kubernetes.io/" not in resource
        and not resource.startswith(_QUOTA)
        and _DOMAIN.fullmatch(domain)
        and len(_QUOTA + domain) <= _MAX_DOMAIN
        and _NAME.fullmatch(name)
        and len(name) <= _MAX_NAME
    )
