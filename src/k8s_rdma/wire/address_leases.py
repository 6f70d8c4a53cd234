"""Names of the Leases that hold a MAC, a GUID, or a block of addresses for one node.

`addresses.mac.02-00-00-00-00-01` and `addresses.guid.02-00-00-ff-fe-00-00-01` hold one address,
`addresses.10-56-0-0.16.24.7` a block. docs/adr/0027-addresses-are-leases.md.
"""

from __future__ import annotations

import re

from k8s_rdma.core.macs import is_mac

ADDRESS_LEASES = "addresses."
"""The beginning of the names of these Leases, which are beside those that nodes renew."""

_OCTET = "[0-9a-f]{2}"
_LEASE = re.compile(
    rf"{re.escape(ADDRESS_LEASES)}(?:mac\.({_OCTET}(?:-{_OCTET}){{5}})|guid\.({_OCTET}(?:-{_OCTET}){{7}}))"
)


def kind(address: str) -> str:
    """Return `mac` or `guid`."""
    return "mac" if is_mac(address) else "guid"


def lease_name(address: str) -> str:
    """Return the name of the Lease of an address: `addresses.mac.02-00-00-00-00-01`."""
    return f"{ADDRESS_LEASES}{kind(address)}.{address.replace(':', '-')}"


def leased_address(name: str) -> str | None:
    """Return the address that a Lease of this name holds, if it holds one."""
    found = _LEASE.fullmatch(name)
    return (found[1] or found[2]).replace("-", ":") if found else None
