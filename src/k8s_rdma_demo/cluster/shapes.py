"""JSON types of the fields that this package reads.

A request is checked once, so that later code can rely on the types. Fields that are never read are not
checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from k8s_rdma_demo.cluster.rbac import Role, RoleBinding
from k8s_rdma_demo.cluster.status import bad_request

if TYPE_CHECKING:
    from k8s_rdma_demo.cluster.objects import JsonObject

Quantities = dict[str, str | int | float]


class _Shape(msgspec.Struct, frozen=True, rename="camel"):
    """Unknown fields are tolerated, absent and null ones alike."""


class _Metadata(_Shape, frozen=True):
    name: str | None = None
    generate_name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Object(_Shape, frozen=True):
    metadata: _Metadata | None = None
    spec: dict[str, Any] | None = None
    status: dict[str, Any] | None = None


class _Resources(_Shape, frozen=True):
    limits: Quantities | None = None
    requests: Quantities | None = None


class _Container(_Shape, frozen=True):
    name: str | None = None
    image: str | None = None
    resources: _Resources | None = None


class _Toleration(_Shape, frozen=True):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class _PodSpec(_Shape, frozen=True):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    node_name: str | None = None
    node_selector: dict[str, str] | None = None
    scheduler_name: str | None = None
    termination_grace_period_seconds: int | None = None
    priority: int | None = None
    host_network: bool | None = None
    tolerations: list[_Toleration] | None = None
    scheduling_gates: list[dict[str, Any]] | None = None


class _Condition(_Shape, frozen=True):
    type: str
    status: str


class _ContainerStatus(_Shape, frozen=True):
    ready: bool | None = None
    restart_count: int | None = None
    state: dict[str, dict[str, Any] | None] | None = None
    last_state: dict[str, dict[str, Any] | None] | None = None


class _PodStatus(_Shape, frozen=True):
    phase: str | None = None
    conditions: list[_Condition] | None = None
    container_statuses: list[_ContainerStatus] | None = None
    init_container_statuses: list[_ContainerStatus] | None = None


class _Pod(_Shape, frozen=True):
    metadata: _Metadata | None = None
    spec: _PodSpec | None = None
    status: _PodStatus | None = None


class _Taint(_Shape, frozen=True):
    key: str
    effect: str
    value: str | None = None


class _NodeSpec(_Shape, frozen=True):
    unschedulable: bool | None = None
    taints: list[_Taint] | None = None


class _NodeStatus(_Shape, frozen=True):
    conditions: list[_Condition] | None = None
    addresses: list[dict[str, str]] | None = None


class _Node(_Shape, frozen=True):
    metadata: _Metadata | None = None
    spec: _NodeSpec | None = None
    status: _NodeStatus | None = None


class _Reference(_Shape, frozen=True):
    kind: str | None = None
    name: str | None = None


class _Binding(_Shape, frozen=True):
    metadata: _Metadata | None = None
    target: _Reference | None = None


class _TokenRequestSpec(_Shape, frozen=True):
    expiration_seconds: int | None = None


class _TokenRequest(_Shape, frozen=True):
    spec: _TokenRequestSpec | None = None


_SHAPES: dict[str, type[msgspec.Struct]] = {
    "Pod": _Pod,
    "Node": _Node,
    "Binding": _Binding,
    "TokenRequest": _TokenRequest,
    "Role": Role,
    "ClusterRole": Role,
    "RoleBinding": RoleBinding,
    "ClusterRoleBinding": RoleBinding,
}


def check_shape(kind: str, obj: JsonObject) -> None:
    """Refuse (StatusError 400) an object whose fields have the wrong JSON types; the message names one."""
    try:
        msgspec.convert(obj, _SHAPES.get(kind, _Object))
    except msgspec.ValidationError as error:
        raise bad_request(f"{kind}: {error}") from error
