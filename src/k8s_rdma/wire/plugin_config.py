"""The network configuration that a plugin called by this one reads on stdin."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import TYPE_CHECKING, Any

import msgspec

from k8s_rdma.errors import Reason
from k8s_rdma.wire.cni_request import POD_ANNOTATIONS, refuse
from k8s_rdma.wire.json import decode
from k8s_rdma.wire.json_faults import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


Fields = dict[str, msgspec.Raw]
"""A JSON object whose values are as they were written."""

PER_NODE = "perNode"
HOST_LOCAL = "host-local"
MIN_BLOCK = 4
"""Addresses of the smallest block: the first of a subnet also has its own address and the gateway's."""

_CAPABILITIES = "network configuration: delegate.capabilities"
_PASSED_TO_IPAM = ("args", "dns", "type")
_fields_decoder = msgspec.json.Decoder(Fields)
_flags_decoder = msgspec.json.Decoder(dict[str, bool] | None)
_name_decoder = msgspec.json.Decoder(str)
_ipam_decoder = msgspec.json.Decoder(dict[str, Any])
_encoder = msgspec.json.Encoder()


def ipam_config(fields: Mapping[str, msgspec.Raw], ipam: msgspec.Raw, network: str) -> bytes:
    """Return the configuration of an IPAM plugin, of our own configuration's fields.

    ipam: which of its objects to follow.
    network: see `ipam_network`.
    """
    passed: dict[str, object] = {key: fields[key] for key in _PASSED_TO_IPAM if key in fields}
    passed |= {"name": network, "ipam": ipam}
    return _encoder.encode(passed | _runtime_config(fields))


def ipam_network(name: str, *, chained: bool, network: str = "") -> str:
    """Return the network's name under which an IPAM plugin keeps leases for the network `name`.

    Chained, the plugin before may use the same plugin under that very name: so leases of ours are apart.
    network: the network that interfaces name in the annotation, whose addresses are apart as well; or empty.
    """
    return "-".join(filter(None, (name, "rdma" if chained else "", network)))


@dataclass(frozen=True, slots=True)
class AddressSpace:
    """A subnet whose addresses nodes give out in blocks. prefix: the length of a block's prefix, in bits."""

    subnet: IPv4Network | IPv6Network
    prefix: int

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return 1 << (self.prefix - self.subnet.prefixlen)

    def addresses(self, index: int) -> tuple[str, str]:
        """Return the first and the last address of a block that interfaces may have.

        The subnet's own address is excluded, and so is IPv4's broadcast address (RFC 1122, section 3.2.1.3);
        host-local itself leaves out the gateway's.
        """
        size = 1 << (self.subnet.max_prefixlen - self.prefix)
        first = self.subnet.network_address + index * size
        last = first + (size - 1)
        if index == 0:
            first += 1
        if self.subnet.version == 4 and last == self.subnet.broadcast_address:
            last -= 1
        return str(first), str(last)

    def __str__(self) -> str:
        return f"{self.subnet} in blocks of /{self.prefix}"


def address_spaces(ipam: bytes | msgspec.Raw, key: str = "ipam") -> tuple[AddressSpace, ...]:
    """Read the subnets that `perNode` of host-local's object divides; empty without it.

    `true` gives a node the larger half of a subnet's host bits, a number at least so many addresses.
    MalformedError (`INVALID_NETCONF`) names the key.
    Source: host-local's `Range` (`plugins/ipam/host-local/backend/allocator/config.go`,
    containernetworking/plugins 1.1).
    """
    if PER_NODE.encode() not in bytes(ipam):
        return ()
    conf = decode(ipam, _ipam_decoder, f"network configuration: {key}", Reason.INVALID_NETCONF)
    per_node = conf.get(PER_NODE)
    if per_node is None or per_node is False:
        return ()
    own_key = f"{key}.{PER_NODE}"
    if conf.get("type") != HOST_LOCAL:
        refuse(own_key, f"is of {HOST_LOCAL}, and {shown(str(conf.get('type')))} is another plugin")
    if not isinstance(per_node, int) or (per_node is not True and per_node < MIN_BLOCK):
        written = shown(_encoder.encode(per_node).decode())
        refuse(own_key, f"{written} is neither true nor a number of addresses, from {MIN_BLOCK}")
    spaces = tuple(_space(place, found, per_node, own_key) for place, found in _ranges(conf, key))
    if not spaces:
        refuse(own_key, "divides the subnets of `ranges`, and there is none")
    return spaces


def spaces_of(netconf: bytes) -> tuple[AddressSpace, ...]:
    """Return the subnets that a recorded configuration divides among nodes."""
    return address_spaces(_fields(netconf, "recorded configuration").get("ipam", b"{}"))


