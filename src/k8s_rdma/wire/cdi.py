"""Device specifications for container runtimes: which device nodes a container gets with a named device.

Source: CNCF Container Device Interface, SPEC.md. Specifications are written as version 0.5.0, the first in
which a device's name may begin with a digit, so that every runtime that knows that version reads them.

The device plugin has the agent publish its resources as CDI devices, on the agent's `cdi.sock` (mode 0600),
in lines of JSON. The plugin declares all of its devices whenever they change; the agent answers each
declaration in its order. The plugin never names device nodes: the agent finds them by the names of RDMA
devices, so that no client can have it publish anything else. A declaration holds for as long as the
connection.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, NoReturn

import msgspec

from k8s_rdma.core.node_paths import CDI_SOCKET
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.json import decode
from k8s_rdma.wire.json_faults import shown

if TYPE_CHECKING:
    from collections.abc import Sequence


VERSION = "0.5.0"

VENDOR = "k8s-rdma.io"
VF_CLASS = "vf"
SLOT_CLASS = "slot"
CLAIM_CLASS = "claim"
SHARED_CLASS = "shared"

_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_VENDOR = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_CLASS = re.compile(r"[A-Za-z]([-_A-Za-z0-9]{0,61}[A-Za-z0-9])?")
_DEVICE = re.compile(r"[A-Za-z0-9]([-_.:A-Za-z0-9]*[A-Za-z0-9])?")
_PERMISSIONS = re.compile(r"r?w?m?")
_MAX_VENDOR = 253

_encoder = msgspec.json.Encoder()

_NAME_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"

RESOURCE_PATTERN = (
    r"^(?!requests\.)(?![^/]*kubernetes\.io/)"
    rf"(?=[^/]{{1,244}}/){_NAME_LABEL}(\.{_NAME_LABEL})*/"
    "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
)

ResourceName = Annotated[str, msgspec.Meta(pattern=RESOURCE_PATTERN)]
"""An extended resource's name: a domain that is not Kubernetes' own, and a name of at most 63 characters.

Kubelet accepts no other name, because a quota must be able to name it with `requests.` before it
(`IsExtendedResourceName` in Kubernetes' pkg/apis/core/v1/helper)."""

ResourceText = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": RESOURCE_PATTERN})]
"""A `ResourceName` that people write: `require_resource_name` checks it, because a pattern gives no
reasons."""

MAX_LINE_BYTES = 1 << 20
"""8 resources of 1,000 devices each are 80 KiB."""

RdmaDeviceName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][-_.A-Za-z0-9]{0,63}\Z")]
Resources = Annotated[dict[ResourceName, tuple[RdmaDeviceName, ...]], msgspec.Meta(max_length=256)]
"""Each is a file, and a look at all character devices of the node, for which ADDs wait."""


class DeviceNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A device node of the host; path: in the container, and on the host unless host_path says another.

    type, major, minor: as of mknod(1), so that the runtime need not look; empty and 0 for it to do so.
    """

    path: str
    host_path: str = ""
    type: str = ""
    major: int = 0
    minor: int = 0
    permissions: str = "rwm"


class Hook(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A program that the runtime runs at a point of a container's life, with its state on stdin.

    hook_name: of OCI's runtime specification, "POSIX-platform Hooks".
    path: on the host.
    args: with the program's name as the first.
    timeout: in seconds.
    """

    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    timeout: int = 0


