"""Files from which a container runtime takes a node's network, and ours, made of one of them.

Source: CNI specification 1.1.0, section 1; `ConfFiles`, `ConfListFromBytes` and `ConfListFromConf` of
libcni 1.1 (libcni/conf.go), and `loadFromConfDir` of containerd's go-cni 1.1, which uses the first file
alone.

A runtime's cache has the configuration of an attachment's ADD and the result. Source: libcni 1.1
(`cachedInfo` in libcni/api.go), which containerd, CRI-O and Multus use: one file for each attachment,
`<cache directory>/results/<network>-<container>-<interface>`, from ADD to DEL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.cni_request import POD_ANNOTATIONS, decode_netconf
from k8s_rdma.wire.cni_result import SUPPORTED_VERSIONS, highest_common
from k8s_rdma.wire.json import decode
from k8s_rdma.wire.json_faults import shown
from k8s_rdma.wire.nesting import load
from k8s_rdma.wire.plugin_config import address_spaces

SUFFIXES = (".conf", ".conflist", ".json")
"""The suffixes of the files that are read; files with other suffixes are ignored."""
PLUGIN = "k8s-rdma-cni"
LEGACY_PLUGIN = "rit-k8s-rdma-cni-linux-amd64"
"""The plugin's name in configurations of the system that this one replaces."""
OURS = frozenset({PLUGIN, LEGACY_PLUGIN})
"""The names by which a list has our plugin."""
MULTUS = frozenset({"multus", "multus-shim", "multus-cni"})
ORIGIN_KEY = "k8s-rdma.io/made-of"
"""The key of a list of ours that names its origin; runtimes pass over keys that they do not know."""

_UNCHECKED = {"disableCheck": msgspec.Raw(b"true")}
"""`bridge`, `ptp` and others take all addresses of a result for their own interface's, and fail CHECK over
ours (`ValidateExpectedInterfaceIPs` of plugins 1.9). CRI-O calls CHECK for every pod that it starts."""

_OF_SRIOV_CNI = frozenset(
    {
        *("vlanQoS", "vlanProto", "mac", "spoofchk", "trust", "link_state", "min_tx_rate", "max_tx_rate"),
        *("logLevel", "logFile", "pkey", "rdmaIsolation", "ibKubernetesEnabled", "resourceName"),
    }
)
"""Keys of sriov-cni's and ib-sriov-cni's configuration, and of objects of their operator, that ours lacks."""

_OF_THE_LIST = ("type", "name", "cniVersion", "prevResult", "runtimeConfig")

_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_plugins_decoder = msgspec.json.Decoder(tuple[msgspec.Raw, ...])

_flags_decoder = msgspec.json.Decoder(dict[str, bool])
_text_decoder = msgspec.json.Decoder(str)
_versions_decoder = msgspec.json.Decoder(tuple[str, ...])

_BESIDE_INTERFACES = frozenset({"loopback", "portmap", "bandwidth", "firewall", "tuning", "sbr", "vrf"})
"""Plugins that give a pod no interface to others; packages of runtimes bring a file of `loopback` alone."""


class UnfitError(MalformedError):
    """A sound configuration that ours cannot be chained to."""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """file: the other's; empty if ours stands alone. types: of the plugins that were taken from it."""

    file: str = ""
    types: tuple[str, ...] = ()


