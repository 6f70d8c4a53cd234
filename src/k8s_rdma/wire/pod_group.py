"""How a pod says which PodGroup it belongs to.

Sources: `PodSchedulingGroup`, k8s.io/api/core/v1 (Kubernetes 1.36); `PodGroupLabel`,
sigs.k8s.io/scheduler-plugins/apis/scheduling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from k8s_rdma.core.gang import Gang, GangApi

if TYPE_CHECKING:
    from collections.abc import Mapping

LABEL = "scheduling.x-k8s.io/pod-group"


class SchedulingGroup(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`spec.schedulingGroup` of a pod."""

    pod_group_name: str | None = None


def gang_of(namespace: str, group: SchedulingGroup | None, labels: Mapping[str, str]) -> Gang | None:
    """The gang of a pod; the field goes before the label. None of a pod that belongs to none."""
    if group is not None and group.pod_group_name:
        return Gang(api=GangApi.KUBERNETES, namespace=namespace, name=group.pod_group_name)
    if name := labels.get(LABEL):
        return Gang(api=GangApi.COSCHEDULING, namespace=namespace, name=name)
    return None
