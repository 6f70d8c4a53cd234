"""Device nodes of a machine in memory, and the PodResources API without a kubelet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.devices.pod_devices import ContainerDevices, PodDevices
from k8s_rdma.core.devices.rdma_devices import INFINIBAND, CharacterDevice, NodeKind
from k8s_rdma.errors import K8sRdmaError, KernelError, Reason

if TYPE_CHECKING:
    from collections.abc import Collection

    from fakes.machine import FakeMachine, Function
    from k8s_rdma.core.types import PciAddress


class FakePodResources:
    """As `kube.pod_resources.PodResources`.

    silent: whether it has no answer. questions: how many it was asked. healthy: allocatable devices.
    """

    def __init__(self) -> None:
        """No pod has devices."""
        self._allocated: dict[tuple[str, str], PodDevices] = {}
        self.silent = False
        self.questions = 0
        self.healthy: tuple[tuple[str, str], ...] = ()

    def allocate(self, namespace: str, name: str, resource: str, *ids: str, container: str = "app") -> None:
        """Allocate further devices to a pod's container."""
        allocated = self.pod_devices(namespace, name)
        added = ContainerDevices(container=container, resource=resource, ids=ids)
        devices = (*allocated.devices, added)
        self._allocated[namespace, name] = PodDevices(namespace=namespace, name=name, devices=devices)

    def forget(self, namespace: str, name: str) -> None:
        """End a pod: its devices are free."""
        self._allocated.pop((namespace, name), None)

    def pod_devices(self, namespace: str, name: str) -> PodDevices:
        """Return a pod's devices without counting a call."""
        return self._allocated.get((namespace, name), PodDevices(namespace=namespace, name=name))

    async def of_pod(self, namespace: str, name: str) -> PodDevices:
        """As `PodResources`."""
        self._count_call()
        return self.pod_devices(namespace, name)

    async def all(self) -> tuple[PodDevices, ...]:
        """As `PodResources`."""
        self._count_call()
        return tuple(self._allocated.values())

    async def allocatable(self) -> tuple[tuple[str, str], ...]:
        """As `PodResources`."""
        self._count_call()
        return self.healthy

    async def close(self) -> None:
        """No resource is open."""

    def _count_call(self) -> None:
        self.questions += 1
        if self.silent:
            msg = "kubelet does not say what pods hold: made to be silent"
            raise K8sRdmaError(msg, reason=Reason.KUBELET_FAILURE)


MAJOR, FIRST_MINOR = 231, 192
"""Linux `drivers/infiniband/core/uverbs_main.c`, IB_UVERBS_MAJOR and IB_UVERBS_BASE_MINOR."""

RDMA_CM_NUMBERS = (10, 58)


class FakeNodes:
    """As `PodNodes`: each RDMA device has one `uverbs`, another one once it moved."""

    def __init__(self, machine: FakeMachine) -> None:
        """Knows the machine's state whenever it is asked."""
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
        own = [function for function in self._machine.functions.values() if function.pci == pci]
        return _verbs(own) or self.of_devices([rdma_device])

    def of_devices(self, rdma_devices: Collection[str]) -> tuple[CharacterDevice, ...]:
        """By name."""
        return _verbs(
            [
                function
                for function in self._machine.functions.values()
                if function.rdma_device in rdma_devices
            ]
        )

    def rdma_cm(self) -> tuple[int, int] | None:
        """Present if any VF has an RDMA device."""
        return (
            RDMA_CM_NUMBERS
            if any(function.rdma_device for function in self._machine.functions.values())
            else None
        )


def _verbs(functions: list[Function]) -> tuple[CharacterDevice, ...]:
    return tuple(
        CharacterDevice(
            kind=NodeKind.UVERBS,
            path=f"{INFINIBAND}/uverbs{function.verbs}",
            major=MAJOR,
            minor=FIRST_MINOR + function.verbs,
        )
        for function in functions
        if function.verbs is not None
    )
