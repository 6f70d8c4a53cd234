"""What `k8s-rdma version --json` prints: this program's version, and those of all that it says to others.

docs/compatibility-versions.md says who must agree with whom.
"""

from __future__ import annotations

import msgspec

from k8s_rdma.core.devices.device_plugin_api import DEVICE_PLUGIN_VERSION
from k8s_rdma.wire import cdi, doctor, frame, machine, network_status, rdma_node
from k8s_rdma.wire.cni_result import SUPPORTED_VERSIONS
from k8s_rdma.wire.placement_annotation import PLACEMENT_VERSION


class Speaks(msgspec.Struct, frozen=True, kw_only=True):
    """Versions of what is said and kept, each of which may change by itself.

    ledger: of the agent's file; an older agent refuses a newer one. cni: of the specification, all that are
        spoken. cni_frame: between executable and agent; both must be of one. placement: of the annotation
        that extender and agents share. rdma_node: of the definition. device_plugin: of kubelet's API. cdi,
        device_info: of specifications that are written. machine, doctor: of documents for people's reports.
    """

    ledger: int
    cni: tuple[str, ...] = SUPPORTED_VERSIONS
    cni_frame: int = frame.VERSION
    placement: int = PLACEMENT_VERSION
    rdma_node: str = f"{rdma_node.GROUP}/{rdma_node.VERSION}"
    device_plugin: str = DEVICE_PLUGIN_VERSION
    cdi: str = cdi.VERSION
    device_info: str = network_status.VERSION
    machine: int = machine.FORMAT
    doctor: int = doctor.FORMAT


class VersionDocument(msgspec.Struct, frozen=True, kw_only=True):
    """commit: of the sources, where the installation tells it; else null. python: its version."""

    version: str
    commit: str | None
    python: str
    speaks: Speaks


_encoder = msgspec.json.Encoder()


def encode_version(document: VersionDocument) -> bytes:
    """The document's bytes, on several lines."""
    return msgspec.json.format(_encoder.encode(document), indent=2) + b"\n"
