"""Messages on `claims.sock` of one PF and one claim."""

from __future__ import annotations

from typing import Any

import msgspec

PF = {
    "name": "f0",
    "pf": "f0",
    "pci": "0000:03:00.0",
    "driver": "ice",
    "vendor": "8086:1592",
    "link_type": "ethernet",
    "mtu": 1500,
    "min_rate": "hardware",
    "max_rate": "hardware",
    "rdma": True,
    "bandwidth_mbps": 100_000,
    "vfs": 8,
}
INTERFACE = {"device": "f0", "share_id": "share-0", "pci": "0000:03:00.2"}
CLAIM = {
    "claim": {"namespace": "default", "name": "c", "uid": "claim-1"},
    "pod": "p",
    "pod_uid": "uid-p",
    "interfaces": [INTERFACE],
}


def offers(pf: dict[str, Any], claim: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"node": "w1", "pfs": [PF | pf], "claims": [CLAIM | claim]})
