"""Nodes, and the taints and tolerations of nodes and devices (`core/v1`, `resource.k8s.io/v1`).

Source: k8s.io/api/core/v1 and k8s.io/api/resource/v1, types.go (Kubernetes 1.36).
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec

from k8s_rdma.wire.objects.meta import ObjectMeta


class ApiTaint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A taint of a node or of a device."""

    key: str
    value: str = ""
    effect: str = ""


class ApiToleration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A toleration of such taints."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class EndingToleration(ApiToleration, frozen=True, kw_only=True, rename="camel"):
    """A toleration with its end, if it has one: admission adds two to each pod that end after 5 minutes."""

    toleration_seconds: int | None = None


class NodeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A node's specification."""

    unschedulable: bool | None = None
    taints: tuple[ApiTaint, ...] | None = None


class NodeAddress(msgspec.Struct, frozen=True, gc=False):
    """An address of a node."""

    type: str
    address: str


class NodeAddresses(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a node's status that says how to reach it."""

    addresses: tuple[NodeAddress, ...] | None = None

    def internal(self) -> tuple[str, ...]:
        """Return `InternalIP` and `InternalDNS`, in the object's order."""
        return tuple(
            entry.address for entry in self.addresses or () if entry.type in ("InternalIP", "InternalDNS")
        )


class NodeCondition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A condition of a node."""

    type: str = ""
    last_heartbeat_time: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


class NodeStatus(NodeAddresses, frozen=True, kw_only=True):
    """A node's status."""

    capacity: dict[str, str | int] | None = None
    conditions: tuple[NodeCondition, ...] | None = None


class KubeNode(msgspec.Struct, frozen=True, kw_only=True):
    """A Node."""

    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()
