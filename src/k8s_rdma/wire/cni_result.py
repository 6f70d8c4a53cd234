"""CNI results and errors, in any version."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_interface, ip_network
from typing import TYPE_CHECKING

import msgspec

from k8s_rdma.errors import STATUS, K8sRdmaError, MalformedError, Reason
from k8s_rdma.wire.cni_socket import MAX_STDOUT_BYTES
from k8s_rdma.wire.ipam_result import NO_ADDRESSES, NO_DNS, IpamResult
from k8s_rdma.wire.json import decode
from k8s_rdma.wire.json_faults import shown

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from k8s_rdma.core.step import Route


SUPPORTED_VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
"""The supported versions of the specification, oldest first."""
WITHOUT_INTERFACES = ("0.1.0", "0.2.0")
"""The versions whose results are one IPv4 and one IPv6 address, without interfaces and without
`prevResult`."""
WITH_IP_VERSION = ("0.3.0", "0.3.1", "0.4.0")
"""The versions in whose results each address has its IP version."""
WITHOUT_IP_VERSION = ("1.0.0", "1.1.0")
"""The versions after these."""
_SHAPES = (WITHOUT_INTERFACES, WITH_IP_VERSION, WITHOUT_IP_VERSION)
WITH_DETAILS = ("1.1.0",)
"""An interface has MTU and PCI address, and a route more than destination and gateway."""
SINCE_CHECK = SUPPORTED_VERSIONS[SUPPORTED_VERSIONS.index("0.4.0") :]
SINCE_GC = SUPPORTED_VERSIONS[SUPPORTED_VERSIONS.index("1.1.0") :]
"""The versions with GC and STATUS."""

MOST_ERROR_CHARACTERS = 32 << 10
"""The limit of an error's `msg`, and of its `details`: other plugins' errors may be of any length."""

Fields = dict[str, msgspec.Raw]

_encoder = msgspec.json.Encoder()

_fields_decoder = msgspec.json.Decoder(Fields)
_text_decoder = msgspec.json.Decoder(str)
_items_decoder = msgspec.json.Decoder(list[msgspec.Raw] | None)

_FAMILIES = (4, 6)

_any_items_decoder = msgspec.json.Decoder(list[Fields] | None)
_index_decoder = msgspec.json.Decoder(int)


class _Versions(msgspec.Struct, frozen=True, rename="camel"):
    supported_versions: tuple[str, ...]


_decoder = msgspec.json.Decoder(_Versions)


def check_version(version: str) -> None:
    """K8sRdmaError (`INCOMPATIBLE_CNI_VERSION`) unless results can be given in this version."""
    if version not in SUPPORTED_VERSIONS:
        raise K8sRdmaError(
            f"incompatible CNI version: the network configuration asks for {shown(version)}",
            reason=Reason.INCOMPATIBLE_CNI_VERSION,
            details=f"supported are {', '.join(SUPPORTED_VERSIONS)}",
        )


def decode_versions(stdout: bytes) -> tuple[str, ...]:
    """Decode a plugin's answer to VERSION; MalformedError if it is no such answer."""
    return decode(stdout, _decoder, "VERSION result").supported_versions


