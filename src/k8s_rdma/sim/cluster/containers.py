"""Containers, as the runtime makes them of what kubelet asks for: the record of what each was given.

Source: containerd `internal/cri/opts` and `pkg/oci/utils_unix.go`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from k8s_rdma.core.devices.device_plugin_api import Mount
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.sim.cluster.cdi_registry import UnresolvableError, edits_for
from k8s_rdma.wire.json import decode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.core.devices.device_plugin_api import AllocateResponse, DeviceSpec
    from k8s_rdma.sim.cluster.cdi_registry import DeviceNode as CdiNode
    from k8s_rdma.sim.cluster.cdi_registry import Edits
    from k8s_rdma.sim.cluster.objects import JsonObject

_ALL = "rwm"


class ContainerError(K8sRdmaError):
    """A container could not be made; kubelet tries again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """A device node in a container; kind: `c` or `b`."""

    path: str
    kind: str
    major: int
    minor: int
    permissions: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """What a container was given besides its image; cdi_devices: as they were asked for.

    id: the runtime's; empty where the record is all there is of it.
    """

    name: str
    id: str = ""
    envs: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    cdi_devices: tuple[str, ...] = ()

    @property
    def device_paths(self) -> tuple[str, ...]:
        """Where it has device nodes, in order."""
        return tuple(sorted(device.path for device in self.devices))


@dataclass(frozen=True, slots=True, kw_only=True)
class PodContainers:
    """A pod's containers. sandbox: the id of theirs; empty in the host's network."""

    namespace: str
    name: str
    uid: str
    sandbox: str
    containers: tuple[Container, ...]


_decoder = msgspec.json.Decoder(PodContainers)


class ContainerDirectory:
    """One JSON file a pod, `<uid>.json`, for a restarted kubelet and for onlookers."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def save(self, pod: PodContainers) -> None:
        """Write a pod's containers, whole or not at all."""
        self._directory.mkdir(parents=True, exist_ok=True)
        written = self._directory / f".{pod.uid}.new"
        written.write_bytes(msgspec.json.format(msgspec.json.encode(pod)))
        written.replace(self._path(pod.uid))

    def remove(self, uid: str) -> None:
        """The pod's containers are gone."""
        self._path(uid).unlink(missing_ok=True)

    def of(self, uid: str) -> PodContainers | None:
        """A pod's containers, None when there are none; MalformedError."""
        try:
            content = self._path(uid).read_bytes()
        except FileNotFoundError:
            return None
        return decode(content, _decoder, str(self._path(uid)))

    def of_pod(self, namespace: str, name: str) -> PodContainers | None:
        """The same by the pod's name."""
        uids = [path.stem for path in self._directory.glob("*.json")]
        found = (pod for pod in map(self.of, uids) if pod and (pod.namespace, pod.name) == (namespace, name))
        return next(found, None)

    def _path(self, uid: str) -> Path:
        return self._directory / f"{uid}.json"


class ContainerMaker(Protocol):
    """Who makes the containers of pods."""

    async def make(self, pod: JsonObject, sandbox: str, name: str, given: AllocateResponse) -> Container:
        """The container of that name, with what plugins gave it, in a sandbox; ContainerError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedContainers:
    """Containers that are records alone; fields as of `make_container`."""

    cdi_dirs: Sequence[Path]
    host_root: Path

    async def make(self, pod: JsonObject, sandbox: str, name: str, given: AllocateResponse) -> Container:  # noqa: ARG002
        """What it would have."""
        return make_container(name, given, self.cdi_dirs, self.host_root)


def make_container(
    name: str, given: AllocateResponse, cdi_dirs: Sequence[Path], host_root: Path
) -> Container:
    """A container with what kubelet asks for, and what CDI specifications say of its devices.

    host_root: where the host's device nodes are. ContainerError.
    """
    try:
        devices = {node.path: node for spec in given.devices for node in _host_nodes(spec, host_root)}
        edits = edits_for(given.cdi_devices, cdi_dirs)
        for each in edits:
            devices |= {node.path: _cdi_node(node, host_root) for node in each.device_nodes}
    except (UnresolvableError, OSError) as error:
        told = f"CDI device injection failed: {error}" if isinstance(error, UnresolvableError) else str(error)
        raise ContainerError(f"failed to create containerd container: {told}") from error
    return Container(
        name=name,
        envs={**given.envs, **_environment(edits)},
        annotations=given.annotations,
        devices=tuple(devices.values()),
        mounts=(*given.mounts, *_mounts(edits)),
        cdi_devices=given.cdi_devices,
    )


def _environment(edits: Sequence[Edits]) -> dict[str, str]:
    pairs = (variable.partition("=") for each in edits for variable in each.env)
    return {name: value for name, _, value in pairs}


def _mounts(edits: Sequence[Edits]) -> Iterator[Mount]:
    for each in edits:
        for mount in each.mounts:
            yield Mount(path=mount.container_path, host_path=mount.host_path, read_only="ro" in mount.options)


def _host_nodes(spec: DeviceSpec, host_root: Path) -> Iterator[DeviceNode]:
    """The device node at a path of the host, or all below it if that is a directory; OSError."""
    at_host = _below(host_root, spec.host_path or spec.path)
    if not stat.S_ISDIR(at_host.stat().st_mode):
        yield _node(at_host, spec.path, spec.permissions or _ALL)
        return
    for directory, _, names in os.walk(at_host):
        for name in sorted(names):
            path = Path(directory) / name
            if _kind(path.lstat().st_mode):
                inside = Path(spec.path) / path.relative_to(at_host)
                yield _node(path, str(inside), spec.permissions or _ALL)


def _cdi_node(node: CdiNode, host_root: Path) -> DeviceNode:
    """A node as the specification has it, or the host where it does not say; OSError."""
    permissions = node.permissions or _ALL
    if node.type and (node.major or node.minor):
        return DeviceNode(
            path=node.path, kind=node.type, major=node.major, minor=node.minor, permissions=permissions
        )
    return _node(_below(host_root, node.host_path or node.path), node.path, permissions)


def _node(at_host: Path, path: str, permissions: str) -> DeviceNode:
    status = at_host.stat()
    kind = _kind(status.st_mode)
    if not kind:
        raise ContainerError(f"failed to create containerd container: {at_host}: not a device node")
    return DeviceNode(
        path=path,
        kind=kind,
        major=os.major(status.st_rdev),
        minor=os.minor(status.st_rdev),
        permissions=permissions,
    )


def _kind(mode: int) -> str:
    if stat.S_ISCHR(mode):
        return "c"
    return "b" if stat.S_ISBLK(mode) else ""


def _below(root: Path, path: str) -> Path:
    return root / path.lstrip("/")
