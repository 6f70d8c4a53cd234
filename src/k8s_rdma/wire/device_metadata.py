"""Device metadata: files in containers that describe the devices of their ResourceClaims.

A file is about one request of a claim. It holds the same object in several versions, the newest first, each
on a line of its own; a reader takes the first version that it knows.

Source: KEP-5304, and `DeviceMetadata` in k8s.io/dynamic-resource-allocation/api/metadata/v1beta1/types.go
(Kubernetes 1.37).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.claim_status import network_data
from k8s_rdma.wire.claims import DRIVER, ClaimName, PreparedClaimInterface
from k8s_rdma.wire.json_faults import shown
from k8s_rdma.wire.resource_slice import MAX_TEXT

if TYPE_CHECKING:
    from collections.abc import Sequence

VERSIONS = ("metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1")
KIND = "DeviceMetadata"

DIRECTORY = "/var/run/kubernetes.io/dra-device-attributes"
"""The directory of all these files in a container (`ContainerDir` in .../api/metadata)."""

_CLAIMS, _TEMPLATES = "resourceclaims", "resourceclaimtemplates"
_NAME = re.compile(r"[a-z0-9][-.a-z0-9]{0,252}")


class DescribedVf(NamedTuple):
    """A VF of a request.

    pool: of the node's ResourceSlices.
    pf: the netdev's name.
    vf: the VF's index.
    numa_node: its NUMA node, if the machine reports it.
    pcie_root: as in sysfs, such as `pci0000:3a`; may be empty.
    """

    pool: str
    interface: PreparedClaimInterface
    pf: str
    vf: int
    numa_node: int | None
    pcie_root: str


class DescribedRequest(NamedTuple):
    """A request of a prepared claim.

    name: with the chosen alternative behind a slash, for example `net/fast`.
    pod_claim: the pod's name for a claim that was made from a template; empty for any other claim.
    """

    claim: ClaimName
    name: str
    pod_claim: str
    vfs: Sequence[DescribedVf]


def container_path(request: DescribedRequest) -> str:
    """Return the path of a request's file in containers.

    MalformedError if a name could lead out of the directory.
    """
    kind, claim = (_TEMPLATES, request.pod_claim) if request.pod_claim else (_CLAIMS, request.claim.name)
    base = base_name(request.name)
    for name in (claim, base):
        if not _NAME.fullmatch(name):
            msg = f"device metadata: {shown(name)} is no name of a claim or request"
            raise MalformedError(msg)
    return f"{DIRECTORY}/{kind}/{claim}/{base}/{DRIVER}-metadata.json"


def base_name(request: str) -> str:
    """Return a request's name without its alternative, which is no part of paths."""
    return request.partition("/")[0]


def encode_metadata(request: DescribedRequest, former: bytes | None) -> bytes:
    """Encode a request's file; the former content if it has the same meaning.

    former: the content until now, if there is any. The next generation follows its generation, and its
        addresses stay for an interface whose addresses the agent no longer has.
    """
    found = _decode(former)
    devices = [_device(vf, found.network_of(vf.interface)) for vf in request.vfs]
    generation = found.metadata.generation
    if generation and former is not None:
        unchanged = _encode(request, devices, generation)
        if former.rstrip() == unchanged.rstrip():
            return former
    return _encode(request, devices, generation + 1)


def _encode(request: DescribedRequest, devices: list[dict[str, Any]], generation: int) -> bytes:
    claim = request.claim
    metadata = {
        "name": claim.name,
        "namespace": claim.namespace,
        "uid": claim.uid,
        "generation": generation,
    }
    description = {
        "metadata": metadata,
        **({"podClaimName": request.pod_claim} if request.pod_claim else {}),
        "requests": [{"name": request.name, "devices": devices}],
    }
    versions = ({"apiVersion": version, "kind": KIND, **description} for version in VERSIONS)
    return b"".join(msgspec.json.encode(version) + b"\n" for version in versions)


def _device(vf: DescribedVf, former_network: object) -> dict[str, Any]:
    network = network_data(vf.interface, former_network) if vf.interface.ifname else {}
    return {
        "driver": DRIVER,
        "pool": vf.pool,
        "name": vf.interface.device,
        "attributes": _attributes(vf),
        **({"networkData": network} if network else {}),
    }


def _attributes(vf: DescribedVf) -> dict[str, dict[str, str | int]]:
    """Describe a VF; unlike those of a ResourceSlice, its rates are numbers, in Mb/s."""
    interface = vf.interface
    texts = {
        "resource.kubernetes.io/pciBusID": interface.pci,
        "resource.kubernetes.io/pcieRoot": vf.pcie_root,
        f"{DRIVER}/pf": vf.pf,
        f"{DRIVER}/rdmaDevice": interface.rdma_device,
        f"{DRIVER}/enforced": _enforced(interface),
    }
    numbers = {
        "resource.kubernetes.io/numaNode": vf.numa_node,
        f"{DRIVER}/vf": vf.vf,
        f"{DRIVER}/minRate": interface.min_tx_rate,
        f"{DRIVER}/maxRate": interface.max_tx_rate or None,
    }
    found: dict[str, dict[str, str | int]] = {
        key: {"string": text} for key, text in texts.items() if text and len(text.encode()) <= MAX_TEXT
    }
    return found | {key: {"int": number} for key, number in numbers.items() if number is not None}


def _enforced(interface: PreparedClaimInterface) -> str:
    """Say who enforces both rates, for example `min=hardware,max=software`; empty before the pod has it."""
    rates = {"min": interface.min_enforced, "max": interface.max_enforced}
    return ",".join(f"{rate}={enforcer}" for rate, enforcer in rates.items() if enforcer)


class _Metadata(msgspec.Struct, frozen=True):
    generation: int = 0


class _Device(msgspec.Struct, frozen=True, rename="camel"):
    attributes: dict[str, dict[str, Any]] = {}
    network_data: dict[str, Any] | None = None


class _Request(msgspec.Struct, frozen=True):
    devices: tuple[_Device, ...] = ()


class _Found(msgspec.Struct, frozen=True):
    metadata: _Metadata = _Metadata()
    requests: tuple[_Request, ...] = ()

    def network_of(self, interface: PreparedClaimInterface) -> object:
        """Return the network data of an interface's VF, if the file has any."""
        pci = {"string": interface.pci}
        for device in (device for request in self.requests for device in request.devices):
            network = device.network_data
            if (
                device.attributes.get("resource.kubernetes.io/pciBusID") == pci
                and network is not None
                and network.get("interfaceName") == interface.ifname
            ):
                return network
        return None


_decoder = msgspec.json.Decoder(_Found)


def _decode(data: bytes | None) -> _Found:
    """Read the first object of a file of ours; an empty one without a file."""
    if data is None:
        return _Found()
    try:
        return _decoder.decode(data.partition(b"\n")[0])
    except msgspec.MsgspecError:
        return _Found()
