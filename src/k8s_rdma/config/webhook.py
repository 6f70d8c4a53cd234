"""The configuration file of `k8s-rdma webhook`."""

from __future__ import annotations

from typing import Annotated

import msgspec

from k8s_rdma.config.addresses import WEBHOOK_PORT
from k8s_rdma.config.devices import HUSTCAT_RESOURCE, MOUNT_RESOURCE, SLOT_RESOURCE
from k8s_rdma.config.field_types import NodeText
from k8s_rdma.config.ports import Port
from k8s_rdma.config.tls import TlsConfig
from k8s_rdma.wire.cdi import ResourceText


class WebhookConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Configuration of the webhook, in YAML with these keys in camelCase.

    listen: the address to listen on; empty for all of them, IPv6 and IPv4.
    port: TCP; 0 for a free one. The environment variable PORT overrides it.
    tls: its files, because the API server accepts HTTPS only. None for plain HTTP, behind a proxy.
    scheduler_name: for pods that name no scheduler; None if the cluster's own asks the extender.
    slot: the resource by which a container gets device nodes, if there is one.
    device_resources: the others; a container that requests one gets no slot.
    max_connections: at a time.
    """

    listen: str = ""
    port: Port = WEBHOOK_PORT
    tls: TlsConfig | None = None
    scheduler_name: NodeText | None = None
    slot: ResourceText | None = SLOT_RESOURCE
    device_resources: tuple[ResourceText, ...] = (MOUNT_RESOURCE, HUSTCAT_RESOURCE)
    max_connections: Annotated[int, msgspec.Meta(ge=8, le=100_000)] = 512
