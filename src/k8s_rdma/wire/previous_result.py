"""The result of a plugin of the same chain (`prevResult`): interfaces and addresses of the pod."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


SUBJECT = "network configuration: prevResult"

_encoder = msgspec.json.Encoder()


class _PreviousInterface(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    mac: str = ""
    sandbox: str = ""


class _PreviousIp(msgspec.Struct, frozen=True, kw_only=True):
    address: str
    interface: int | None = None


class _Result(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    cni_version: str = ""
    interfaces: tuple[_PreviousInterface, ...] | None = None
    ips: tuple[msgspec.Raw, ...] | None = None


_previous_decoder = msgspec.json.Decoder(_Result)
_ip_decoder = msgspec.json.Decoder(_PreviousIp)


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceInPod:
    """An interface in the pod; addresses in CIDR form. mac: empty if the result has no MAC."""

    mac: str
    addresses: frozenset[str]


def interfaces_in_pod(result: msgspec.Raw | bytes) -> Mapping[str, InterfaceInPod]:
    """Return the pod's interfaces by name; empty without a result, or if its version lists no interfaces."""
    try:
        document = _previous_decoder.decode(result or b"{}")
        ips = [_ip_decoder.decode(raw_ip) for raw_ip in document.ips or ()]
    except msgspec.MsgspecError:
        return {}
    return {
        interface.name: InterfaceInPod(
            mac=interface.mac, addresses=frozenset(ip.address for ip in ips if ip.interface == index)
        )
        for index, interface in enumerate(document.interfaces or ())
        if interface.sandbox
    }


def addresses_of(result: msgspec.Raw | bytes, ifnames: Collection[str]) -> dict[str, bytes]:
    """Split a result by interface: the addresses of each that has any, as a separate result.

    Routes do not name an interface, and are left out.
    """
    found: dict[str, list[dict[str, object]]] = {}
    try:
        document = _previous_decoder.decode(result or b"{}")
        names = [interface.name for interface in document.interfaces or ()]
        for raw in document.ips or ():
            index = _ip_decoder.decode(raw).interface
            if index is not None and 0 <= index < len(names) and names[index] in ifnames:
                item = msgspec.json.decode(raw)
                del item["interface"]
                found.setdefault(names[index], []).append(item)
    except msgspec.MsgspecError:
        return {}
    version = {"cniVersion": document.cni_version} if document.cni_version else {}
    return {name: _encoder.encode(version | {"ips": ips}) for name, ips in found.items()}
