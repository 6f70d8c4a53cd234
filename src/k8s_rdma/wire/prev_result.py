"""What a result tells of the pod's interfaces: that of the plugins before (ADD), or of all together (CHECK).

Source: CNI specification 1.1.0, section 5 "ADD Success". What does not fit is passed over here: to encode our
own result over it, or to hand it on, tells what is wrong with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

WHAT = "network configuration: prevResult"


class _Interface(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    mac: str = ""
    sandbox: str = ""


class _Ip(msgspec.Struct, frozen=True, kw_only=True):
    address: str
    interface: int | None = None


class _Result(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    cni_version: str = ""
    interfaces: tuple[_Interface, ...] | None = None
    ips: tuple[msgspec.Raw, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldInterface:
    """An interface in the pod; addresses in CIDR form. mac: empty where none is told."""

    mac: str
    addresses: frozenset[str]


_decoder = msgspec.json.Decoder(_Result)
_ip_decoder = msgspec.json.Decoder(_Ip)
_encoder = msgspec.json.Encoder()


def interfaces_in_pod(result: msgspec.Raw | bytes) -> Mapping[str, ToldInterface]:
    """The pod's interfaces by name; none for no result, or one of a version that knows none."""
    try:
        document = _decoder.decode(result or b"{}")
        ips = [_ip_decoder.decode(each) for each in document.ips or ()]
    except msgspec.MsgspecError:
        return {}
    return {
        each.name: ToldInterface(
            mac=each.mac, addresses=frozenset(ip.address for ip in ips if ip.interface == index)
        )
        for index, each in enumerate(document.interfaces or ())
        if each.sandbox
    }


def addresses_of(result: msgspec.Raw | bytes, ifnames: Collection[str]) -> dict[str, bytes]:
    """What an IPAM plugin gave each of these interfaces, as a result of its own; of those that got any.

    Routes are not told by interface, and left out.
    """
    found: dict[str, list[dict[str, object]]] = {}
    try:
        document = _decoder.decode(result or b"{}")
        names = [each.name for each in document.interfaces or ()]
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
