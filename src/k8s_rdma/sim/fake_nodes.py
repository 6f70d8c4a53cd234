"""The device nodes of a machine in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.devices.rdma_devices import INFINIBAND, CharacterDevice, NodeKind
from k8s_rdma.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Collection

    from k8s_rdma.core.ids import PciAddress
    from k8s_rdma.sim.fake_function import Function
    from k8s_rdma.sim.fake_machine import FakeMachine

MAJOR, FIRST_MINOR = 231, 192
"""Linux `drivers/infiniband/core/uverbs_main.c`, IB_UVERBS_MAJOR and IB_UVERBS_BASE_MINOR."""

RDMA_CM_NUMBERS = (10, 58)


class FakeNodes:
    """As `linux.rdma.character_devices.PodNodes`: each RDMA device has one `uverbs`, another one once it moved."""

    def __init__(self, machine: FakeMachine) -> None:
        """Knows what the machine is whenever it is asked."""
        self._machine = machine

    def vfio_group(self, pci: PciAddress) -> str:
        """By the order of the functions; KernelError while vfio-pci does not have it."""
        for number, function in enumerate(self._machine.functions.values()):
            if function.pci == pci and function.driver == "vfio-pci":
                return f"/dev/vfio/{number}"
        msg = f"{pci}: no VFIO group"
        raise KernelError(msg)

    def of_vf(self, pci: PciAddress, rdma_device: str) -> tuple[CharacterDevice, ...]:
        """Of the VF at this address, or of one by its device's name."""
        own = [each for each in self._machine.functions.values() if each.pci == pci]
        return _verbs(own) or self.of_devices([rdma_device])

    def of_devices(self, rdma_devices: Collection[str]) -> tuple[CharacterDevice, ...]:
        """By name."""
        return _verbs([each for each in self._machine.functions.values() if each.rdma_device in rdma_devices])

    def rdma_cm(self) -> tuple[int, int] | None:
        """There where any VF has an RDMA device."""
        return RDMA_CM_NUMBERS if any(each.rdma_device for each in self._machine.functions.values()) else None


def _verbs(functions: list[Function]) -> tuple[CharacterDevice, ...]:
    return tuple(
        CharacterDevice(
            kind=NodeKind.UVERBS,
            path=f"{INFINIBAND}/uverbs{each.verbs}",
            major=MAJOR,
            minor=FIRST_MINOR + each.verbs,
        )
        for each in functions
        if each.verbs is not None
    )
