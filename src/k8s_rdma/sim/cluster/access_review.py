"""`authorization/v1` SubjectAccessReview: whether somebody may do something, by the roles in the store.

Source: `pkg/registry/authorization/subjectaccessreview/rest.go`. Nothing is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from k8s_rdma.sim.cluster.rbac import User, allowed
from k8s_rdma.sim.cluster.resources import ResourceType, Target
from k8s_rdma.sim.cluster.status import bad_request

if TYPE_CHECKING:
    from k8s_rdma.sim.cluster.objects import JsonObject
    from k8s_rdma.sim.cluster.store import Store

PATH = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class _Attributes(msgspec.Struct, frozen=True):
    verb: str
    resource: str
    group: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    resource_attributes: _Attributes
    user: str = ""
    groups: tuple[str, ...] = ()


class _Review(msgspec.Struct, frozen=True):
    spec: _Spec


def review(document: JsonObject, store: Store) -> JsonObject:
    """The document with its answer; StatusError 400 for one that asks nothing."""
    try:
        spec = msgspec.convert(document, _Review).spec
    except msgspec.ValidationError as error:
        raise bad_request(str(error)) from error
    asked = spec.resource_attributes
    kind = ResourceType(group=asked.group, version="", plural=asked.resource, kind="", namespaced=True)
    target = Target(resource=kind, namespace=asked.namespace, name=asked.name, subresource=asked.subresource)
    user = User(name=spec.user, groups=frozenset(spec.groups))
    return document | {"status": {"allowed": allowed(user, asked.verb, target, store)}}
