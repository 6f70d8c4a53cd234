"""What a CNI plugin prints: its result in the version asked for, or an error.

Source: CNI specification 1.1.0, section 5 "Result Types", and those of the earlier versions. In 0.1.0 and
0.2.0 a result is one IPv4 and one IPv6 address and knows no interfaces; in 0.3.0 to 0.4.0 each address
tells its IP version, from 1.0.0 on no longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address, ip_interface, ip_network
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from k8s_rdma.core.step import Route
from k8s_rdma.errors import STATUS, K8sRdmaError, MalformedError, Reason
from k8s_rdma.wire.json import decode, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

SUPPORTED_VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
_WITHOUT_INTERFACES = ("0.1.0", "0.2.0")
_WITH_IP_VERSION = ("0.3.0", "0.3.1", "0.4.0")

_RESULT = "IPAM result"


class Dns(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Name resolution as an IPAM plugin tells it."""

    nameservers: tuple[str, ...] | None = None
    domain: str | None = None
    search: tuple[str, ...] | None = None
    options: tuple[str, ...] | None = None


NO_DNS = Dns()


@dataclass(frozen=True, slots=True)
class IpConfig:
    """An address in CIDR form, and the gateway of its subnet if there is one."""

    address: str
    gateway: str | None = None

    @property
    def ip_version(self) -> int:
        """4 or 6."""
        return ip_interface(self.address).version


