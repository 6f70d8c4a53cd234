"""Messages on the agent's `claims.sock` (mode 0600): what the device plugin's DRA driver asks the agent.

Lines of JSON; a connection has one question. `prepare` and `unprepare` get one answer. `follow` gets an
`Offers` at once and after each change, until either side ends the connection.

The plugin passes on the claim and its pod as the API server has them, so that the agent alone judges them
(`wire.resource_claim`), and encodes what the agent offers as a ResourceSlice.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from k8s_rdma.core.types import Enforcer, LinkType
from k8s_rdma.wire.json import decode

SOCKET = "claims.sock"

DRIVER = "rdma.k8s-rdma.io"
"""The driver's name: of ResourceSlices, DeviceClasses and allocation results."""

MAX_LINE_BYTES = 4 << 20
"""etcd takes objects of 1.5 MiB; a question carries a claim and a pod."""

LONGEST_WAIT_S = 40.0
"""Kubelet gives up NodePrepareResources after 45 s (Kubernetes 1.36, pkg/kubelet/cm/dra/plugin)."""

NO_POD = msgspec.Raw(b"null")

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]


class ClaimName(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A claim as kubelet names it."""

    namespace: Text
    name: Text
    uid: Text


class Prepare(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """NodePrepareResources of one claim.

    claim: the name as kubelet gave it. resource: the ResourceClaim as the API server has it. pod: the Pod
    that the claim is reserved for, likewise; null where there is none by that name.
    wait_s: how long the answer may take where something that is ending has what the claim needs.
    """

    claim: ClaimName
    resource: msgspec.Raw
    pod: msgspec.Raw = NO_POD
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=LONGEST_WAIT_S)] = LONGEST_WAIT_S


class Question(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Exactly one of these. unprepare: NodeUnprepareResources of one claim."""

    prepare: Prepare | None = None
    unprepare: ClaimName | None = None
    follow: bool = False

    def __post_init__(self) -> None:
        """Refuse none, and several at once."""
        if sum((self.prepare is not None, self.unprepare is not None, self.follow)) != 1:
            msg = "wanted exactly one of prepare, unprepare and follow"
            raise ValueError(msg)


class PreparedDevice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A device of a claim for kubelet; fields as of DRAPlugin v1's `Device`. cdi: qualified CDI names."""

    request: str
    pool: str
    device: str
    share_id: str
    cdi: tuple[str, ...]


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to `prepare` and `unprepare`.

    devices: of `prepare`, in the order of the allocation's results. error: a sentence; empty on success.
    reason: an `errors.Reason` where there is an error.
    """

    devices: tuple[PreparedDevice, ...] = ()
    error: str = ""
    reason: str = ""


class PfOffer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A PF that claims may have VFs of.

    name: of the device, a DNS label, stable while the PF has its name. pf: the PF's netdev. pcie_root: of
    Kubernetes' attribute `resource.kubernetes.io/pcieRoot`, `pci0000:3a`. mtu: bytes.
    min_rate, max_rate: what enforces reservations and caps.
    bandwidth_mbps: what reservations may add up to. vfs: how many can be given, those in use included.
    link_up: whether the link has carrier; while it has none, `bandwidth_mbps` is of when it last had.
    problems: one sentence each on why interfaces may not work now; with none the PF is healthy.
    """

    name: str
    pf: str
    pci: str
    driver: str
    vendor: str
    link_type: LinkType
    mtu: int
    min_rate: Enforcer
    max_rate: Enforcer
    rdma: bool
    bandwidth_mbps: int
    vfs: int
    numa_node: int | None = None
    pcie_root: str = ""
    link_up: bool = True
    problems: tuple[str, ...] = ()


class Offers(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The node's PFs for claims, ordered by name; an empty list withdraws everything.

    prepared: qualified CDI names of each prepared claim's devices by the PF's device name, for their health.
    """

    node: str
    pfs: tuple[PfOffer, ...] = ()
    prepared: dict[str, tuple[str, ...]] = {}


_encoder = msgspec.json.Encoder()
_question = msgspec.json.Decoder(Question)
_answer = msgspec.json.Decoder(Answer)
_offers = msgspec.json.Decoder(Offers)


def encode_line(message: Question | Answer | Offers) -> bytes:
    """Encode a message and the end of its line."""
    return _encoder.encode(message) + b"\n"


def decode_question(line: bytes) -> Question:
    """Decode a question; MalformedError names the field."""
    return decode(line, _question, "claims.sock")


def decode_answer(line: bytes) -> Answer:
    """Decode an answer; MalformedError names the field."""
    return decode(line, _answer, "claims.sock")


def decode_offers(line: bytes) -> Offers:
    """Decode what the agent offers; MalformedError names the field."""
    return decode(line, _offers, "claims.sock")
