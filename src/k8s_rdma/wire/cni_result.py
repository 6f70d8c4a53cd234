"""What a CNI plugin prints: its result in the version asked for, or an error.

Source: CNI specification 1.1.0, section 5 "Result Types", and those of the earlier versions. In 0.1.0 and
0.2.0 a result is one IPv4 and one IPv6 address and knows no interfaces; in 0.3.0 to 0.4.0 each address
tells its IP version, from 1.0.0 on no longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_network
from typing import TYPE_CHECKING

import msgspec

from k8s_rdma.errors import STATUS, K8sRdmaError, MalformedError, Reason
from k8s_rdma.wire.cni_version import (
    SUPPORTED_VERSIONS,
    WITH_DETAILS,
    WITH_IP_VERSION,
    WITHOUT_INTERFACES,
    check_version,
)
from k8s_rdma.wire.frame import MAX_STDOUT_BYTES
from k8s_rdma.wire.ipam_result import NO_ADDRESSES, NO_DNS, IpamResult
from k8s_rdma.wire.json import decode, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from k8s_rdma.core.step import Route


MOST_ERROR_CHARACTERS = 32 << 10
"""Of an error's `msg`, and of its `details`: what other plugins say has no bound, what is printed has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultInterface:
    """An interface in a pod. sandbox: the path of its network namespace. mac: empty where it has none.

    mtu (bytes) and pci, its own address on that bus, are told in 1.1.0 only; 0 and empty for not known.
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


_encoder = msgspec.json.Encoder()
_error_decoder = msgspec.json.Decoder(_Error)
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items_decoder = msgspec.json.Decoder(list[msgspec.Raw] | None)
_version_decoder = msgspec.json.Decoder(str)


def encode_result(
    interfaces: Sequence[ResultInterface], version: str, prev_result: msgspec.Raw | bytes = b""
) -> bytes:
    """The result of an ADD: what the plugins before did, as they said it, and these interfaces.

    Without interfaces that is `prev_result` byte by byte, or an empty result. What a version cannot say is
    left out: 0.2.0 and older hold the first IPv4 and the first IPv6 address only.
    K8sRdmaError when the version is not supported; MalformedError (`INVALID_NETCONF`) when `prev_result` is
    no result of the same version, or leaves no room for ours in `MAX_STDOUT_BYTES`.
    """
    check_version(version)
    fields = _previous(prev_result, version)
    if not interfaces:
        return bytes(prev_result) or _encoder.encode({"cniVersion": version})
    document: dict[str, object] = {"cniVersion": version, **fields}
    if version in WITHOUT_INTERFACES:
        document |= {key: ip for key, ip in _old_ips(interfaces).items() if _is_empty(fields, key)}
    else:
        before = _items(fields, "interfaces")
        added: dict[str, Iterable[object]] = {
            "interfaces": [_interface(each, version) for each in interfaces],
            "ips": _ips(interfaces, first_index=len(before), with_version=version in WITH_IP_VERSION),
            "routes": [_route(route, version) for each in interfaces for route in each.ipam.routes],
        }
        document |= {key: [*_items(fields, key), *items] for key, items in added.items()}
    if _is_empty(fields, "dns"):
        document |= _dns(interfaces)
    result = _encoder.encode(document)
    if (size := len(result)) > MAX_STDOUT_BYTES:
        msg = f"network configuration: prevResult: {size} bytes with ours, {MAX_STDOUT_BYTES} at most"
        raise MalformedError(msg, reason=Reason.INVALID_NETCONF)
    return result


def encode_error(error: K8sRdmaError, version: str) -> bytes:
    """The error document of a failed call, its `msg` one line.

    Never fails itself, whatever the error's text is.
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
    """What a plugin's error document says, in one line; None when it printed none."""
    try:
        error = decode(stdout, _error_decoder, "CNI error")
    except MalformedError:
        return None
    return "; ".join(filter(None, (error.msg, error.details)))


def _previous(prev_result: msgspec.Raw | bytes, version: str) -> dict[str, msgspec.Raw]:
    what = "network configuration: prevResult"
    if not prev_result:
        return {}
    fields = decode(prev_result, _fields_decoder, what, Reason.INVALID_NETCONF)
    given = fields.get("cniVersion")
    if given is not None:
        theirs = decode(given, _version_decoder, f"{what}.cniVersion", Reason.INVALID_NETCONF)
        if theirs != version:
            msg = f"{what}.cniVersion: {shown(theirs)} is not the configuration's {version}"
            raise MalformedError(msg, reason=Reason.INVALID_NETCONF)
    return fields


def _items(fields: dict[str, msgspec.Raw], key: str) -> list[msgspec.Raw]:
    if key not in fields:
        return []
    what = f"network configuration: prevResult.{key}"
    return decode(fields[key], _items_decoder, what, Reason.INVALID_NETCONF) or []


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
    for each in interfaces:
        for ip in each.ipam.ips:
            routes = tuple(
                _Route(dst=route.dst, gw=route.gateway)
                for route in each.ipam.routes
                if ip_network(route.dst, strict=False).version == ip.ip_version
            )
            result.setdefault(f"ip{ip.ip_version}", _OldIp(ip=ip.address, gateway=ip.gateway, routes=routes))
    return result


def _dns(interfaces: Iterable[ResultInterface]) -> dict[str, object]:
    """The first that says anything."""
    found = next((each.ipam.dns for each in interfaces if each.ipam.dns != NO_DNS), None)
    return {"dns": found} if found else {}


def _printable(text: str) -> str:
    return text[:MOST_ERROR_CHARACTERS].encode(errors="backslashreplace").decode()
