"""The reasons for refusals and failures, and their names in each protocol.

A refusal is a value that carries a `Reason`; a failure is a `K8sRdmaError` that carries one.
`STATUS` maps every reason to the words of the three protocols spoken here, so that one cause has
one name everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, unique
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_INVALID_ARGUMENT, _NOT_FOUND, _ALREADY_EXISTS, _PERMISSION_DENIED, _RESOURCE_EXHAUSTED = 3, 5, 6, 7, 8
_FAILED_PRECONDITION, _ABORTED, _OUT_OF_RANGE, _INTERNAL, _UNAVAILABLE = 9, 10, 11, 13, 14

TRY_AGAIN_LATER = 11
"""CNI error code: the runtime should retry the operation (CNI specification 1.1.0, section 5)."""

NOT_AVAILABLE = 50
"""CNI error code: an ADD could not succeed now (CNI specification 1.1.0, section 2 "STATUS")."""


@unique
class Reason(StrEnum):
    """The cause of a refusal or failure; the values are stable and appear in logs and metrics."""

    MALFORMED_ANNOTATION = "malformed_annotation"
    MALFORMED_REQUEST = "malformed_request"
    INVALID_ENVIRONMENT = "invalid_environment"
    INVALID_NETCONF = "invalid_netconf"
    INCOMPATIBLE_CNI_VERSION = "incompatible_cni_version"
    UNREADABLE_NODE = "unreadable_node"
    NO_RDMA = "no_rdma"
    INSUFFICIENT = "insufficient"
    EXCEEDS_CAPACITY = "exceeds_capacity"
    NO_SUCH_PF = "no_such_pf"
    DRIVER_REFUSES = "driver_refuses"
    UNDECIDED = "undecided"
    NAMESPACE_LIMIT = "namespace_limit"
    NOT_ALLOWED = "not_allowed"
    ADDRESS_IN_USE = "address_in_use"
    STALE_PLACEMENT = "stale_placement"
    GANG_INCOMPLETE = "gang_incomplete"
    COMPOSITE_GROUP = "composite_group"
    ALREADY_ATTACHED = "already_attached"
    HELD_BY_OLDER_SANDBOX = "held_by_older_sandbox"
    UNKNOWN_CONTAINER = "unknown_container"
    ALTERED = "altered"
    NOT_READY = "not_ready"
    AGENT_UNREACHABLE = "agent_unreachable"
    KERNEL_FAILURE = "kernel_failure"
    IPAM_FAILURE = "ipam_failure"
    PLUGIN_FAILURE = "plugin_failure"
    LEDGER_FAILURE = "ledger_failure"
    API_FAILURE = "api_failure"
    CONFLICT = "conflict"
    UNKNOWN_DEVICE = "unknown_device"
    TOO_MANY_DEVICES = "too_many_devices"
    DEVICES_DIFFER = "devices_differ"
    KUBELET_FAILURE = "kubelet_failure"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class ProtocolStatus:
    """The form of one reason in each protocol.

    http: HTTP status code (RFC 9110).
    cni: CNI error code (CNI specification 1.1.0, section 5 "Error"; 1-99 reserved, ours from 100).
    grpc: gRPC status code (google.rpc.Code).
    """

    http: int
    cni: int
    grpc: int


STATUS: Mapping[Reason, ProtocolStatus] = {
    Reason.MALFORMED_ANNOTATION: ProtocolStatus(422, 100, _INVALID_ARGUMENT),
    Reason.MALFORMED_REQUEST: ProtocolStatus(400, 6, _INVALID_ARGUMENT),
    Reason.INVALID_ENVIRONMENT: ProtocolStatus(400, 4, _INVALID_ARGUMENT),
    Reason.INVALID_NETCONF: ProtocolStatus(400, 7, _INVALID_ARGUMENT),
    Reason.INCOMPATIBLE_CNI_VERSION: ProtocolStatus(400, 1, _INVALID_ARGUMENT),
    Reason.UNREADABLE_NODE: ProtocolStatus(503, TRY_AGAIN_LATER, _UNAVAILABLE),
    Reason.NO_RDMA: ProtocolStatus(409, 101, _FAILED_PRECONDITION),
    Reason.INSUFFICIENT: ProtocolStatus(409, 102, _RESOURCE_EXHAUSTED),
    Reason.EXCEEDS_CAPACITY: ProtocolStatus(409, 103, _OUT_OF_RANGE),
    Reason.NO_SUCH_PF: ProtocolStatus(409, 116, _FAILED_PRECONDITION),
    Reason.DRIVER_REFUSES: ProtocolStatus(409, 107, _FAILED_PRECONDITION),
    Reason.UNDECIDED: ProtocolStatus(409, 104, _RESOURCE_EXHAUSTED),
    Reason.NAMESPACE_LIMIT: ProtocolStatus(409, 109, _RESOURCE_EXHAUSTED),
    Reason.NOT_ALLOWED: ProtocolStatus(403, 117, _PERMISSION_DENIED),
    Reason.ADDRESS_IN_USE: ProtocolStatus(409, TRY_AGAIN_LATER, _ALREADY_EXISTS),
    Reason.STALE_PLACEMENT: ProtocolStatus(409, 105, _FAILED_PRECONDITION),
    Reason.GANG_INCOMPLETE: ProtocolStatus(409, 118, _RESOURCE_EXHAUSTED),
    Reason.COMPOSITE_GROUP: ProtocolStatus(409, 120, _FAILED_PRECONDITION),
    Reason.ALREADY_ATTACHED: ProtocolStatus(409, 106, _ALREADY_EXISTS),
    Reason.HELD_BY_OLDER_SANDBOX: ProtocolStatus(409, TRY_AGAIN_LATER, _ABORTED),
    Reason.UNKNOWN_CONTAINER: ProtocolStatus(404, 3, _NOT_FOUND),
    Reason.ALTERED: ProtocolStatus(409, 108, _FAILED_PRECONDITION),
    Reason.NOT_READY: ProtocolStatus(503, NOT_AVAILABLE, _UNAVAILABLE),
    Reason.AGENT_UNREACHABLE: ProtocolStatus(503, TRY_AGAIN_LATER, _UNAVAILABLE),
    Reason.KERNEL_FAILURE: ProtocolStatus(500, 110, _INTERNAL),
    Reason.IPAM_FAILURE: ProtocolStatus(500, 111, _INTERNAL),
    Reason.LEDGER_FAILURE: ProtocolStatus(500, 112, _INTERNAL),
    Reason.PLUGIN_FAILURE: ProtocolStatus(500, 113, _INTERNAL),
    Reason.API_FAILURE: ProtocolStatus(502, TRY_AGAIN_LATER, _UNAVAILABLE),
    Reason.CONFLICT: ProtocolStatus(409, TRY_AGAIN_LATER, _ABORTED),
    Reason.UNKNOWN_DEVICE: ProtocolStatus(404, 114, _INVALID_ARGUMENT),
    Reason.TOO_MANY_DEVICES: ProtocolStatus(422, 119, _OUT_OF_RANGE),
    Reason.DEVICES_DIFFER: ProtocolStatus(422, 115, _INVALID_ARGUMENT),
    Reason.KUBELET_FAILURE: ProtocolStatus(502, TRY_AGAIN_LATER, _UNAVAILABLE),
    Reason.INTERNAL: ProtocolStatus(500, 199, _INTERNAL),
}


def printable(text: str) -> str:
    r"""Text, escaped (`\udcff`) where no encoding has it: bytes of a name that is no UTF-8 (PEP 383)."""
    return text.encode(errors="backslashreplace").decode()


def visible(text: str) -> str:
    r"""Text that others wrote, in one line as a terminal may be given it.

    Control characters (ESC begins orders to a terminal, a newline forges a line) and format characters (those
    that turn the direction of writing make it read otherwise) are escaped: `\x1b`, `\n`, `\u202e`.
    """
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


class K8sRdmaError(Exception):
    """The root of every failure raised by this package.

    message: one line an operator can act on: what, on which object, found against wanted, what to do.
    reason: the cause, for `STATUS`.
    details: more, for logs and the `details` of a CNI error; may be empty.

    Both can be encoded, whatever names of files and netdevs they were made of.
    """

    reason: Reason = Reason.INTERNAL

    def __init__(self, message: str, *, reason: Reason | None = None, details: str = "") -> None:
        self.message = printable(message)
        self.details = printable(details)
        super().__init__(self.message)
        if reason is not None:
            self.reason = reason


class MalformedError(K8sRdmaError):
    """Input that does not say what its specification demands; the message names the field."""

    reason = Reason.MALFORMED_REQUEST


class KernelError(K8sRdmaError):
    """The kernel refused a change, or a change did not take; nothing else was attempted after it."""

    reason = Reason.KERNEL_FAILURE


class LedgerError(K8sRdmaError):
    """The record of what is allocated cannot be read or written, or would contradict itself."""

    reason = Reason.LEDGER_FAILURE