@dataclass(frozen=True, slots=True, kw_only=True)
class IpamResult:
    """What an IPAM plugin gave one interface; a route without a gateway of its own got its subnet's."""

    ips: tuple[IpConfig, ...] = ()
    routes: tuple[Route, ...] = ()
    dns: Dns = NO_DNS

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses in CIDR form."""
        return tuple(ip.address for ip in self.ips)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultInterface:
    """An interface in a pod; sandbox: the path of its network namespace."""

    name: str
    mac: str
    sandbox: str
    ipam: IpamResult = IpamResult()


class _Route(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    dst: str
    gw: str | None = None


class _Ip(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    version: str | None = None
    interface: int | None = None
    address: str
    gateway: str | None = None


class _OldIp(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    ip: str
    gateway: str | None = None
    routes: tuple[_Route, ...] | None = None


class _IpamDocument(msgspec.Struct, frozen=True, kw_only=True):
    ips: tuple[_Ip, ...] | None = None
    ip4: _OldIp | None = None
    ip6: _OldIp | None = None
    routes: tuple[_Route, ...] | None = None
    dns: Dns | None = None


class _Error(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    cni_version: str = ""
    code: int
    msg: str
    details: str = ""


_encoder = msgspec.json.Encoder()
_ipam_decoder = msgspec.json.Decoder(_IpamDocument)
_error_decoder = msgspec.json.Decoder(_Error)
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items_decoder = msgspec.json.Decoder(list[msgspec.Raw] | None)
_version_decoder = msgspec.json.Decoder(str)


def check_version(version: str) -> None:
    """K8sRdmaError (`INCOMPATIBLE_CNI_VERSION`) unless results can be given in this version."""
    if version not in SUPPORTED_VERSIONS:
        raise K8sRdmaError(
            f"incompatible CNI version: the network configuration asks for {shown(version)}",
            reason=Reason.INCOMPATIBLE_CNI_VERSION,
            details=f"supported are {', '.join(SUPPORTED_VERSIONS)}",
        )


def encode_result(
    interfaces: Sequence[ResultInterface], version: str, prev_result: msgspec.Raw | bytes = b""
) -> bytes:
    """The result of an ADD: what the plugins before did, as they said it, and these interfaces.

    Without interfaces that is `prev_result` byte by byte, or an empty result. What a version cannot say is
    left out: 0.2.0 and older hold the first IPv4 and the first IPv6 address only.
    K8sRdmaError when the version is not supported; MalformedError (`INVALID_NETCONF`) when `prev_result` is
    no result of the same version.
    """
    check_version(version)
    fields = _previous(prev_result, version)
    if not interfaces:
        return bytes(prev_result) or _encoder.encode({"cniVersion": version})
    if version in _WITHOUT_INTERFACES:
        return _encoder.encode({"cniVersion": version, **_old_ips(interfaces)})
    before = _items(fields, "interfaces")
    added: dict[str, Iterable[object]] = {
        "interfaces": [{"name": each.name, "mac": each.mac, "sandbox": each.sandbox} for each in interfaces],
        "ips": list(_ips(interfaces, first_index=len(before), with_version=version in _WITH_IP_VERSION)),
        "routes": [_Route(dst=r.dst, gw=r.gateway) for each in interfaces for r in each.ipam.routes],
    }
    document: dict[str, Any] = {"cniVersion": version, **fields}
    for key, items in added.items():
        document[key] = [*_items(fields, key), *items]
    if bytes(fields.get("dns", b"{}")) in (b"{}", b"null"):
        document |= _dns(interfaces)
    return _encoder.encode(document)


def encode_error(error: K8sRdmaError, version: str) -> bytes:
    """The error document of a failed call; never fails itself, whatever the error's text is."""
    return _encoder.encode(
        _Error(
            cni_version=version if version in SUPPORTED_VERSIONS else SUPPORTED_VERSIONS[-1],
            code=STATUS[error.reason].cni,
            msg=_printable(error.message),
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


def decode_ipam_result(stdout: bytes) -> IpamResult:
    """Parse what an IPAM plugin printed on ADD, in any version.

    MalformedError (`IPAM_FAILURE`) names the field.
    """
    document = decode(stdout, _ipam_decoder, _RESULT, Reason.IPAM_FAILURE)
    ips, routes = list(document.ips or ()), list(document.routes or ())
    for old in filter(None, (document.ip4, document.ip6)):
        ips.append(_Ip(address=old.ip, gateway=old.gateway))
        routes += old.routes or ()
    configs = tuple(_ip_config(ip, f"ips[{index}]") for index, ip in enumerate(ips))
    return IpamResult(
        ips=configs,
        routes=tuple(_route(route, configs, f"routes[{index}]") for index, route in enumerate(routes)),
        dns=document.dns or NO_DNS,
    )


def _previous(prev_result: msgspec.Raw | bytes, version: str) -> dict[str, msgspec.Raw]:
    what = "network configuration: prevResult"
    if not prev_result:
        return {}
    if version in _WITHOUT_INTERFACES:
        msg = f"{what}: there is none in CNI version {version}"
        raise MalformedError(msg, reason=Reason.INVALID_NETCONF)
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


def _ips(interfaces: Sequence[ResultInterface], *, first_index: int, with_version: bool) -> Iterator[_Ip]:
    for index, interface in enumerate(interfaces, first_index):
        for ip in interface.ipam.ips:
            yield _Ip(
                version=str(ip.ip_version) if with_version else None,
                interface=index,
                address=ip.address,
                gateway=ip.gateway,
            )


def _old_ips(interfaces: Sequence[ResultInterface]) -> dict[str, object]:
    result: dict[str, object] = {}
    for each in interfaces:
        for ip in each.ipam.ips:
            routes = tuple(
                _Route(dst=route.dst, gw=route.gateway)
                for route in each.ipam.routes
                if ip_network(route.dst, strict=False).version == ip.ip_version
            )
            result.setdefault(f"ip{ip.ip_version}", _OldIp(ip=ip.address, gateway=ip.gateway, routes=routes))
    return result | _dns(interfaces)


def _dns(interfaces: Iterable[ResultInterface]) -> dict[str, object]:
    """The first that says anything."""
    found = next((each.ipam.dns for each in interfaces if each.ipam.dns != NO_DNS), None)
    return {"dns": found} if found else {}


def _ip_config(ip: _Ip, where: str) -> IpConfig:
    if "/" not in ip.address:
        _refuse(f"{where}.address", ip.address, "no address with a prefix length")
    _check(ip_interface, ip.address, f"{where}.address", "no address with a prefix length")
    if ip.gateway:
        _check(ip_address, ip.gateway, f"{where}.gateway", "no address")
    return IpConfig(ip.address, ip.gateway or None)


def _route(route: _Route, configs: Sequence[IpConfig], where: str) -> Route:
    _check(lambda dst: ip_network(dst, strict=False), route.dst, f"{where}.dst", "no destination")
    if route.gw:
        _check(ip_address, route.gw, f"{where}.gw", "no address")
        return Route(route.dst, route.gw)
    version = ip_network(route.dst, strict=False).version
    gateways = (config.gateway for config in configs if config.gateway and config.ip_version == version)
    return Route(route.dst, next(gateways, None))


def _check(parse: Callable[[str], object], text: str, where: str, wrong: str) -> None:
    try:
        parse(text)
    except ValueError:
        _refuse(where, text, wrong)


def _refuse(where: str, text: str, wrong: str) -> NoReturn:
    msg = f"{_RESULT}: {where}: {shown(text)} is {wrong}"
    raise MalformedError(msg, reason=Reason.IPAM_FAILURE)


def _printable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
