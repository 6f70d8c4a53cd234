"""The request of `k8s-rdma agent adopt` and its answer, in frames of `wire.cni_socket`.

`K8S_RDMA_COMMAND=ADOPT` is the only variable, so that no call of the CNI executable can be one, because that
passes on `CNI_*` alone. stdin holds an `AdoptRequest`, stdout an `AdoptReply`. Exit status 1 means that the
agent changed no VF, and `error` says why.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from k8s_rdma.wire.cni_socket import Reply, SocketRequest
from k8s_rdma.wire.json import decode

VARIABLE = "K8S_RDMA_COMMAND"
ADOPT = "ADOPT"

Outcome = Literal["reset", "would reset", "left alone", "failed"]

_encoder = msgspec.json.Encoder()


class AdoptRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The VFs to adopt, as `core.allocation.Scope`; or, for a dry run, the VFs that would be adopted."""

    pf: str | None = None
    vf: Annotated[int, msgspec.Meta(ge=0)] | None = None
    dry_run: bool = False


class AdoptedVf(msgspec.Struct, frozen=True, kw_only=True):
    """A VF: its former state (rates in Mb/s; netdev null when not on the host), the outcome, and why."""

    pf: str
    pci: str
    vf: int
    netdev: str | None
    min_tx_rate: int
    max_tx_rate: int
    vlan: int
    outcome: Outcome
    why: str


class AdoptReply(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for each VF, and the parts that were unreadable."""

    vfs: tuple[AdoptedVf, ...] = ()
    unreadable: tuple[str, ...] = ()
    error: str = ""


_request_decoder = msgspec.json.Decoder(AdoptRequest)
_reply_decoder = msgspec.json.Decoder(AdoptReply)


def is_adopt(request: SocketRequest) -> bool:
    """Report whether a request is one of these."""
    return request.env == {VARIABLE: ADOPT}


def encode_adopt(request: AdoptRequest, deadline_ms: int) -> SocketRequest:
    """Return the request that carries it."""
    return SocketRequest(env={VARIABLE: ADOPT}, stdin=_encoder.encode(request), deadline_ms=deadline_ms)


def decode_adopt(request: SocketRequest) -> AdoptRequest:
    """Decode a request; MalformedError names the field that does not fit."""
    return decode(request.stdin, _request_decoder, "adopt")


def encode_adopted(adopted: AdoptReply) -> Reply:
    """Return the reply that carries it."""
    return Reply(exit_status=1 if adopted.error else 0, stdout=_encoder.encode(adopted))


def decode_adopted(reply: Reply) -> AdoptReply:
    """Decode a reply; MalformedError names the field that does not fit."""
    return decode(reply.stdout, _reply_decoder, "answer of the agent")
