"""Addresses of VFs, made from those of their PF: the same after every boot, without a file to keep them in.

Ethernet: a locally administered unicast MAC (IEEE 802, clause 8.4) of 46 free bits:

    12 bits of a hash of the PF's first three octets | 10 bits VF index | the PF's last three octets

The last three octets are unique per manufacturer, so VFs of PFs of one manufacturer never share a MAC; VFs
of two manufacturers could only where the hash (1 in 4,096) and the PFs' serial numbers are the same.

InfiniBand: a 64-bit GUID with the bit "local" set (EUI-64), the rest a hash of the PF's port GUID, the VF
and which of its two GUIDs it is. A million of them hold two equal ones with a chance of 1 in ten million.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from k8s_rdma.linux.vf.creation import GuidOf

MOST_VFS = 1024
"""VFs of a PF that can be told apart; the largest NICs have about 1,000."""


def vf_mac(pf_mac: str, index: int) -> str:
    """The MAC of a PF's VF; `pf_mac` is the PF's permanent one, `aa:bb:cc:dd:ee:ff`."""
    octets = bytes.fromhex(pf_mac.replace(":", ""))
    if len(octets) != 6 or not 0 <= index < MOST_VFS:
        msg = f"no MAC for VF {index} of {pf_mac}"
        raise ValueError(msg)
    maker = int.from_bytes(_hash(octets[:3], 2)) >> 4
    free = maker << 34 | index << 24 | int.from_bytes(octets[3:])
    first = (free >> 40) << 2 | 0b10  # local, and no group address
    return (bytes([first]) + (free & 0xFFFFFFFFFF).to_bytes(5)).hex(":")


def vf_guid(pf_guid: str, index: int, which: GuidOf) -> str:
    """A GUID of a PF's VF, `aa:bb:cc:dd:ee:ff:00:11`; never zero. `pf_guid` is the PF's port GUID, so too."""
    octets = bytes.fromhex(pf_guid.replace(":", ""))
    if len(octets) != 8 or index < 0:
        msg = f"no GUID for VF {index} of {pf_guid}"
        raise ValueError(msg)
    free = _hash(octets + index.to_bytes(4) + which.value.encode(), 8)
    return (bytes([free[0] & 0xFC | 0b10]) + free[1:]).hex(":")


def _hash(value: bytes, size: int) -> bytes:
    return hashlib.blake2b(value, digest_size=size, person=b"k8s-rdma vf").digest()
