"""Names of extended resources as Kubernetes takes them, and the resources that the device plugin declares.

The device plugin has the agent publish them as CDI devices, on the agent's `cdi.sock` (mode 0600), in
lines of JSON. The plugin declares all that it offers whenever that changes; the agent answers each
declaration in its order. The plugin never says which device nodes: the agent looks them up by the names of
RDMA devices, so nobody can have it publish anything else. What was declared holds for as long as the
connection.
"""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from k8s_rdma.wire.json import decode

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"


RESOURCE_PATTERN = (
    r"^(?!requests\.)(?![^/]*kubernetes\.io/)"
    rf"(?=[^/]{{1,244}}/){_LABEL}(\.{_LABEL})*/"
    "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
)


ResourceName = Annotated[str, msgspec.Meta(pattern=RESOURCE_PATTERN)]
"""Of an extended resource: a domain that is not Kubernetes' own, and a name of at most 63 characters.

Kubelet takes no other, as a quota is to name it with `requests.` before it (`IsExtendedResourceName` in
Kubernetes' pkg/apis/core/v1/helper).
"""


ResourceText = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": RESOURCE_PATTERN})]
"""A `ResourceName` that people write: checked by `require_resource_name`, as a pattern explains nothing."""


def is_resource_name(text: str) -> bool:
    """Report whether a text is a `ResourceName`."""
    return re.fullmatch(RESOURCE_PATTERN, text) is not None


def require_resource_name(key: str, text: str) -> None:
    """ValueError, in words, when a key's text is no `ResourceName`."""
    if not is_resource_name(text):
        msg = (
            f"{key}: {text!r}; wanted a domain other than Kubernetes' own, a slash, and at most 63 "
            "letters, digits and -_. between them, as in example.com/rdma"
        )
        raise ValueError(msg)


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
    """Decode a plugin's declaration; MalformedError names the field."""
    return decode(line, _declared, "cdi.sock")


def decode_written(line: bytes) -> Written:
    """Decode the agent's answer; MalformedError names the field."""
    return decode(line, _written, "cdi.sock")
