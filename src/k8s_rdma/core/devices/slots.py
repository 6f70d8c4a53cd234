"""Slots: what a container runtime is asked for before anybody knows which VFs the pod gets.

A device plugin answers kubelet with the CDI device `k8s-rdma.io/slot=<id>`. At CNI ADD the agent learns from
kubelet which slots the pod holds, and writes what they are.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotHeld:
    """A slot that kubelet gave to a container of a pod.

    resource, id: as kubelet has it.
    pool: the exclusive resource of whose devices it is; empty for all VFs that the pod was given.
    hints: whether communication libraries are told of its devices (`core.devices.hints`).
    """

    resource: str
    id: str
    pool: str = ""
    hints: bool = False

    @property
    def device(self) -> str:
        """Its CDI device."""
        return slot_device(self.resource, self.id)

    @property
    def one_device(self) -> str:
        """The device of its pool that it is, as kubelet has it; empty for all that the pod holds.

        Its RDMA device's name at home, or its PCI address where it has none.
        """
        return self.id if self.resource == self.pool else ""


def slot_ids(count: int) -> tuple[str, ...]:
    """The device ids of a resource that counts nothing real."""
    return tuple(f"slot-{number}" for number in range(count))


def slot_device(resource: str, device_id: str) -> str:
    """The CDI device of one device of one resource: no two resources have the same."""
    return f"{resource.replace('/', '_')}.{device_id}"


def shared_device(resource: str) -> str:
    """The CDI device of all that a shared resource gives its holders."""
    return resource.replace("/", "_")


def shared_resource(resource: str) -> str:
    """The resource by which further containers of a pod ask for what the pod holds of an exclusive one."""
    return f"{resource}-shared"
