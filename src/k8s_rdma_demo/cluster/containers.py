"""Containers of the stand-in's runtime.

Kubelet's requests for a container are resolved with CDI specifications and recorded. CDI files are read
strictly. A later directory takes precedence; a device that two files of one directory define is unusable.

Sources: containerd `internal/cri/opts` and `pkg/oci/utils_unix.go`; CNCF Container Device Interface,
SPEC.md, and its library's `pkg/cdi`.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import yaml

from k8s_rdma.core.devices.pod_devices import AllocateResponse, DeviceSpec, Mount
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.wire.json import decode

if TYPE_CHECKING:
    from k8s_rdma_demo.cluster.objects import JsonObject

_VERSIONS = frozenset(
    {"0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"}
)
_SUFFIXES = frozenset({".json", ".yaml", ".yml"})

_ALL_PERMISSIONS = "rwm"


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The base of all parts of a specification: an unknown key makes it unreadable."""


class CdiDeviceNode(_Part, frozen=True, kw_only=True):
    """A device node. type: empty: whatever the host has at that path."""

    path: str
    host_path: str = ""
    type: str = ""
    major: int = 0
    minor: int = 0
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None


class CdiMount(_Part, frozen=True, kw_only=True):
    """A file or directory of the host."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""


class Edits(_Part, frozen=True, kw_only=True):
    """The edits to a container. Hooks are not run here."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[CdiDeviceNode, ...] = ()
    mounts: tuple[CdiMount, ...] = ()
    hooks: tuple[Any, ...] = ()
    net_devices: tuple[Any, ...] = ()
    intel_rdt: Any = None
    additional_gids: tuple[int, ...] = msgspec.field(default=(), name="additionalGids")


class _Device(_Part, frozen=True, kw_only=True):
    name: str
    annotations: dict[str, str] = {}
    container_edits: Edits


class _Specification(_Part, frozen=True, kw_only=True):
    cdi_version: str
    kind: str
    devices: tuple[_Device, ...]
    annotations: dict[str, str] = {}
    container_edits: Edits = Edits()


class UnresolvableError(Exception):
    """No specification, or two, have these devices."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(f"unresolvable CDI devices {', '.join(names)}")


def edits_for(names: Sequence[str], directories: Sequence[Path]) -> list[Edits]:
    """The edits for devices by their qualified names, as the files are now; UnresolvableError."""
    devices: dict[str, tuple[_Specification, _Device]] = {}
    for directory in directories:
        devices |= _devices_in(directory)
    if missing := [name for name in names if name not in devices]:
        raise UnresolvableError(missing)
    edits: list[Edits] = []
    for specification, device in (devices[name] for name in names):
        if specification.container_edits not in edits:
            edits.append(specification.container_edits)
        edits.append(device.container_edits)
    return edits


def _devices_in(directory: Path) -> dict[str, tuple[_Specification, _Device]]:
    found = [
        (f"{specification.kind}={device.name}", (specification, device))
        for specification in _specifications(directory)
        for device in specification.devices
    ]
    times = Counter(name for name, _ in found)
    return {name: device for name, device in found if times[name] == 1}


def _specifications(directory: Path) -> Iterator[_Specification]:
    if not directory.is_dir():
        return
    for path in sorted(directory.iterdir()):
        if path.suffix not in _SUFFIXES:
            continue
        try:
            read = msgspec.convert(yaml.safe_load(path.read_bytes()), _Specification)
        except (FileNotFoundError, msgspec.ValidationError, yaml.YAMLError):
            continue
        if read.cdi_version in _VERSIONS:
            yield read


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
    """A container's properties besides its image; cdi_devices: as requested.

    id: the runtime's; empty if the record is all there is of it.
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
        """The sorted paths of its device nodes."""
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
        """Forget the containers of a pod."""
        self._path(uid).unlink(missing_ok=True)

    def get(self, uid: str) -> PodContainers | None:
        """Return a pod's containers, if it has any; MalformedError."""
        try:
            content = self._path(uid).read_bytes()
        except FileNotFoundError:
            return None
        return decode(content, _decoder, str(self._path(uid)))

    def find(self, namespace: str, name: str) -> PodContainers | None:
        """Find a pod's containers by its name."""
        uids = [path.stem for path in self._directory.glob("*.json")]
        found = (pod for pod in map(self.get, uids) if pod and (pod.namespace, pod.name) == (namespace, name))
        return next(found, None)

    def _path(self, uid: str) -> Path:
        return self._directory / f"{uid}.json"


class ContainerCreator(Protocol):
    """The protocol of a runtime's container service."""

    async def create(
        self, pod: JsonObject, sandbox: str, name: str, allocated: AllocateResponse
    ) -> Container:
        """Make the container of that name, with its allocation by plugins, in a sandbox; ContainerError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedContainers:
    """Containers that exist only as records; fields as the parameters of `new_container`."""

    cdi_dirs: Sequence[Path]
    host_root: Path

    async def create(
        self,
        pod: JsonObject,  # noqa: ARG002
        sandbox: str,  # noqa: ARG002
        name: str,
        allocated: AllocateResponse,
    ) -> Container:
        """Return the container as a runtime would create it."""
        return new_container(name, allocated, self.cdi_dirs, self.host_root)


def new_container(
    name: str, allocated: AllocateResponse, cdi_dirs: Sequence[Path], host_root: Path
) -> Container:
    """Make a container with kubelet's requests, and the edits of CDI specifications for its devices.

    host_root: where the host's device nodes are. ContainerError.
    """
    try:
        devices = {node.path: node for spec in allocated.devices for node in _host_nodes(spec, host_root)}
        edits = edits_for(allocated.cdi_devices, cdi_dirs)
        for edit in edits:
            devices |= {node.path: _cdi_node(node, host_root) for node in edit.device_nodes}
    except (UnresolvableError, OSError) as error:
        reason = (
            f"CDI device injection failed: {error}" if isinstance(error, UnresolvableError) else str(error)
        )
        raise ContainerError(f"failed to create containerd container: {reason}") from error
    return Container(
        name=name,
        envs={**allocated.envs, **_environment(edits)},
        annotations=allocated.annotations,
        devices=tuple(devices.values()),
        mounts=(*allocated.mounts, *_mounts(edits)),
        cdi_devices=allocated.cdi_devices,
    )


def _environment(edits: Sequence[Edits]) -> dict[str, str]:
    pairs = (variable.partition("=") for edit in edits for variable in edit.env)
    return {name: value for name, _, value in pairs}


def _mounts(edits: Sequence[Edits]) -> Iterator[Mount]:
    for edit in edits:
        for mount in edit.mounts:
            yield Mount(path=mount.container_path, host_path=mount.host_path, read_only="ro" in mount.options)


def _host_nodes(spec: DeviceSpec, host_root: Path) -> Iterator[DeviceNode]:
    """The device node at a path of the host, or all below it if that is a directory; OSError."""
    at_host = _below(host_root, spec.host_path or spec.path)
    if not stat.S_ISDIR(at_host.stat().st_mode):
        yield _node(at_host, spec.path, spec.permissions or _ALL_PERMISSIONS)
        return
    for directory, _, names in os.walk(at_host):
        for name in sorted(names):
            path = Path(directory) / name
            if _kind(path.lstat().st_mode):
                inside = Path(spec.path) / path.relative_to(at_host)
                yield _node(path, str(inside), spec.permissions or _ALL_PERMISSIONS)


def _cdi_node(node: CdiDeviceNode, host_root: Path) -> DeviceNode:
    """Return a node as the specification describes it, or else as the host has it; OSError."""
    permissions = node.permissions or _ALL_PERMISSIONS
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
