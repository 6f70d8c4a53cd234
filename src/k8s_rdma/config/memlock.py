"""Amounts of locked memory in configurations."""

from __future__ import annotations

from typing import Annotated

import msgspec

from k8s_rdma.wire.annotation import parse_memlock

MemlockText = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(unlimited|\d+(\.\d+)?([kMGTPE]|[KMGTPE]i)?)$",
        description="an amount of memory such as 64Gi, or unlimited",
    ),
]


def memlock_bytes(key: str, text: str) -> int:
    """Read an amount of locked memory; ValueError names the key."""
    try:
        return parse_memlock(text)
    except ValueError as error:
        msg = f"{key}: {error}"
        raise ValueError(msg) from error
