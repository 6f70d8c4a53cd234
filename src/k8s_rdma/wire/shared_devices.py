"""What the device plugin has the agent publish as CDI devices, on the agent's `cdi.sock` (mode 0600).

Lines of JSON. The plugin declares all that it offers whenever that changes; the agent answers each
declaration in its order. The plugin never says which device nodes: the agent looks them up by the names of
RDMA devices, so nobody can have it publish anything else. What was declared holds for as long as the
connection.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from k8s_rdma.wire.json import decode
from k8s_rdma.wire.resource_names import ResourceName

SOCKET = "cdi.sock"

MAX_LINE_BYTES = 1 << 20
"""8 resources of 1,000 devices each are 80 KiB."""

RdmaDeviceName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][-_.A-Za-z0-9]{0,63}\Z")]
Resources = Annotated[dict[ResourceName, tuple[RdmaDeviceName, ...]], msgspec.Meta(max_length=256)]
"""Each is a file, and a look at all character devices of the node, for which ADDs wait."""


class Declared(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """resources: RDMA devices by the shared resource whose holders get them all."""

    resources: Resources = {}


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """resources: those that a specification is there of. failed: why there is none, by resource."""

    resources: tuple[str, ...] = ()
    failed: dict[str, str] = {}


_encoder = msgspec.json.Encoder()
_declared = msgspec.json.Decoder(Declared)
_written = msgspec.json.Decoder(Written)


def encode_line(message: Declared | Written) -> bytes:
    """The message, and the end of its line."""
    return _encoder.encode(message) + b"\n"


def decode_declared(line: bytes) -> Declared:
    """What a plugin declares; MalformedError names the field."""
    return decode(line, _declared, "cdi.sock")


def decode_written(line: bytes) -> Written:
    """What the agent answers; MalformedError names the field."""
    return decode(line, _written, "cdi.sock")
