"""The document of `k8s-rdma doctor --json`, as those read it who wrote a program for it."""

from __future__ import annotations

import msgspec

from k8s_rdma.wire.doctor import DoctorDocument


def decode_doctor(data: bytes) -> DoctorDocument:
    """Parse the document; ValidationError names the field that does not fit."""
    return msgspec.json.decode(data, type=DoctorDocument)
