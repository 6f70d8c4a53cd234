"""Versions of the CNI specification: which are spoken here, and which a plugin says that it speaks.

Source: CNI specification 1.1.0, section 2 "VERSION"; the versions are those that libcni knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from k8s_rdma.errors import K8sRdmaError, Reason
from k8s_rdma.wire.json import decode, shown

if TYPE_CHECKING:
    from collections.abc import Iterable

SUPPORTED_VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
"""Oldest first."""
WITHOUT_INTERFACES = ("0.1.0", "0.2.0")
"""Their results are one IPv4 and one IPv6 address, and know no interfaces; nor is there a `prevResult`."""
WITH_IP_VERSION = ("0.3.0", "0.3.1", "0.4.0")
"""In their results each address tells its IP version."""
WITH_DETAILS = ("1.1.0",)
"""An interface has MTU and PCI address, and a route more than destination and gateway."""
SINCE_CHECK = SUPPORTED_VERSIONS[SUPPORTED_VERSIONS.index("0.4.0") :]
SINCE_GC = SUPPORTED_VERSIONS[SUPPORTED_VERSIONS.index("1.1.0") :]
"""And STATUS."""


class _Versions(msgspec.Struct, frozen=True, rename="camel"):
    supported_versions: tuple[str, ...]


_decoder = msgspec.json.Decoder(_Versions)


def check_version(version: str) -> None:
    """K8sRdmaError (`INCOMPATIBLE_CNI_VERSION`) unless results can be given in this version."""
    if version not in SUPPORTED_VERSIONS:
        raise K8sRdmaError(
            f"incompatible CNI version: the network configuration asks for {shown(version)}",
            reason=Reason.INCOMPATIBLE_CNI_VERSION,
            details=f"supported are {', '.join(SUPPORTED_VERSIONS)}",
        )


def decode_versions(stdout: bytes) -> tuple[str, ...]:
    """What a plugin answers to VERSION; MalformedError when that is no such answer."""
    return decode(stdout, _decoder, "VERSION result").supported_versions


def highest_common(theirs: Iterable[str], at_most: str = SUPPORTED_VERSIONS[-1]) -> str | None:
    """The newest version that is spoken here and by them, not above one that is spoken here."""
    spoken = set(theirs)
    newest_first = reversed(SUPPORTED_VERSIONS[: SUPPORTED_VERSIONS.index(at_most) + 1])
    return next((version for version in newest_first if version in spoken), None)
