"""Documents that `k8s-rdma doctor --json` and `k8s-rdma version --json` print. Format: docs/doctor.md.

A version document has the program's version, and those of all formats and protocols that it speaks.

docs/compatibility-versions.md lists the components that must agree with each other.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from k8s_rdma.core.devices.pod_devices import DEVICE_PLUGIN_VERSION
from k8s_rdma.wire import cdi, cni_socket, machine, rdma_node
from k8s_rdma.wire.cni_result import SUPPORTED_VERSIONS
from k8s_rdma.wire.network_status import DEVICE_INFO_VERSION
from k8s_rdma.wire.placement_annotation import PLACEMENT_VERSION

FORMAT = 1
"""Grows when a field changes its meaning or goes; new fields and new ids do not count."""

SeverityText = Literal["ok", "note", "warning", "error"]

_encoder = msgspec.json.Encoder()


class FindingDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A finding; see `doctor.finding.Finding`."""

    id: str
    subject: str
    severity: SeverityText
    about: str
    found: str
    source: str
    expected: str = msgspec.field(name="wanted")
    fix: str


class DoctorDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of a run. of: the subject. worst: the highest severity. version: the program's."""

    format: int = FORMAT
    of: Literal["node", "cluster"]
    version: str
    worst: SeverityText
    findings: tuple[FindingDocument, ...]


def encode_doctor(document: DoctorDocument) -> bytes:
    """Return the document's bytes, on several lines."""
    return msgspec.json.format(_encoder.encode(document), indent=2) + b"\n"


class Speaks(msgspec.Struct, frozen=True, kw_only=True):
    """Versions of the protocols and files; each may change by itself.

    ledger: of the agent's file; an older agent refuses a newer one.
    cni: of the specification, all that are spoken.
    cni_frame: between executable and agent; both must have the same.
    placement: of the annotation that extender and agents share.
    rdma_node: of the definition.
    device_plugin: of kubelet's API.
    cdi, device_info: of specifications that are written.
    machine, doctor: of documents for people's reports.
    """

    ledger: int
    cni: tuple[str, ...] = SUPPORTED_VERSIONS
    cni_frame: int = cni_socket.VERSION
    placement: int = PLACEMENT_VERSION
    rdma_node: str = f"{rdma_node.GROUP}/{rdma_node.VERSION}"
    device_plugin: str = DEVICE_PLUGIN_VERSION
    cdi: str = cdi.VERSION
    device_info: str = DEVICE_INFO_VERSION
    machine: int = machine.FORMAT
    doctor: int = FORMAT


class VersionDocument(msgspec.Struct, frozen=True, kw_only=True):
    """commit: of the sources, if the installation records it; else null. python: its version."""

    version: str
    commit: str | None
    python: str
    speaks: Speaks


def encode_version(document: VersionDocument) -> bytes:
    """Return the document's bytes, on several lines."""
    return msgspec.json.format(_encoder.encode(document), indent=2) + b"\n"
