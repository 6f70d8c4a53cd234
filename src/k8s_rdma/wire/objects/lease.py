"""Leases (`coordination.k8s.io/v1`)."""

from __future__ import annotations

import msgspec


class LeaseSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A Lease's specification, without the time of the renewal, which is written as text and read as time."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
