"""A pod's containers in a real runtime: what its object says, and what device plugins gave.

Of the object these count: image, command, args, plain variables, mounts of `hostPath` volumes, added
capabilities, `privileged`. Init containers are started beside the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.core.devices.device_plugin_api import Mount
from k8s_rdma.sim.cluster.cni_plugin import CniError
from k8s_rdma.sim.cluster.containers import Container, ContainerError
from k8s_rdma.sim.cluster.cri_runtime import CriRuntime
from k8s_rdma.sim.cluster.objects import name_of, namespace_of, spec_of, uid_of
from k8s_rdma.sim.cluster.sandbox import PodRef
from k8s_rdma.wire.cri import ContainerConfig

if TYPE_CHECKING:
    from k8s_rdma.core.devices.device_plugin_api import AllocateResponse
    from k8s_rdma.sim.cluster.objects import JsonObject


@dataclass(frozen=True, slots=True)
class CriContainers:
    """Made and started by a runtime."""

    runtime: CriRuntime

    async def make(self, pod: JsonObject, sandbox: str, name: str, given: AllocateResponse) -> Container:
        """The container of that name; ContainerError."""
        config = container_config(pod, name, given)
        reference = PodRef(namespace=namespace_of(pod), name=name_of(pod), uid=uid_of(pod))
        try:
            made = await self.runtime.start_container(sandbox, reference, config)
        except CniError as error:
            raise ContainerError(error.message) from error
        return Container(
            name=name,
            id=made,
            envs=config.envs,
            annotations=given.annotations,
            mounts=config.mounts,
            cdi_devices=given.cdi_devices,
        )


def container_config(pod: JsonObject, name: str, given: AllocateResponse) -> ContainerConfig:
    """A container of the pod as the runtime is asked for it."""
    spec = spec_of(pod)
    every = [*(spec.get("initContainers") or []), *spec["containers"]]
    container = next(each for each in every if each["name"] == name)
    security = container.get("securityContext") or {}
    variables = {each["name"]: each.get("value", "") for each in container.get("env") or []}
    return ContainerConfig(
        name=name,
        image=container["image"],
        command=tuple(container.get("command") or ()),
        args=tuple(container.get("args") or ()),
        envs={**given.envs, **variables},
        annotations=given.annotations,
        mounts=(*_volumes(spec, container), *given.mounts),
        devices=given.devices,
        cdi_devices=given.cdi_devices,
        capabilities=tuple((security.get("capabilities") or {}).get("add") or ()),
        privileged=security.get("privileged", False),
    )


def _volumes(spec: JsonObject, container: JsonObject) -> tuple[Mount, ...]:
    paths = {
        each["name"]: each["hostPath"]["path"] for each in spec.get("volumes") or [] if each.get("hostPath")
    }
    return tuple(
        Mount(path=each["mountPath"], host_path=paths[each["name"]], read_only=each.get("readOnly", False))
        for each in container.get("volumeMounts") or []
        if each["name"] in paths
    )
