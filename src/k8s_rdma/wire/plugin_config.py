"""The network configuration that a plugin called by this one reads on stdin.

Source: CNI specification 1.1.0, section 4 "Plugin delegation". What is recorded with an attachment leaves
out what belongs to a call: the version, which depends on the plugin that is installed then, `prevResult` and
the lists of GC.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from k8s_rdma.errors import Reason
from k8s_rdma.wire.cni_request import POD_ANNOTATIONS
from k8s_rdma.wire.json import decode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Fields = dict[str, msgspec.Raw]
"""A JSON object whose values are as they were written."""

_CAPABILITIES = "network configuration: delegate.capabilities"
_PASSED_TO_IPAM = ("args", "dns", "type")
_fields_decoder = msgspec.json.Decoder(Fields)
_flags_decoder = msgspec.json.Decoder(dict[str, bool] | None)
_name_decoder = msgspec.json.Decoder(str)
_encoder = msgspec.json.Encoder()


def ipam_config(fields: Mapping[str, msgspec.Raw], ipam: msgspec.Raw, network: str) -> bytes:
    """The configuration of an IPAM plugin, of our own configuration's fields.

    ipam: which of its objects to follow. network: see `ipam_network`.
    """
    passed: dict[str, object] = {key: fields[key] for key in _PASSED_TO_IPAM if key in fields}
    passed |= {"name": network, "ipam": ipam}
    return _encoder.encode(passed | _runtime_config(fields))


def ipam_network(name: str, *, chained: bool, network: str = "") -> str:
    """Under which network's name an IPAM plugin keeps leases for the network `name`.

    Chained, the plugin before may use the same plugin under that very name: so leases of ours are apart.
    network: the network that interfaces name in the annotation, whose addresses are apart as well; or empty.
    """
    return "-".join(filter(None, (name, "rdma" if chained else "", network)))


def delegate_config(fields: Mapping[str, msgspec.Raw], delegate: msgspec.Raw) -> bytes:
    """The configuration of a delegate: its own object with our name, version and runtime part.

    The pod's annotations are in that where its object asks for this capability. MalformedError
    (`INVALID_NETCONF`) when `delegate` is no object.
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
    """A recorded configuration as one call's stdin.

    valid: for GC, container and interface of every attachment that is to stay. Both names of the list are
        written, as libcni does: the specification's, and that which an early draft had.
    """
    call: dict[str, object] = {"cniVersion": version}
    if prev_result:
        call["prevResult"] = msgspec.Raw(prev_result)
    if valid is not None:
        attachments = [{"containerID": container, "ifname": ifname} for container, ifname in valid]
        call |= {"cni.dev/valid-attachments": attachments, "cni.dev/attachments": attachments}
    return _encoder.encode(_fields(netconf, "recorded configuration") | call)


def network_of(netconf: bytes) -> str:
    """The network's name in a recorded configuration."""
    return _text(netconf, "name")


def in_network_of(recorded: bytes, netconf: bytes) -> bytes:
    """A configuration under the network's name that a recorded one has."""
    name = network_of(recorded)
    if name == network_of(netconf):
        return netconf
    return _encoder.encode(_fields(netconf, "network configuration") | {"name": name})


def version_of(netconf: bytes) -> str:
    """The version in a recorded configuration, that of the runtime's call; the first where it has none."""
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
