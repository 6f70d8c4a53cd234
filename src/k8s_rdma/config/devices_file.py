"""The device plugin's configuration file: its own form, or that of Mellanox/k8s-rdma-shared-dev-plugin.

The latter is read as that program reads it (Go's `encoding/json`): keys without regard to case, null as
absent, unknown ones passed over, of which the caller is told.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from k8s_rdma.config.devices import DevicePluginConfig
from k8s_rdma.config.files import fit, load_config
from k8s_rdma.config.hardware import is_netdev_name
from k8s_rdma.core.options import LinkType
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.json import decode
from k8s_rdma.wire.resource_names import is_resource_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

DEFAULT_FILE = "/k8s-rdma-shared-dev-plugin/config.json"
"""Where its manifests mount it."""

DEFAULT_PREFIX = "rdma"
DEFAULT_RESCAN_S = 60
MOST_SHARES = 100_000

_KEYS: Mapping[str, Any] = {
    "periodicUpdateInterval": None,
    "configList": {
        "resourceName": None,
        "resourcePrefix": None,
        "rdmaHcaMax": None,
        "devices": None,
        "selectors": {
            "vendors": None,
            "deviceIDs": None,
            "drivers": None,
            "ifNames": None,
            "linkTypes": None,
        },
    },
}
_LINK_TYPES = {"ether": LinkType.ETHERNET, "infiniband": LinkType.INFINIBAND}
"""As netlink names what a link carries, in that program's files."""

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_HEX = re.compile(r"[0-9a-f]{4}")

_NO_NETDEV = "."
"""A name that no netdev has, as `dev_valid_name` of the kernel's net/core/dev.c refuses it."""


class Selectors(msgspec.Struct, frozen=True, kw_only=True, rename={"device_ids": "deviceIDs"}):
    """Selectors of that program: each set that is not empty must match by any of its values."""

    vendors: tuple[str, ...] = ()
    device_ids: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()
    if_names: tuple[str, ...] = msgspec.field(default=(), name="ifNames")
    link_types: tuple[str, ...] = msgspec.field(default=(), name="linkTypes")