class _Plugin(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a plugin's section that libcni decodes: a fault there refuses the whole file."""

    type: str
    capabilities: dict[str, bool] | None = None
    ipam: dict[str, msgspec.Raw] | None = None
    dns: dict[str, msgspec.Raw] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfList:
    """A list of plugins: all keys but `plugins`, and those plugins' sections, as they were written."""

    fields: Mapping[str, msgspec.Raw]
    plugins: tuple[msgspec.Raw, ...]
    types: tuple[str, ...]


_plugin_decoder = msgspec.json.Decoder(_Plugin)
_made_of_decoder = msgspec.json.Decoder(Origin)


def is_read(name: str) -> bool:
    """Report whether runtimes read a file of this name."""
    return name.endswith(SUFFIXES)


def decode_conf(name: str, data: bytes) -> ConfList:
    """Read a file, list or single plugin as its name says; MalformedError names the file and the place."""
    fields = decode(data, _fields_decoder, name, Reason.INVALID_NETCONF)
    if not name.endswith(".conflist") and "plugins" in fields and "type" not in fields:
        msg = f"{name}: plugins: is a list, which runtimes read from .conflist alone; rename the file"
        raise MalformedError(msg, reason=Reason.INVALID_NETCONF)
    if name.endswith(".conflist"):
        plugins = decode(fields.pop("plugins", msgspec.Raw(b"[]")), _plugins_decoder, f"{name}: plugins")
    else:
        plugins = (msgspec.Raw(data),)
        fields = {key: fields[key] for key in ("cniVersion", "name") if key in fields}
    if not plugins:
        raise MalformedError(f"{name}: plugins: there are none", reason=Reason.INVALID_NETCONF)
    if not _text(name, "name", fields):
        raise MalformedError(f"{name}: name: missing or empty", reason=Reason.INVALID_NETCONF)
    types = tuple(_type(name, number, plugin) for number, plugin in enumerate(plugins))
    return ConfList(fields=fields, plugins=plugins, types=types)


def gives_no_interface(name: str, data: bytes) -> bool:
    """Report whether by a file a pod has no interface to others; False for a malformed one."""
    try:
        return _BESIDE_INTERFACES.issuperset(decode_conf(name, data).types)
    except MalformedError:
        return False


def _type(name: str, number: int, section: msgspec.Raw) -> str:
    found = decode(section, _plugin_decoder, f"{name}: plugins[{number}]", Reason.INVALID_NETCONF).type
    if not found:
        raise MalformedError(f"{name}: plugins[{number}].type: empty", reason=Reason.INVALID_NETCONF)
    return found


def _text(name: str, key: str, fields: Mapping[str, msgspec.Raw]) -> str:
    value = fields.get(key, msgspec.Raw(b"null"))
    return "" if bytes(value) == b"null" else decode(value, _text_decoder, f"{name}: {key}")


def read_origin(data: bytes) -> Origin | None:
    """Read the origin of a file of ours, if it is one."""
    try:
        origin = decode(data, _fields_decoder, "").get(ORIGIN_KEY)
        return None if origin is None else decode(origin, _made_of_decoder, "")
    except MalformedError:
        return None


def plugin_section(text: bytes, *, chained: bool) -> msgspec.Raw:
    """Our plugin's section, with the keys of a JSON object in it; MalformedError names the key.

    The capability by which runtimes tell pods' annotations is there in any case.
    """
    subject = "--plugin"
    decoded = decode(text, _fields_decoder, subject, Reason.INVALID_NETCONF)
    for key in _OF_THE_LIST:
        if key in decoded:
            raise MalformedError(f"{subject}: {key}: is not for you to set", reason=Reason.INVALID_NETCONF)
    if theirs := sorted(_OF_SRIOV_CNI.intersection(decoded)):
        keys = ", ".join(theirs)
        msg = f"{subject}: {keys}: of sriov-cni; pods set it by annotation: docs/migration-sriov.md"
        raise MalformedError(msg, reason=Reason.INVALID_NETCONF)
    if chained and "delegate" in decoded:
        msg = f"{subject}: delegate: is for --network alone; chained, another plugin stands before this one"
        raise MalformedError(msg, reason=Reason.INVALID_NETCONF)
    flags = decode(
        decoded.pop("capabilities", msgspec.Raw(b"{}")), _flags_decoder, f"{subject}: capabilities"
    )
    capabilities = {**flags, POD_ANNOTATIONS: True}
    section: dict[str, object] = {"type": PLUGIN, "capabilities": capabilities, **decoded}
    try:
        conf = decode_netconf(msgspec.json.encode({"cniVersion": "1.0.0", "name": "k8s-rdma", **section}))
        for name, network in conf.networks.items():
            address_spaces(network.ipam, f"networks.{name}.ipam")
        address_spaces(conf.ipam)
    except MalformedError as error:
        raise MalformedError(f"{subject}: {error.message}", reason=error.reason) from error
    return msgspec.Raw(msgspec.json.encode(section))


def chained_list(name: str, data: bytes, section: msgspec.Raw, own: bytes | None) -> bytes:
    """Return another's file with our plugin as its last, with the changes of others in our own file.

    CHECK is off, unless the other's file turns it on.
    MalformedError for a file that a runtime could not read either.
    UnfitError for a file that our plugin cannot be chained to.

    name: that file.
    own: ours as it is now.
    """
    primary = decode_conf(name, data)
    _check_types(name, primary.types)
    fields = {**_UNCHECKED, **primary.fields, **_versions(name, primary.fields)}
    plugins_before, after = _added(own, primary.types)
    plugins = [*primary.plugins, *plugins_before, section, *after]
    return _encoded(fields, plugins, Origin(file=name, types=primary.types))


def names_ours(data: bytes) -> bool:
    """Report whether another's file calls our plugin, also through a plugin that calls others.

    Multus has whole lists in its `delegates`, and flannel, or our own, has a plugin in `delegate`; so any
    `type` counts, at any depth. A file that is no JSON calls no plugin, because no runtime could read it.
    """
    try:
        stack: list[object] = [load(data.decode(errors="replace"))]
    except ValueError:
        return False
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            if value.get("type") in (PLUGIN, LEGACY_PLUGIN):
                return True
            stack.extend(value.values())
        elif isinstance(value, list):
            stack.extend(value)
    return False


def is_chained(name: str, data: bytes) -> bool:
    """Report whether another's file has our plugin in it, and pods get it beside their ordinary interface.

    False for a file without our plugin.
    MalformedError for a file that a runtime could not read either.
    UnfitError for a file that would make pods fail, or leave them without an ordinary interface.
    """
    primary = decode_conf(name, data)
    place = next((number for number, kind in enumerate(primary.types) if kind in OURS), None)
    if place is None:
        return False
    _versions(name, primary.fields)
    section = decode(primary.plugins[place], _fields_decoder, name)
    if place == 0 and "delegate" not in section:
        raise UnfitError(f"{name}: {primary.types[0]}: has no plugin before it, and no delegate")
    fields = {key: primary.fields[key] for key in ("cniVersion", "name") if key in primary.fields}
    try:
        decode_netconf(msgspec.json.encode({**fields, **section}))
    except MalformedError as error:
        raise UnfitError(f"{name}: plugins[{place}]: {error.message}") from error
    return True


def lone_list(network: str, version: str, section: msgspec.Raw) -> bytes:
    """Return a network of our plugin alone."""
    fields = {"cniVersion": msgspec.json.encode(version), "name": msgspec.json.encode(network)}
    return _encoded({key: msgspec.Raw(value) for key, value in fields.items()}, [section], Origin())


def same_list(current: bytes | None, desired: bytes | None) -> bool:
    """Report whether they say the same, however it is laid out."""
    if current is None or desired is None:
        return current is desired
    try:
        return bool(load(current) == load(desired))
    except ValueError:
        return False


def _encoded(fields: Mapping[str, msgspec.Raw], plugins: Iterable[msgspec.Raw], origin: Origin) -> bytes:
    document = {**fields, ORIGIN_KEY: origin, "plugins": list(plugins)}
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _check_types(name: str, types: Iterable[str]) -> None:
    for found in types:
        if found in MULTUS:
            msg = f"{name}: is that of Multus; use --network none and a NetworkAttachmentDefinition"
            raise UnfitError(msg)


def _versions(name: str, fields: Mapping[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    """Return the list's versions that our plugin speaks as well; UnfitError if there is no such version.

    A list without a version is of 0.1.0, and stays so, because the other plugin's results would change with
    it.
    """
    version = _text(name, "cniVersion", fields) or SUPPORTED_VERSIONS[0]
    several = decode(fields.get("cniVersions", msgspec.Raw(b"[]")), _versions_decoder, f"{name}: cniVersions")
    newest = highest_common((version, *several))
    if newest is None:
        spoken = f"{PLUGIN} speaks {', '.join(SUPPORTED_VERSIONS)}"
        raise UnfitError(f"{name}: cniVersion: {shown(version)} is not supported: {spoken}")
    result: dict[str, msgspec.Raw] = {}
    if version not in SUPPORTED_VERSIONS:
        result["cniVersion"] = msgspec.Raw(msgspec.json.encode(newest))
    if several:
        spoken_by_both = [candidate for candidate in several if candidate in SUPPORTED_VERSIONS]
        result["cniVersions"] = msgspec.Raw(msgspec.json.encode(spoken_by_both))
    return result


def _added(own: bytes | None, types: Iterable[str]) -> tuple[list[msgspec.Raw], list[msgspec.Raw]]:
    """Plugins that others put into our file, before ours and behind it.

    Installers of chained plugins (service meshes) write into the first file, which is ours; were theirs to
    vanish from it, they and we would write it in turns.
    """
    origin = read_origin(own) if own is not None else None
    if own is None or origin is None:
        return [], []
    try:
        found = decode_conf(".conflist", own)
    except MalformedError:
        return [], []
    types_known = {*types, *origin.types}
    sides: tuple[list[msgspec.Raw], list[msgspec.Raw]] = ([], [])
    behind = False
    for section, kind in zip(found.plugins, found.types, strict=True):
        behind |= kind == PLUGIN
        if kind not in types_known and kind not in OURS:
            sides[behind].append(section)
    return sides
