"""PodGroups: how many of a gang's pods are to be bound together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from lightkube.core.resource import ApiInfo, NamespacedResource, ResourceDef

from k8s_rdma.core.gang import Gang, GangApi
from k8s_rdma.kube.api import ApiRefusedError
from k8s_rdma.kube.calls import named_errors, segment

if TYPE_CHECKING:
    from lightkube import AsyncClient

_NOT_FOUND = 404


class _GangPolicy(msgspec.Struct, frozen=True):
    minCount: int = 0  # noqa: N815  the API's name


class _Policy(msgspec.Struct, frozen=True):
    gang: _GangPolicy | None = None


class _Spec(msgspec.Struct, frozen=True):
    schedulingPolicy: _Policy = _Policy()  # noqa: N815  the API's name


class PodGroupObject(msgspec.Struct, NamespacedResource):
    """`scheduling.k8s.io/v1alpha2` PodGroup (Kubernetes 1.36)."""

    _api_info = ApiInfo(
        resource=ResourceDef(GangApi.KUBERNETES.value, "v1alpha2", "PodGroup"),
        plural="podgroups",
        verbs=["get"],
    )
    spec: _Spec = _Spec()

    @property
    def min_count(self) -> int:
        """How many pods are to be bound together; 0 where its policy is another one."""
        gang = self.spec.schedulingPolicy.gang
        return gang.minCount if gang else 0


class _CoschedulingSpec(msgspec.Struct, frozen=True):
    minMember: int = 0  # noqa: N815  the API's name


class CoschedulingPodGroupObject(msgspec.Struct, NamespacedResource):
    """`scheduling.x-k8s.io/v1alpha1` PodGroup of the plug-in Coscheduling."""

    _api_info = ApiInfo(
        resource=ResourceDef(GangApi.COSCHEDULING.value, "v1alpha1", "PodGroup"),
        plural="podgroups",
        verbs=["get"],
    )
    spec: _CoschedulingSpec = _CoschedulingSpec()

    @property
    def min_count(self) -> int:
        """How many pods are to be bound together."""
        return self.spec.minMember


_KINDS: dict[GangApi, type[PodGroupObject | CoschedulingPodGroupObject]] = {
    GangApi.KUBERNETES: PodGroupObject,
    GangApi.COSCHEDULING: CoschedulingPodGroupObject,
}


async def get_min_count(client: AsyncClient, gang: Gang) -> int:
    """`GET /apis/GROUP/VERSION/namespaces/NS/podgroups/NAME`: how many pods are to be bound together.

    A label without a PodGroup makes no gang: nobody else would hold its pods together either. A field without
    one is refused (404): kube-scheduler waits for the PodGroup as well.
    """
    try:
        with named_errors(f"get podgroup {gang} of {gang.api.value}"):
            found = await client.get(_KINDS[gang.api], segment(gang.name), namespace=segment(gang.namespace))
    except ApiRefusedError as refused:
        if refused.status == _NOT_FOUND and gang.api is GangApi.COSCHEDULING:
            return 0
        raise
    return found.min_count