class Entry(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A resource. devices: netdevs, before there were selectors."""

    resource_name: str = ""
    resource_prefix: str = ""
    rdma_hca_max: int = 0
    devices: tuple[str, ...] = ()
    selectors: Selectors = Selectors()


class MellanoxConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The file. periodic_update_interval: seconds; 0 for never."""

    periodic_update_interval: int = DEFAULT_RESCAN_S
    config_list: tuple[Entry, ...] = ()


class Read(NamedTuple):
    """A configuration, and what of the file means nothing: keys that are not known, names of no netdev."""

    config: DevicePluginConfig
    ignored: tuple[str, ...]


def is_mellanox(document: object) -> bool:
    """Report whether a file is meant for that program."""
    return isinstance(document, dict) and any(str(key).lower() == "configlist" for key in document)


def from_mellanox(document: object, *, cdi: bool, overrides: Mapping[str, Any]) -> Read:
    """MalformedError names the field. overrides: keys of our own file, and values."""
    ignored: list[str] = []
    read = fit(MellanoxConfig, _without_unknown_keys(document, _KEYS, "", ignored))
    ignored += _names_of_nothing(read.config_list)
    own = {"rescanS": _rescan_s(read), "resources": _resources(read.config_list, cdi=cdi)}
    return Read(fit(DevicePluginConfig, {**own, **overrides}), tuple(ignored))


def _without_unknown_keys(
    value: object, keys: Mapping[str, Any] | None, path: str, ignored: list[str]
) -> object:
    """The value with keys as they are written in the documents of that program, and no others."""
    if isinstance(value, list):
        return [
            _without_unknown_keys(item, keys, f"{path}[{index}]", ignored) for index, item in enumerate(value)
        ]
    if not isinstance(value, dict) or keys is None:
        return value
    names = {name.lower(): name for name in keys}
    result: dict[str, object] = {}
    for key, entry in value.items():
        key_path = f"{path}.{key}".lstrip(".")
        name = names.get(str(key).lower())
        if name is None:
            ignored.append(key_path)
        elif entry is not None:
            result[name] = _without_unknown_keys(entry, keys[name], key_path, ignored)
    return result


def _rescan_s(read: MellanoxConfig) -> int:
    if read.periodic_update_interval < 0:
        raise MalformedError(
            f"periodicUpdateInterval: {read.periodic_update_interval}; wanted seconds, or 0 for never"
        )
    return read.periodic_update_interval


def _resources(entries: Sequence[Entry], *, cdi: bool) -> list[dict[str, Any]]:
    if not entries:
        raise MalformedError("configList: is empty or missing: no resources are configured")
    resources = []
    places: dict[str, int] = {}
    for index, entry in enumerate(entries):
        resource = _resource(entry, f"configList[{index}]", cdi=cdi)
        first = places.setdefault(resource["name"], index)
        if first != index:
            raise MalformedError(
                f"configList[{index}].resourceName: {resource['name']} is that of configList[{first}] already"
            )
        resources.append(resource)
    return resources


def _resource(entry: Entry, path: str, *, cdi: bool) -> dict[str, Any]:
    prefix = entry.resource_prefix or DEFAULT_PREFIX
    if not _NAME.fullmatch(entry.resource_name):
        raise MalformedError(
            f"{path}.resourceName: {entry.resource_name!r}; wanted letters, digits and -_. between them"
        )
    if not is_resource_name(f"{prefix}/{entry.resource_name}"):
        raise MalformedError(
            f"{path}.resourcePrefix: {prefix!r}; wanted a domain other than Kubernetes' own, "
            "since kubelet takes no other"
        )
    if not 0 <= entry.rdma_hca_max <= MOST_SHARES:
        raise MalformedError(f"{path}.rdmaHcaMax: {entry.rdma_hca_max}; wanted 0 to {MOST_SHARES}")
    return {
        "mode": "shared",
        "name": f"{prefix}/{entry.resource_name}",
        "count": entry.rdma_hca_max,
        "cdi": cdi,
        "select": _select(entry, path),
    }


def _select(entry: Entry, path: str) -> dict[str, Any]:
    selectors = entry.selectors
    if selectors == Selectors():
        if not entry.devices:
            raise MalformedError(f"{path}: has neither selectors nor devices, and would offer nothing")
        return {"ifNames": _netdevs(entry.devices)}
    if entry.devices:
        raise MalformedError(
            f"{path}: has both selectors and devices; selectors.ifNames are the same as devices"
        )
    return {
        "vendors": _hex(selectors.vendors, f"{path}.selectors.vendors"),
        "deviceIds": _hex(selectors.device_ids, f"{path}.selectors.deviceIDs"),
        "drivers": selectors.drivers,
        "ifNames": _netdevs(selectors.if_names),
        "linkTypes": _link_types(selectors.link_types, f"{path}.selectors.linkTypes"),
    }


def _netdevs(names: Sequence[str]) -> list[str]:
    """Keep names that a netdev can have; without any, one that selects nothing."""
    netdevs = [name for name in names if is_netdev_name(name)]
    return netdevs or [_NO_NETDEV for _ in names[:1]]


def _names_of_nothing(entries: Sequence[Entry]) -> Iterator[str]:
    """Find names that no netdev can have, such as patterns, which have no effect."""
    for index, entry in enumerate(entries):
        for key, names in (("devices", entry.devices), ("selectors.ifNames", entry.selectors.if_names)):
            for position, name in enumerate(names):
                if not is_netdev_name(name):
                    yield f"configList[{index}].{key}[{position}]"


def _hex(values: Sequence[str], path: str) -> list[str]:
    for index, value in enumerate(values):
        if not _HEX.fullmatch(value.lower()):
            raise MalformedError(f"{path}[{index}]: {value!r}; wanted four hexadecimal digits, such as 15b3")
    return [value.lower() for value in values]


def _link_types(values: Sequence[str], path: str) -> list[LinkType]:
    for index, value in enumerate(values):
        if value not in _LINK_TYPES:
            raise MalformedError(f"{path}[{index}]: {value!r}; wanted {' or '.join(_LINK_TYPES)}")
    return [_LINK_TYPES[value] for value in values]


_decoder = msgspec.json.Decoder(object)


def load_device_config(path: str | None, overrides: Mapping[str, Any], *, cdi: bool = False) -> Read:
    """Load a configuration of either program, told apart by its keys. cdi: for all of that file's.

    MalformedError as well for cdi with another file, whose resources say for themselves.
    """
    document = _json(path) if path else None
    if path is None or not is_mellanox(document):
        if cdi:
            raise MalformedError(
                f"{path}: has no configList, which --use-cdi is for; say cdi: true of a resource"
            )
        return Read(load_config(DevicePluginConfig, path, overrides), ())
    return _from_mellanox(document, path, overrides, cdi=cdi)


def load_mellanox_config(path: str, overrides: Mapping[str, Any], *, cdi: bool) -> Read:
    """Load a file that can be no other's. MalformedError names it, and the field."""
    try:
        document = decode(Path(path).read_bytes(), _decoder, path)
    except OSError as error:
        raise MalformedError(f"{path}: {error.strerror}") from error
    if not isinstance(document, dict):
        raise MalformedError(f"{path}: is no object; wanted one with configList")
    return _from_mellanox(document, path, overrides, cdi=cdi)


def _from_mellanox(document: object, path: str, overrides: Mapping[str, Any], *, cdi: bool) -> Read:
    fields = {key: value for key, value in overrides.items() if value is not None}
    try:
        return from_mellanox(document, cdi=cdi, overrides=fields)
    except MalformedError as error:
        raise MalformedError(f"{path}: {error.message}") from error


def _json(path: str) -> object:
    """Read JSON; None for what is none, or unreadable: `load_config` reports that."""
    try:
        return msgspec.json.decode(Path(path).read_bytes())
    except (OSError, msgspec.DecodeError):
        return None