def in_blocks(netconf: bytes, blocks: Mapping[AddressSpace, int]) -> bytes:
    """Return a recorded configuration with a node's blocks as ranges; blocks: of all its `spaces_of`."""
    fields = _fields(netconf, "recorded configuration")
    ipam = _ipam_decoder.decode(fields["ipam"])
    for (_, found), space in zip(_ranges(ipam, "ipam"), spaces_of(netconf), strict=True):
        found["rangeStart"], found["rangeEnd"] = space.addresses(blocks[space])
    return _encoder.encode(fields | {"ipam": ipam})


def _ranges(ipam: dict[str, Any], key: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the ranges with their keys: the one that the object itself is, and those of `ranges`."""
    places: list[tuple[str, Any]] = [(key, ipam)] if "subnet" in ipam else []
    sets = ipam.get("ranges") or []
    if not isinstance(sets, list) or not all(isinstance(several, list) for several in sets):
        refuse(f"{key}.ranges", "is no array of arrays of ranges")
    for number, several in enumerate(sets):
        places += ((f"{key}.ranges[{number}][{place}]", found) for place, found in enumerate(several))
    return places


def _space(place: str, found: Any, per_node: int, key: str) -> AddressSpace:
    if not isinstance(found, dict):
        refuse(place, "is no object")
    for own in ("rangeStart", "rangeEnd"):
        if own in found:
            refuse(f"{place}.{own}", f"is the node's with {PER_NODE}: leave one of them out")
    try:
        subnet = ip_network(str(found.get("subnet")))
    except ValueError as error:
        refuse(f"{place}.subnet", str(error))
    host_bits = subnet.max_prefixlen - subnet.prefixlen
    bits = (host_bits + 1) // 2 if per_node is True else (per_node - 1).bit_length()
    if bits > host_bits or 1 << bits < MIN_BLOCK:
        least = MIN_BLOCK if per_node is True else per_node
        refuse(key, f"{subnet} has no block of {least} addresses")
    return AddressSpace(subnet, subnet.max_prefixlen - bits)


def delegate_config(fields: Mapping[str, msgspec.Raw], delegate: msgspec.Raw) -> bytes:
    """Return the configuration of a delegate: its own object with our name, version and runtime part.

    That part has the pod's annotations if the object asks for this capability.
    MalformedError (`INVALID_NETCONF`) if `delegate` is no object.
    """
    own = _fields(delegate, "network configuration: delegate")
    capabilities = decode(
        own.get("capabilities", b"{}"), _flags_decoder, _CAPABILITIES, Reason.INVALID_NETCONF
    )
    ours = {key: fields[key] for key in ("cniVersion", "name") if key in fields}
    return _encoder.encode(
        own | ours | _runtime_config(fields, annotations=POD_ANNOTATIONS in (capabilities or {}))
    )


def stdin_of(
    netconf: bytes,
    version: str,
    *,
    prev_result: bytes = b"",
    valid: Iterable[tuple[str, str]] | None = None,
) -> bytes:
    """Return a recorded configuration as one call's stdin.

    valid: for GC, container and interface of every attachment that is to stay. It is written under both names
        of the list, as libcni does: the specification's, and that of an early draft.
    """
    call: dict[str, object] = {"cniVersion": version}
    if prev_result:
        call["prevResult"] = msgspec.Raw(prev_result)
    if valid is not None:
        attachments = [{"containerID": container, "ifname": ifname} for container, ifname in valid]
        call |= {"cni.dev/valid-attachments": attachments, "cni.dev/attachments": attachments}
    return _encoder.encode(_fields(netconf, "recorded configuration") | call)


def network_of(netconf: bytes) -> str:
    """Return the network's name in a recorded configuration."""
    return _text(netconf, "name")


def in_network_of(recorded: bytes, netconf: bytes) -> bytes:
    """Return a configuration under the network's name that a recorded one has."""
    name = network_of(recorded)
    if name == network_of(netconf):
        return netconf
    return _encoder.encode(_fields(netconf, "network configuration") | {"name": name})


def version_of(netconf: bytes) -> str:
    """Return the version in a recorded configuration, that of the runtime's call; 0.1.0 without one."""
    return _text(netconf, "cniVersion") or "0.1.0"


def _text(netconf: bytes, key: str) -> str:
    subject = "recorded configuration"
    return decode(_fields(netconf, subject).get(key, b'""'), _name_decoder, f"{subject}: {key}")


def _runtime_config(
    fields: Mapping[str, msgspec.Raw], *, annotations: bool = False
) -> dict[str, dict[str, msgspec.Raw]]:
    """`runtimeConfig`, by default without the pod's annotations: they are not a plugin's that did not ask."""
    runtime_config = fields.get("runtimeConfig", b"null")
    if bytes(runtime_config) == b"null":
        return {}
    found = _fields(runtime_config, "network configuration: runtimeConfig")
    if not annotations:
        found.pop(POD_ANNOTATIONS, None)
    return {"runtimeConfig": found}


def _fields(document: bytes | msgspec.Raw, subject: str) -> Fields:
    return decode(document, _fields_decoder, subject, Reason.INVALID_NETCONF)
