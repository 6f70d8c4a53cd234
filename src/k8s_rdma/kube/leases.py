"""Leases: of the extender that binds, and of nodes that publish."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from lightkube.types import PatchType

from k8s_rdma.kube.api import ApiRefusedError
from k8s_rdma.kube.calls import named_errors, segment
from k8s_rdma.kube.objects import LeaseObject

if TYPE_CHECKING:
    from lightkube import AsyncClient

    from k8s_rdma.kube.api import LeaseView


async def get_lease(client: AsyncClient, namespace: str, name: str) -> LeaseView | None:
    """`GET /apis/coordination.k8s.io/v1/namespaces/NS/leases/NAME`."""
    try:
        with named_errors(f"get lease {namespace}/{name}"):
            lease = await client.get(LeaseObject, segment(name), namespace=segment(namespace))
    except ApiRefusedError as refused:
        if refused.status == 404:
            return None
        raise
    return lease.view()


async def write_lease(client: AsyncClient, lease: LeaseView) -> LeaseView:
    """`POST` without a version; else `PATCH`, which leaves alone what others keep in the object."""
    with named_errors(f"write lease {lease.namespace}/{lease.name}"):
        written, namespace = LeaseObject.of(lease), segment(lease.namespace)
        if not lease.version:
            return (await client.create(written)).view()
        name, spec = segment(lease.name), msgspec.to_builtins(written.spec)
        patch = {"metadata": {"resourceVersion": lease.version}, "spec": spec}
        changed = await client.patch(
            LeaseObject, name, patch, namespace=namespace, patch_type=PatchType.MERGE
        )
        return changed.view()
