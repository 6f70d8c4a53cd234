"""The results of IPAM plugins."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_interface, ip_network
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeVar

import msgspec

from k8s_rdma.core.step import Route
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.json import decode
from k8s_rdma.wire.json_faults import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


T = TypeVar("T")
_RESULT = "IPAM result"
_SCOPE_LINK = 253
"""The scope of a destination on the link itself (rtnetlink(7), RT_SCOPE_LINK)."""

_Number = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]


class Dns(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Name resolution as an IPAM plugin reports it."""

    nameservers: tuple[str, ...] | None = None
    domain: str | None = None
    search: tuple[str, ...] | None = None
    options: tuple[str, ...] | None = None


NO_DNS = Dns()


@dataclass(frozen=True, slots=True)
class IpConfig:
    """An address in CIDR form, and the gateway of its subnet if there is one; as `ipaddress` writes them."""

    address: str
    gateway: str | None = None

    @property
    def ip_version(self) -> int:
        """The address's IP version, 4 or 6."""
        return ip_interface(self.address).version


@dataclass(frozen=True, slots=True, kw_only=True)
class IpamResult:
    """The addresses of one interface; a route without a gateway of its own has its subnet's."""

    ips: tuple[IpConfig, ...] = ()
    routes: tuple[Route, ...] = ()
    dns: Dns = NO_DNS

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses in CIDR form."""
        return tuple(ip.address for ip in self.ips)


NO_ADDRESSES = IpamResult()


class _Route(msgspec.Struct, frozen=True, kw_only=True):
    """The last five are of 1.1.0."""

    dst: str
    gw: str | None = None
    mtu: _Number | None = None
    advmss: _Number | None = None
    priority: _Number | None = None
    table: _Number | None = None
    scope: Annotated[int, msgspec.Meta(ge=0, le=255)] | None = None


class _Ip(msgspec.Struct, frozen=True, kw_only=True):
    address: str
    gateway: str | None = None


class _OldIp(msgspec.Struct, frozen=True, kw_only=True):
    ip: str
    gateway: str | None = None
    routes: tuple[_Route, ...] | None = None


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    ips: tuple[_Ip, ...] | None = None
    ip4: _OldIp | None = None
    ip6: _OldIp | None = None
    routes: tuple[_Route, ...] | None = None
    dns: Dns | None = None


_decoder = msgspec.json.Decoder(_Document)


def decode_ipam_result(stdout: bytes) -> IpamResult:
    """Parse the output of an IPAM plugin on ADD; it may hold no address. MalformedError names the field."""
    document = decode(stdout, _decoder, _RESULT, Reason.IPAM_FAILURE)
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


def _ip_config(ip: _Ip, path: str) -> IpConfig:
    if "/" not in ip.address:
        _refuse(f"{path}.address", ip.address, "no address with a prefix length")
    parsed = _parsed(ip_interface, ip.address, f"{path}.address", "no address with a prefix length")
    address = parsed.ip
    if address.is_unspecified or address.is_multicast or address.is_loopback:
        _refuse(f"{path}.address", ip.address, "no address that an interface can have")
    gateway = _gateway(ip.gateway, address.version, f"{path}.gateway")
    if gateway == address:
        _refuse(f"{path}.gateway", str(gateway), "the address itself")
    return IpConfig(parsed.with_prefixlen, str(gateway) if gateway else None)


def _route(route: _Route, configs: Sequence[IpConfig], path: str) -> Route:
    network = _parsed(lambda dst: ip_network(dst, strict=False), route.dst, f"{path}.dst", "no destination")
    gateway = str(_gateway(route.gw, network.version, f"{path}.gw") or "")
    if not route.gw and (route.scope or 0) < _SCOPE_LINK:  # # beyond, the kernel takes no gateway
        gateways = (
            config.gateway for config in configs if config.gateway and config.ip_version == network.version
        )
        gateway = next(gateways, "")
    return Route(
        route.dst,
        gateway or None,
        mtu=route.mtu,
        advmss=route.advmss,
        priority=route.priority,
        table=route.table,
        scope=route.scope,
    )


def _gateway(text: str | None, version: int, path: str) -> IPv4Address | IPv6Address | None:
    """Read a gateway; without one, or for the unspecified address, the link itself is meant."""
    if not text:
        return None
    gateway = _parsed(ip_address, text, path, "no address")
    if gateway.version != version:
        _refuse(path, text, f"no IPv{version} address")
    return None if gateway.is_unspecified else gateway


def _parsed(parse: Callable[[str], T], text: str, path: str, wrong: str) -> T:
    try:
        return parse(text)
    except ValueError:
        _refuse(path, text, wrong)


def _refuse(path: str, text: str, wrong: str) -> NoReturn:
    msg = f"{_RESULT}: {path}: {shown(text)} is {wrong}"
    raise MalformedError(msg, reason=Reason.IPAM_FAILURE)