class CdiMount(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A file of the host that the container sees at another path. options: as of mount(8)."""

    host_path: str
    container_path: str
    options: tuple[str, ...]


class ContainerEdits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The edits of a container that gets the device; env: `NAME=value`."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    hooks: tuple[Hook, ...] = ()
    mounts: tuple[CdiMount, ...] = ()


class CdiDevice(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A device by its name in the specification's kind."""

    name: str
    container_edits: ContainerEdits


class _Specification(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    cdi_version: str
    kind: str
    devices: tuple[CdiDevice, ...]


def encode_specification(devices: Sequence[CdiDevice], *, vendor: str, device_class: str) -> bytes:
    """Return a specification file's content.

    MalformedError names the violation of the specification: a name, a path that is not absolute, no device, a
    device that occurs twice, or an edit without content.
    """
    _check(vendor, device_class, devices)
    kind = f"{vendor}/{device_class}"
    return _encoder.encode(_Specification(cdi_version=VERSION, kind=kind, devices=tuple(devices)))


def qualified_name(device: str, *, vendor: str = VENDOR, device_class: str = VF_CLASS) -> str:
    """Return the name of a device for runtimes: `vendor/class=device`. MalformedError for invalid names."""
    _check_names(vendor, device_class, [device])
    return f"{vendor}/{device_class}={device}"


def vfio_nodes(group: str) -> tuple[DeviceNode, ...]:
    """Return the device nodes of a VF that a program in the container drives.

    group: the device node of its IOMMU group, such as `/dev/vfio/42`.
    """
    return tuple(DeviceNode(path=path, permissions="rw") for path in ("/dev/vfio/vfio", group))


def character_node(path: str, major: int, minor: int) -> DeviceNode:
    """Return a character device that may be read and written."""
    return DeviceNode(path=path, type="c", major=major, minor=minor, permissions="rw")


def encode_own(device_class: str, name: str, edits: ContainerEdits) -> bytes:
    """Return the specification of one device of ours; MalformedError as of `encode_specification`."""
    device = CdiDevice(name=name, container_edits=edits)
    return encode_specification([device], vendor=VENDOR, device_class=device_class)


def file_name(device_class: str, device: str) -> str:
    """Return the name of a device's file; it does not depend on the holder, so that there are never two."""
    return f"{VENDOR}-{device_class}_{device}.json"


def device_of_file_name(device_class: str, name: str) -> str | None:
    """Return the device, if the file is ours and of this class."""
    start, end = f"{VENDOR}-{device_class}_", ".json"
    if not (name.startswith(start) and name.endswith(end)) or len(name) <= len(start + end):
        return None
    return name.removeprefix(start).removesuffix(end)


def _check(vendor: str, device_class: str, devices: Sequence[CdiDevice]) -> None:
    names = [device.name for device in devices]
    _check_names(vendor, device_class, names)
    if not names or len(set(names)) != len(names):
        _refuse("devices", "wanted at least one, none twice", ", ".join(names))
    for index, device in enumerate(devices):
        _check_edits(f"devices[{index}].containerEdits", device.container_edits)


def _check_names(vendor: str, device_class: str, devices: Sequence[str]) -> None:
    if not _VENDOR.fullmatch(vendor) or len(vendor) > _MAX_VENDOR:
        _refuse("kind", "its vendor is no DNS subdomain", vendor)
    if not _CLASS.fullmatch(device_class):
        _refuse("kind", "its class is not made of at most 63 letters, digits, - and _", device_class)
    for index, name in enumerate(devices):
        if not _DEVICE.fullmatch(name):
            _refuse(f"devices[{index}].name", "not made of letters, digits, -, _, . and :", name)


def _check_edits(place: str, edits: ContainerEdits) -> None:
    if edits == ContainerEdits():
        _refuse(place, "edits nothing", "")
    for index, node in enumerate(edits.device_nodes):
        _check_path(f"{place}.deviceNodes[{index}].path", node.path)
        _check_path(f"{place}.deviceNodes[{index}].hostPath", node.host_path or node.path)
        if not _PERMISSIONS.fullmatch(node.permissions):
            _refuse(f"{place}.deviceNodes[{index}].permissions", "not made of r, w and m", node.permissions)
    for index, hook in enumerate(edits.hooks):
        _check_path(f"{place}.hooks[{index}].path", hook.path)
    for index, mount in enumerate(edits.mounts):
        _check_path(f"{place}.mounts[{index}].hostPath", mount.host_path)
        _check_path(f"{place}.mounts[{index}].containerPath", mount.container_path)
    for index, variable in enumerate(edits.env):
        if not variable.partition("=")[0] or "=" not in variable:
            _refuse(f"{place}.env[{index}]", "not NAME=value", variable)


def _check_path(place: str, path: str) -> None:
    if not path.startswith("/") or ".." in path.split("/"):
        _refuse(place, "not an absolute path", path)


def _refuse(field: str, why: str, found: str) -> NoReturn:
    msg = f"CDI specification: {field}: {why}: {shown(found)}"
    raise MalformedError(msg)


def is_resource_name(text: str) -> bool:
    """Report whether a text is a `ResourceName`."""
    return re.fullmatch(RESOURCE_PATTERN, text) is not None


def require_resource_name(key: str, text: str) -> None:
    """ValueError, in words, when a key's text is no `ResourceName`."""
    if not is_resource_name(text):
        msg = (
            f"{key}: {text!r}; wanted a domain other than Kubernetes' own, a slash, and at most 63 "
            "letters, digits and -_. between them, as in example.com/rdma"
        )
        raise ValueError(msg)


class Declared(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """resources: RDMA devices by the shared resource whose holders get them all."""

    resources: Resources = {}


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """resources: those that have a specification. failed: why one has no specification, by resource."""

    resources: tuple[str, ...] = ()
    failed: dict[str, str] = {}


_declared = msgspec.json.Decoder(Declared)
_written = msgspec.json.Decoder(Written)


def encode_line(message: Declared | Written) -> bytes:
    """Return the message, and the end of its line."""
    return _encoder.encode(message) + b"\n"


def decode_declared(line: bytes) -> Declared:
    """Decode a plugin's declaration; MalformedError names the field."""
    return decode(line, _declared, CDI_SOCKET)


def decode_written(line: bytes) -> Written:
    """Decode the agent's answer; MalformedError names the field."""
    return decode(line, _written, CDI_SOCKET)
