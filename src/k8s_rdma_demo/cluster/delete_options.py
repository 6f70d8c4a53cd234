"""Options of a deletion, with its preconditions on the object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from k8s_rdma_demo.cluster.objects import JsonObject, ResourceType, metadata, name_of, namespace_of
from k8s_rdma_demo.cluster.status import bad_request, conflict


@dataclass(frozen=True, slots=True, kw_only=True)
class Preconditions:
    """A request's preconditions on the object; empty: unconditional."""

    uid: str = ""
    resource_version: str = ""

    def check(self, resource: ResourceType, obj: JsonObject) -> None:
        """Refuse (StatusError 409) another object, in the words of the API server's storage."""
        found = metadata(obj)
        for name, expected, field_name in (
            ("UID", self.uid, "uid"),
            ("ResourceVersion", self.resource_version, "resourceVersion"),
        ):
            if expected and expected != found[field_name]:
                key = "/".join(part for part in (resource.plural, namespace_of(obj), name_of(obj)) if part)
                why = (
                    f"StorageError: invalid object, Code: 4, Key: /registry/{key}, ResourceVersion: 0, "
                    f"AdditionalErrorMsg: Precondition failed: {name} in precondition: {expected}, "
                    f"{name} in object meta: {found[field_name]}"
                )
                raise conflict(resource, name_of(obj), why)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOptions:
    """`metav1.DeleteOptions`, as far as it is heeded; grace_period_s unset: the object's own.

    orphans: the objects that it owns stay.
    """

    grace_period_s: int | None = None
    preconditions: Preconditions = Preconditions()
    dry_run: bool = False
    orphans: bool = False


def parse_delete_options(document: JsonObject) -> DeleteOptions:
    """Read `metav1.DeleteOptions`; StatusError 400 names the fault."""
    try:
        options = msgspec.convert(document, _DeleteOptions)
    except msgspec.ValidationError as error:
        raise bad_request(f"DeleteOptions: {error}") from error
    preconditions = options.preconditions or _Preconditions()
    for directive in options.dry_run or ():
        require_dry_run(directive)
    return DeleteOptions(
        grace_period_s=options.grace_period_seconds,
        preconditions=Preconditions(
            uid=preconditions.uid or "", resource_version=preconditions.resource_version or ""
        ),
        dry_run=bool(options.dry_run),
        orphans=options.propagation_policy == "Orphan",
    )


def require_dry_run(directive: str) -> None:
    """Refuse (StatusError 400) a `dryRun` that is not `All`."""
    if directive != "All":
        raise bad_request(f'dryRun: Unsupported value: "{directive}": supported values: "All"')


class _Preconditions(msgspec.Struct, frozen=True, rename="camel"):
    uid: str | None = None
    resource_version: str | None = None


class _DeleteOptions(msgspec.Struct, frozen=True, rename="camel"):
    grace_period_seconds: int | None = None
    preconditions: _Preconditions | None = None
    dry_run: tuple[str, ...] | None = None
    propagation_policy: Literal["Orphan", "Background", "Foreground"] | None = None
