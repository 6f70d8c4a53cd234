"""What a request expects of the object that it is about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from k8s_rdma_demo.cluster.objects import JsonObject, metadata, name_of, namespace_of
from k8s_rdma_demo.cluster.status import bad_request, conflict

if TYPE_CHECKING:
    from k8s_rdma_demo.cluster.resources import ResourceType


@dataclass(frozen=True, slots=True, kw_only=True)
class Preconditions:
    """What a request expects of the object; empty: no matter."""

    uid: str = ""
    resource_version: str = ""

    def check(self, resource: ResourceType, obj: JsonObject) -> None:
        """StatusError 409 in the words of the API server's storage."""
        found = metadata(obj)
        for name, wanted, field_name in (
            ("UID", self.uid, "uid"),
            ("ResourceVersion", self.resource_version, "resourceVersion"),
        ):
            if wanted and wanted != found[field_name]:
                key = "/".join(part for part in (resource.plural, namespace_of(obj), name_of(obj)) if part)
                why = (
                    f"StorageError: invalid object, Code: 4, Key: /registry/{key}, ResourceVersion: 0, "
                    f"AdditionalErrorMsg: Precondition failed: {name} in precondition: {wanted}, "
                    f"{name} in object meta: {found[field_name]}"
                )
                raise conflict(resource, name_of(obj), why)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOptions:
    """`metav1.DeleteOptions`, as far as it is heeded; grace_period_s None: the object's own."""

    grace_period_s: int | None = None
    preconditions: Preconditions = Preconditions()


def parse_delete_options(document: JsonObject) -> DeleteOptions:
    """Read `metav1.DeleteOptions`; StatusError 400 names what is wrong."""
    try:
        options = msgspec.convert(document, _DeleteOptions)
    except msgspec.ValidationError as error:
        raise bad_request(f"DeleteOptions: {error}") from error
    wanted = options.preconditions or _Preconditions()
    return DeleteOptions(
        grace_period_s=options.grace_period_seconds,
        preconditions=Preconditions(uid=wanted.uid or "", resource_version=wanted.resource_version or ""),
    )


class _Preconditions(msgspec.Struct, frozen=True, rename="camel"):
    uid: str | None = None
    resource_version: str | None = None


class _DeleteOptions(msgspec.Struct, frozen=True, rename="camel"):
    grace_period_seconds: int | None = None
    preconditions: _Preconditions | None = None
