"""PCI positions of GPUs, by the ids that their device plugins give kubelet.

| resource | ids | the GPU's PCI address |
| --- | --- | --- |
| `nvidia.com/*` | `GPU-<uuid>`; of shared ones `GPU-<uuid>::3` | `/proc/driver/nvidia/gpus/*/information` |
| the same | `MIG-GPU-<uuid>/1/0`, by drivers before R470 | the same: it begins with the GPU's id |
| the same | `nvidia0`, `nvidia0/gi1`: by device minor | the same |
| the same | `0`: the index, which NVML counts by PCI address | the same |
| `amd.com/*`, `gpu.intel.com/*` | `card1`, `card1-0`: by DRM card | `/sys/class/drm/card1/device` |
| any | `0000:3b:00.0` | is the id |

Left out, because only NVML can resolve it: `MIG-<uuid>`, of drivers since R470. Left out as well: partitions
of AMD GPUs (`amdgpu_xcp_30`), which are platform devices, and all that is not a GPU by its PCI class.
Sources: the NVIDIA driver's README, chapter "Using the /proc File System Interface"; Linux
`drivers/gpu/drm/drm_sysfs.c`; PCI Code and ID Assignment 1.11, sections 1.4 and 1.19.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from k8s_rdma.core.devices.pod_devices import Neighbour
from k8s_rdma.core.inventory import Gpu
from k8s_rdma.core.types import PciAddress, pci_address
from k8s_rdma.linux.sysfs import PciFunction, Sysfs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

NVIDIA_GPUS = "/proc/driver/nvidia/gpus"

_NVIDIA_RESOURCES = "nvidia.com/"
_DISPLAY, _ACCELERATOR = 0x03, 0x12
_VENDORS = (0x10DE, 0x1002, 0x8086)
"""NVIDIA, AMD and Intel, whose resources are GPUs (`core.devices.near_gpus`)."""
_ADDRESS = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[01][0-9a-fA-F]\.[0-7]")
_UUID = re.compile(r"(MIG-)?(?P<uuid>GPU-[0-9a-fA-F]+(-[0-9a-fA-F]+){4})([:/].*)?")
_MINOR = re.compile(r"nvidia(?P<minor>\d+)(/.*)?")
_CARD = re.compile(r"(?P<card>card\d+)(-.*)?")


class Gpus:
    """The GPUs of one machine. Methods block to read a few small files; unreadable GPUs are left out."""

    def __init__(self, sysfs: Sysfs | None = None, nvidia: Sysfs | None = None) -> None:
        """Read through these; `nvidia` is the directory of `NVIDIA_GPUS`."""
        self._sysfs = sysfs or Sysfs()
        self._nvidia = nvidia or Sysfs(NVIDIA_GPUS)

    def present(self) -> bool:
        """Report whether the machine has a GPU of `_VENDORS`, with a driver or without.

        The displays of management controllers are other vendors'. If it cannot be read, there may be one.
        """
        try:
            return any(map(self._is_gpu, self._sysfs.names("bus/pci/devices")))
        except OSError:
            return True

    def _is_gpu(self, function: str) -> bool:
        path = f"bus/pci/devices/{function}"
        if self._sysfs.number_if_any(f"{path}/vendor") not in _VENDORS:
            return False
        return _is_kind_of_gpu(self._sysfs.number_if_any(f"{path}/class"))

    def places(self, devices: Iterable[tuple[str, str]]) -> tuple[Neighbour, ...]:
        """Return the positions of the GPUs among these devices (resource and id), each once."""
        gpus = {gpu.pci: gpu for gpu in self.by_device(devices).values()}
        return tuple(Neighbour(pcie_path=gpu.pcie_path, numa_node=gpu.numa_node) for gpu in gpus.values())

    def by_device(self, devices: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Gpu]:
        """Return the GPU of each of these devices (resource and id) that is one or a share of one.

        Whether a pod has it is not known here: `in_use` is always False.
        """
        names: Mapping[str, PciAddress] | None = None
        places: dict[PciAddress, Neighbour | None] = {}
        gpus: dict[tuple[str, str], Gpu] = {}
        for resource, device_id in devices:
            if resource.startswith(_NVIDIA_RESOURCES) and names is None:
                names = dict(self._nvidia_names())
            pci = self._address(device_id, (names or {}) if resource.startswith(_NVIDIA_RESOURCES) else {})
            if pci is None:
                continue
            if pci not in places:
                places[pci] = self._place(pci)
            if place := places[pci]:
                gpus[resource, device_id] = Gpu(
                    resource=resource,
                    pci=pci,
                    pcie_path=tuple(map(PciAddress, place.pcie_path)),
                    numa_node=place.numa_node,
                )
        return gpus

    def _address(self, device_id: str, nvidia: Mapping[str, PciAddress]) -> PciAddress | None:
        if found := _ADDRESS.match(device_id):
            return pci_address(found[0])
        if found := _CARD.fullmatch(device_id):
            return self._card(found["card"])
        if found := _UUID.fullmatch(device_id):
            return nvidia.get(found["uuid"].lower())
        found = _MINOR.fullmatch(device_id)
        return nvidia.get(f"minor {found['minor']}" if found else f"index {device_id}")

    def _card(self, card: str) -> PciAddress | None:
        try:
            device = self._sysfs.resolved(f"class/drm/{card}/device").rpartition("/")[2]
        except OSError:
            return None
        return pci_address(device) if _ADDRESS.fullmatch(device) else None

    def _nvidia_names(self) -> Iterator[tuple[str, PciAddress]]:
        index = 0
        for directory in self._nvidia_directories():
            information = self._information(directory)
            if information.get("GPU Excluded", information.get("Blacklisted")) == "Yes":
                continue
            pci = pci_address(directory)
            yield f"index {index}", pci
            yield f"minor {information.get('Device Minor')}", pci
            yield information.get("GPU UUID", "").lower(), pci
            index += 1

    def _nvidia_directories(self) -> list[str]:
        try:
            return sorted(name for name in self._nvidia.names(".") if _ADDRESS.fullmatch(name))
        except OSError:
            return []

    def _information(self, directory: str) -> Mapping[str, str]:
        try:
            lines = self._nvidia.read(f"{directory}/information").splitlines()
        except OSError:
            return {}
        pairs = (line.partition(":") for line in lines)
        return {name.strip(): value.strip() for name, _, value in pairs}

    def _place(self, pci: PciAddress) -> Neighbour | None:
        function = PciFunction(self._sysfs, pci)
        try:
            if not _is_kind_of_gpu(self._sysfs.number(f"bus/pci/devices/{pci}/class")):
                return None
            return Neighbour(pcie_path=function.pcie_path(), numa_node=function.numa_node())
        except OSError:
            return None


def _is_kind_of_gpu(pci_class: int | None) -> bool:
    return (pci_class or 0) >> 16 in (_DISPLAY, _ACCELERATOR)
