"""CDI specifications of shared resources, there for as long as the device plugin declares them.

Used by the worker. Each tells the character devices of RDMA devices that are looked up by name, and nothing
that a declaration says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.devices.pod_devices import shared_device
from k8s_rdma.core.devices.rdma_devices import RDMA_CM
from k8s_rdma.errors import K8sRdmaError, KernelError
from k8s_rdma.wire.cdi import (
    SHARED_CLASS,
    ContainerEdits,
    character_node,
    device_of_file_name,
    encode_own,
    file_name,
)
from k8s_rdma.wire.shared_devices import Written

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import PurePosixPath

    from k8s_rdma.agent.node_files import NodeFiles
    from k8s_rdma.agent.slot_files import DeviceNodes
    from k8s_rdma.wire.shared_devices import Declared


class SharedFiles:
    """The specifications in a directory of the node."""

    def __init__(self, files: NodeFiles, cdi_dir: PurePosixPath, nodes: DeviceNodes) -> None:
        """Nothing is declared; what is there of an agent before stays, until `remove_undeclared`."""
        self._files = files
        self._cdi_dir = cdi_dir
        self._nodes = nodes
        # By resource: its devices by who declares them, a device plugin's connection; the last one counts.
        self._declared: dict[str, dict[object, tuple[str, ...]]] = {}

    def declare(self, by: object, declared: Declared) -> Written:
        """Have all that a plugin declares be told, and nothing of what it declared before."""
        now = declared.resources
        failed = self._withdraw(by, self._of(by) - now.keys())
        for name, devices in now.items():
            others = self._declared.setdefault(name, {})
            others.pop(by, None)
            others[by] = devices
        failed |= self._write(now)
        return Written(resources=tuple(name for name in now if name not in failed), failed=failed)

    def end(self, by: object) -> None:
        """Remove what a plugin declared; what another one declares, too, is as that one has it.

        KernelError names what is not as it should be.
        """
        if failed := self._withdraw(by, self._of(by)):
            raise KernelError("; ".join(failed.values()))

    def restore(self) -> None:
        """Have them tell the nodes of now; KernelError names those that cannot be written."""
        if failed := self._write(self._declared):
            raise KernelError("; ".join(failed.values()))

    def remove_undeclared(self) -> None:
        """Remove those of ours that no plugin declares; KernelError names those that cannot be."""
        declared = set(map(shared_device, self._declared))
        devices = {name: device_of_file_name(SHARED_CLASS, name) for name in self._files.names(self._cdi_dir)}
        self._files.remove(
            self._cdi_dir / name for name, device in devices.items() if device and device not in declared
        )

    def _of(self, by: object) -> set[str]:
        return {name for name, declared in self._declared.items() if by in declared}

    def _withdraw(self, by: object, resources: Iterable[str]) -> dict[str, str]:
        """Why some stay, or cannot be told any more, by resource."""
        failed: dict[str, str] = {}
        for name in sorted(resources):
            del self._declared[name][by]
            if self._declared[name]:
                failed |= self._write([name])
                continue
            del self._declared[name]
            failed |= self._remove(name)
        return failed

    def _write(self, resources: Collection[str]) -> dict[str, str]:
        """Why some cannot be written, by resource; of these there is none."""
        failed = {}
        for name in resources:
            try:
                path, data = self._path(name), self._specification(name)
                if not self._files.holds(path, data):
                    self._files.write(path, data)
            except K8sRdmaError as error:
                failed[name] = error.message
                failed |= self._remove(name)
        return failed

    def _remove(self, resource: str) -> dict[str, str]:
        try:
            self._files.remove([self._path(resource)])
        except KernelError as error:
            return {resource: error.message}
        return {}

    def _specification(self, resource: str) -> bytes:
        *_, devices = self._declared[resource].values()
        found = self._nodes.of_devices(devices)
        nodes = [character_node(each.path, each.major, each.minor) for each in found]
        if not nodes:
            msg = f"{resource}: none of its devices has a character device"
            raise KernelError(msg)
        if numbers := self._nodes.rdma_cm():
            nodes.append(character_node(RDMA_CM, *numbers))
        edits = ContainerEdits(device_nodes=tuple(nodes))
        return encode_own(SHARED_CLASS, shared_device(resource), edits)

    def _path(self, resource: str) -> PurePosixPath:
        return self._cdi_dir / file_name(SHARED_CLASS, shared_device(resource))
