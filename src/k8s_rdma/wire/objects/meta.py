"""Metadata of objects (`meta/v1`): ObjectMeta, owner references, managed fields.

Source: k8s.io/apimachinery/pkg/apis/meta/v1, types.go (Kubernetes 1.36).
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec


class PassedOver(msgspec.Struct, frozen=True, gc=False):
    """An object that is there; its content is passed over, which takes a tenth of the time."""


class OwnerReference(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    """An `OwnerReference`: the object that an object is deleted with."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""

    @classmethod
    def of_node(cls, name: str, uid: str) -> OwnerReference:
        """Return the reference to a Node."""
        return cls(api_version="v1", kind="Node", name=name, uid=uid)


class ObjectIdentity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The part of `ObjectMeta` that identifies an object and its version.

    namespace: None for an object of the whole cluster.
    """

    name: str = ""
    namespace: str | None = None
    uid: str = ""
    resource_version: str = ""


class NamedIdentity(ObjectIdentity, frozen=True, kw_only=True):
    """The identity of an object that must have a name."""

    name: str


class ObjectMeta(ObjectIdentity, frozen=True, kw_only=True, omit_defaults=True):
    """The part of an `ObjectMeta` that is read of all pods of a cluster."""

    deletion_timestamp: str | None = None
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None


class WholeMeta(ObjectMeta, frozen=True, kw_only=True, omit_defaults=True):
    """An `ObjectMeta` with the object's origin."""

    generate_name: str = ""
    creation_timestamp: str | None = None
    owner_references: tuple[OwnerReference, ...] | None = None


class NamedMeta(ObjectMeta, frozen=True, kw_only=True):
    """The `ObjectMeta` of an object that must have a name."""

    name: str


class ManagedFieldsEntry(msgspec.Struct, frozen=True, rename="camel"):
    """An entry of `metadata.managedFields`: the fields that one client wrote last, and the time."""

    time: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    fields_v1: dict[str, dict[str, dict[str, Any]]] = msgspec.field(name="fieldsV1", default_factory=dict)
