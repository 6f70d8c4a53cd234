"""A CNI result of one version as one of another.

Source: CNI specification 1.1.0, section 5 "ADD Success", and the earlier versions': in 0.1.0 and 0.2.0 a
result is one IPv4 and one IPv6 address, in 0.3.0 to 0.4.0 each address tells its IP version. What the other
version has no words for is left out; what nobody here knows is kept as it was written.
"""

from __future__ import annotations

from ipaddress import ip_interface, ip_network
from typing import TYPE_CHECKING

import msgspec

from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.cni_version import WITH_IP_VERSION, WITHOUT_INTERFACES, check_version
from k8s_rdma.wire.json import decode

if TYPE_CHECKING:
    from collections.abc import Collection

Fields = dict[str, msgspec.Raw]
_FAMILIES = (4, 6)

_fields_decoder = msgspec.json.Decoder(Fields)
_items_decoder = msgspec.json.Decoder(list[Fields] | None)
_text_decoder = msgspec.json.Decoder(str)
_index_decoder = msgspec.json.Decoder(int)
_encoder = msgspec.json.Encoder()


def convert(result: bytes, version: str, what: str) -> bytes:
    """The same in another version; byte by byte where it is of that version already.

    One that tells no version is taken for what it looks like. MalformedError (`PLUGIN_FAILURE`) begins with
    `what` and names the field.
    """
    check_version(version)
    fields = _fields(result, what)
    if _text(fields, "cniVersion", what) == version:
        return result
    return _encoder.encode(_in_version(fields, version, what))


def without_interfaces(result: bytes, ifnames: Collection[str], what: str) -> bytes:
    """A result less the interfaces of these names and their addresses; the others' indices are right again.

    Routes stay, as they do not tell whose they are.
    """
    fields = _fields(result, what)
    interfaces = _items(fields, "interfaces", what)
    names = [_text(interface, "name", f"{what}: interfaces[{at}]") for at, interface in enumerate(interfaces)]
    kept = [index for index, name in enumerate(names) if name not in ifnames]
    if len(kept) == len(interfaces):
        return result
    moved = {old: new for new, old in enumerate(kept)}
    ips = []
    for ip in _items(fields, "ips", what):
        index = _index(ip, what)
        if index is None:
            ips.append(ip)
        elif index in moved:
            ips.append(ip | {"interface": _raw(moved[index])})
    return _encoder.encode(fields | {"interfaces": [interfaces[index] for index in kept], "ips": ips})


def _in_version(fields: Fields, version: str, what: str) -> dict[str, object]:
    rest: dict[str, object] = {
        key: value for key, value in fields.items() if key not in ("cniVersion", "ip4", "ip6")
    }
    ips, routes = _addresses(fields, what), _all_routes(fields, what)
    rest["cniVersion"] = version
    if version in WITHOUT_INTERFACES:
        unknown = {"interfaces", "ips", "routes"}
        return {key: value for key, value in rest.items() if key not in unknown} | _old(ips, routes, what)
    for ip in ips:
        ip.pop("version", None)
        if version in WITH_IP_VERSION:
            ip["version"] = _raw(str(_family(ip, "address", what)))
    return rest | {"ips": ips} | ({"routes": routes} if routes or "routes" in fields else {})


def _addresses(fields: Fields, what: str) -> list[Fields]:
    """`ips`, those of an old result too."""
    found = _items(fields, "ips", what)
    for old in _old_ips(fields, what):
        found.append(
            {new: old[key] for new, key in (("address", "ip"), ("gateway", "gateway")) if key in old}
        )
    return found


def _all_routes(fields: Fields, what: str) -> list[Fields]:
    found = _items(fields, "routes", what)
    for old in _old_ips(fields, what):
        found += _items(old, "routes", what)
    return found


def _old_ips(fields: Fields, what: str) -> list[Fields]:
    found = (fields.get(f"ip{family}", msgspec.Raw(b"null")) for family in _FAMILIES)
    return [_fields(value, what) for value in found if bytes(value) != b"null"]


def _old(ips: list[Fields], routes: list[Fields], what: str) -> dict[str, object]:
    result: dict[str, object] = {}
    for family in _FAMILIES:
        first = next((ip for ip in ips if _family(ip, "address", what) == family), None)
        if first is not None:
            of_family = [route for route in routes if _family(route, "dst", what) == family]
            result[f"ip{family}"] = (
                {"ip": first["address"]}
                | {key: first[key] for key in ("gateway",) if key in first}
                | ({"routes": of_family} if of_family else {})
            )
    return result


def _family(fields: Fields, key: str, what: str) -> int:
    text = _text(fields, key, what)
    try:
        return ip_network(text, strict=False).version if key == "dst" else ip_interface(text).version
    except ValueError as error:
        msg = f"{what}: {key}: {error}"
        raise MalformedError(msg, reason=Reason.PLUGIN_FAILURE) from error


def _index(ip: Fields, what: str) -> int | None:
    if bytes(ip.get("interface", b"null")) == b"null":
        return None
    return decode(ip["interface"], _index_decoder, f"{what}: ips[].interface", Reason.PLUGIN_FAILURE)


def _fields(document: bytes | msgspec.Raw, what: str) -> Fields:
    return decode(document, _fields_decoder, what, Reason.PLUGIN_FAILURE)


def _items(fields: Fields, key: str, what: str) -> list[Fields]:
    if key not in fields:
        return []
    return decode(fields[key], _items_decoder, f"{what}: {key}", Reason.PLUGIN_FAILURE) or []


def _text(fields: Fields, key: str, what: str) -> str:
    if key not in fields:
        return ""
    return decode(fields[key], _text_decoder, f"{what}: {key}", Reason.PLUGIN_FAILURE)


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(_encoder.encode(value))