def highest_common(versions: Iterable[str], limit: str = SUPPORTED_VERSIONS[-1]) -> str | None:
    """Return the newest version that is spoken here and by them, not above one that is spoken here."""
    spoken = set(versions)
    newest_first = reversed(SUPPORTED_VERSIONS[: SUPPORTED_VERSIONS.index(limit) + 1])
    return next((version for version in newest_first if version in spoken), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultInterface:
    """An interface in a pod.

    sandbox: the path of its network namespace.
    mac: empty if it has no MAC.
    mtu, pci: bytes, and its own address on that bus; in version 1.1.0 only. 0 and empty if not known.
    """

    name: str
    mac: str
    sandbox: str
    mtu: int = 0
    pci: str = ""
    ipam: IpamResult = NO_ADDRESSES


class _Interface(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    mac: str = ""
    mtu: int = 0
    sandbox: str = ""
    pci: str = msgspec.field(default="", name="pciID")


class _Route(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    dst: str
    gw: str | None = None
    mtu: int | None = None
    advmss: int | None = None
    priority: int | None = None
    table: int | None = None
    scope: int | None = None


class _Ip(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    version: str | None = None
    interface: int | None = None
    address: str
    gateway: str | None = None


class _OldIp(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    ip: str
    gateway: str | None = None
    routes: tuple[_Route, ...] | None = None


class _Error(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    cni_version: str = ""
    code: int
    msg: str
    details: str = ""


_error_decoder = msgspec.json.Decoder(_Error)


def encode_result(
    interfaces: Sequence[ResultInterface], version: str, prev_result: msgspec.Raw | bytes = b""
) -> bytes:
    """Return the result of an ADD: the result of the plugins before, unchanged, and these interfaces.

    Without interfaces that is `prev_result` byte by byte, or an empty result. Data that a version cannot
    express is left out: 0.2.0 and older hold the first IPv4 and the first IPv6 address only. A `prev_result`
    of another version of the same form counts as one of this version, as for the reference plugins.
    K8sRdmaError if the version is not supported.
    MalformedError (`INVALID_NETCONF`) if `prev_result` is no result of that form, or leaves no room for ours
    in `MAX_STDOUT_BYTES`.
    """
    check_version(version)
    fields = _previous(prev_result, version)
    if not interfaces:
        same = bytes(fields.get("cniVersion", b"")) in (b"", _encoder.encode(version))
        as_it_was = bytes(prev_result) if same else b""
        return _fitting(as_it_was or _encoder.encode(fields | {"cniVersion": version}))
    document: dict[str, object] = {"cniVersion": b"", **fields} | {"cniVersion": version}
    if version in WITHOUT_INTERFACES:
        document |= {key: ip for key, ip in _old_ips(interfaces).items() if _is_empty(fields, key)}
    else:
        previous = _items(fields, "interfaces")
        added: dict[str, Iterable[object]] = {
            "interfaces": [_interface(interface, version) for interface in interfaces],
            "ips": _ips(interfaces, first_index=len(previous), with_version=version in WITH_IP_VERSION),
            "routes": [_route(route, version) for attached in interfaces for route in attached.ipam.routes],
        }
        document |= {key: [*_items(fields, key), *items] for key, items in added.items()}
    if _is_empty(fields, "dns"):
        document |= _dns(interfaces)
    return _fitting(_encoder.encode(document))


def _fitting(result: bytes) -> bytes:
    if (size := len(result)) > MAX_STDOUT_BYTES:
        msg = f"network configuration: prevResult: {size} bytes with ours, {MAX_STDOUT_BYTES} at most"
        raise MalformedError(msg, reason=Reason.INVALID_NETCONF)
    return result


def encode_error(error: K8sRdmaError, version: str) -> bytes:
    """Return the error document of a failed call, its `msg` one line.

    It never fails itself, for any text of the error.
    """
    return _encoder.encode(
        _Error(
            cni_version=version if version in SUPPORTED_VERSIONS else SUPPORTED_VERSIONS[-1],
            code=STATUS[error.reason].cni,
            msg=" ".join(_printable(error.message).split()),
            details=_printable(error.details),
        )
    )


def decode_error(stdout: bytes) -> str | None:
    """Decode a plugin's error document to one line, if it printed one."""
    try:
        error = decode(stdout, _error_decoder, "CNI error")
    except MalformedError:
        return None
    return "; ".join(filter(None, (error.msg, error.details)))


def _previous(prev_result: msgspec.Raw | bytes, version: str) -> dict[str, msgspec.Raw]:
    subject = "network configuration: prevResult"
    if not prev_result:
        return {}
    fields = decode(prev_result, _fields_decoder, subject, Reason.INVALID_NETCONF)
    own_version = fields.get("cniVersion")
    if own_version is not None:
        theirs = decode(own_version, _text_decoder, f"{subject}.cniVersion", Reason.INVALID_NETCONF)
        if theirs != version and not any(theirs in shape and version in shape for shape in _SHAPES):
            msg = (
                f"{subject}.cniVersion: {shown(theirs)} is not the configuration's {version}, nor of its form"
            )
            raise MalformedError(msg, reason=Reason.INVALID_NETCONF)
    return fields


def _items(fields: dict[str, msgspec.Raw], key: str) -> list[msgspec.Raw]:
    if key not in fields:
        return []
    subject = f"network configuration: prevResult.{key}"
    return decode(fields[key], _items_decoder, subject, Reason.INVALID_NETCONF) or []


def _is_empty(fields: dict[str, msgspec.Raw], key: str) -> bool:
    return bytes(fields.get(key, b"{}")) in (b"{}", b"null")


def _interface(interface: ResultInterface, version: str) -> _Interface:
    bare = _Interface(name=interface.name, mac=interface.mac, sandbox=interface.sandbox)
    if version in WITH_DETAILS:
        return msgspec.structs.replace(bare, mtu=interface.mtu, pci=interface.pci)
    return bare


def _route(route: Route, version: str) -> _Route:
    bare = _Route(dst=route.dst, gw=route.gateway)
    if version in WITH_DETAILS:
        return msgspec.structs.replace(
            bare,
            mtu=route.mtu,
            advmss=route.advmss,
            priority=route.priority,
            table=route.table,
            scope=route.scope,
        )
    return bare


def _ips(interfaces: Sequence[ResultInterface], *, first_index: int, with_version: bool) -> Iterator[_Ip]:
    for index, interface in enumerate(interfaces, first_index):
        for ip in interface.ipam.ips:
            yield _Ip(
                version=str(ip.ip_version) if with_version else None,
                interface=index,
                address=ip.address,
                gateway=ip.gateway,
            )


def _old_ips(interfaces: Sequence[ResultInterface]) -> dict[str, _OldIp]:
    result: dict[str, _OldIp] = {}
    for interface in interfaces:
        for ip in interface.ipam.ips:
            routes = tuple(
                _Route(dst=route.dst, gw=route.gateway)
                for route in interface.ipam.routes
                if ip_network(route.dst, strict=False).version == ip.ip_version
            )
            result.setdefault(f"ip{ip.ip_version}", _OldIp(ip=ip.address, gateway=ip.gateway, routes=routes))
    return result


def _dns(interfaces: Iterable[ResultInterface]) -> dict[str, object]:
    """Return the first DNS settings that are not empty."""
    found = next((interface.ipam.dns for interface in interfaces if interface.ipam.dns != NO_DNS), None)
    return {"dns": found} if found else {}


def _printable(text: str) -> str:
    return text[:MOST_ERROR_CHARACTERS].encode(errors="backslashreplace").decode()


def convert(result: bytes, version: str, subject: str) -> bytes:
    """Convert a result to another version; a result of that version stays the same byte by byte.

    The version of a result without one is determined by its fields. MalformedError (`PLUGIN_FAILURE`) begins
    with
    `subject` and names the field.
    """
    check_version(version)
    fields = _fields(result, subject)
    if _text(fields, "cniVersion", subject) == version:
        return result
    return _encoder.encode(_in_version(fields, version, subject))


def without_interfaces(result: bytes, ifnames: Collection[str], subject: str) -> bytes:
    """Return a result without the interfaces of these names and their addresses; indices are adapted.

    Routes stay, because they do not name their interface.
    """
    fields = _fields(result, subject)
    interfaces = _converted_items(fields, "interfaces", subject)
    names = [
        _text(interface, "name", f"{subject}: interfaces[{position}]")
        for position, interface in enumerate(interfaces)
    ]
    indexes = [index for index, name in enumerate(names) if name not in ifnames]
    if len(indexes) == len(interfaces):
        return result
    moved = {old: new for new, old in enumerate(indexes)}
    ips = []
    for ip in _converted_items(fields, "ips", subject):
        index = _index(ip, subject)
        if index is None:
            ips.append(ip)
        elif index in moved:
            ips.append(ip | {"interface": _raw(moved[index])})
    return _encoder.encode(fields | {"interfaces": [interfaces[index] for index in indexes], "ips": ips})


def _in_version(fields: Fields, version: str, subject: str) -> dict[str, object]:
    remainder: dict[str, object] = {
        key: value for key, value in fields.items() if key not in ("cniVersion", "ip4", "ip6")
    }
    ips, routes = _addresses(fields, subject), _all_routes(fields, subject)
    remainder["cniVersion"] = version
    if version in WITHOUT_INTERFACES:
        unknown = {"interfaces", "ips", "routes"}
        return {key: value for key, value in remainder.items() if key not in unknown} | _pre_0_3(
            ips, routes, subject
        )
    for ip in ips:
        ip.pop("version", None)
        if version in WITH_IP_VERSION:
            ip["version"] = _raw(str(_family(ip, "address", subject)))
    return remainder | {"ips": ips} | ({"routes": routes} if routes or "routes" in fields else {})


def _addresses(fields: Fields, subject: str) -> list[Fields]:
    """Return `ips`, including those of an old result."""
    found = _converted_items(fields, "ips", subject)
    for old in _converted_old_ips(fields, subject):
        found.append(
            {new: old[key] for new, key in (("address", "ip"), ("gateway", "gateway")) if key in old}
        )
    return found


def _all_routes(fields: Fields, subject: str) -> list[Fields]:
    found = _converted_items(fields, "routes", subject)
    for old in _converted_old_ips(fields, subject):
        found += _converted_items(old, "routes", subject)
    return found


def _converted_old_ips(fields: Fields, subject: str) -> list[Fields]:
    found = (fields.get(f"ip{family}", msgspec.Raw(b"null")) for family in _FAMILIES)
    return [_fields(value, subject) for value in found if bytes(value) != b"null"]


def _pre_0_3(ips: list[Fields], routes: list[Fields], subject: str) -> dict[str, object]:
    result: dict[str, object] = {}
    for family in _FAMILIES:
        first = next((ip for ip in ips if _family(ip, "address", subject) == family), None)
        if first is not None:
            of_family = [route for route in routes if _family(route, "dst", subject) == family]
            result[f"ip{family}"] = (
                {"ip": first["address"]}
                | {key: first[key] for key in ("gateway",) if key in first}
                | ({"routes": of_family} if of_family else {})
            )
    return result


def _family(fields: Fields, key: str, subject: str) -> int:
    text = _text(fields, key, subject)
    try:
        return ip_network(text, strict=False).version if key == "dst" else ip_interface(text).version
    except ValueError as error:
        msg = f"{subject}: {key}: {error}"
        raise MalformedError(msg, reason=Reason.PLUGIN_FAILURE) from error


def _index(ip: Fields, subject: str) -> int | None:
    if bytes(ip.get("interface", b"null")) == b"null":
        return None
    return decode(ip["interface"], _index_decoder, f"{subject}: ips[].interface", Reason.PLUGIN_FAILURE)


def _fields(document: bytes | msgspec.Raw, subject: str) -> Fields:
    return decode(document, _fields_decoder, subject, Reason.PLUGIN_FAILURE)


def _converted_items(fields: Fields, key: str, subject: str) -> list[Fields]:
    if key not in fields:
        return []
    return decode(fields[key], _any_items_decoder, f"{subject}: {key}", Reason.PLUGIN_FAILURE) or []


def _text(fields: Fields, key: str, subject: str) -> str:
    if key not in fields:
        return ""
    return decode(fields[key], _text_decoder, f"{subject}: {key}", Reason.PLUGIN_FAILURE)


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(_encoder.encode(value))
