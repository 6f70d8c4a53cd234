"""Messages on the agent's `claims.sock` (mode 0600): the questions of the device plugin's DRA driver.

Lines of JSON; a connection has one question. `prepare` and `unprepare` get one answer. `follow` gets an
`Offers` at once, after each change, and every `HEARTBEAT_S`, until either side ends the connection.

The plugin passes on the claim and its pod as the API server has them, so that the agent alone judges them
(`wire.resource_claim`). It encodes the agent's offers as a ResourceSlice.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from k8s_rdma.core.node_paths import CLAIMS_SOCKET
from k8s_rdma.core.types import MAX_RATE_MBPS, Enforcer, LinkType
from k8s_rdma.wire.json import decode
from k8s_rdma.wire.objects.claims import MAX_RESULTS

DRIVER = "rdma.k8s-rdma.io"
"""The driver's name: of ResourceSlices, DeviceClasses and allocation results."""

MAX_LINE_BYTES = 4 << 20
"""etcd takes objects of 1.5 MiB; a question carries a claim and a pod."""

LONGEST_WAIT_S = 40.0
"""Kubelet gives up NodePrepareResources after 45 s (Kubernetes 1.36, pkg/kubelet/cm/dra/plugin)."""

HEARTBEAT_S, SILENCE_S = 5.0, 15.0
"""The interval at which `Offers` are repeated, and the silence after which the agent counts as away."""

MAX_ERROR, MAX_PROBLEMS = 4096, 64
"""Characters of an error or a problem; problems of a PF."""

MAX_IPS = 16
"""Addresses of an interface in a claim's status (`NetworkDeviceDataMaxIPs`, k8s.io/api/resource/v1/types.go,
Kubernetes 1.36)."""

NO_POD = msgspec.Raw(b"null")

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
Name = Annotated[str, msgspec.Meta(max_length=253)]
Sentence = Annotated[str, msgspec.Meta(max_length=MAX_ERROR)]
Mbps = Annotated[int, msgspec.Meta(ge=0, le=MAX_RATE_MBPS)]
Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]

_encoder = msgspec.json.Encoder()


class ClaimName(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A claim as kubelet names it."""

    namespace: Text
    name: Text
    uid: Text


class Prepare(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """NodePrepareResources of one claim.

    claim: the name as kubelet gave it.
    resource: the ResourceClaim as the API server has it.
    pod: the Pod that the claim is reserved for, as the API server has it; null if there is no such pod.
    wait_s: how long the answer may take if another pod that is ending has the VFs that the claim needs.
    """

    claim: ClaimName
    resource: msgspec.Raw
    pod: msgspec.Raw = NO_POD
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=LONGEST_WAIT_S)] = LONGEST_WAIT_S


class ClaimQuestion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Exactly one of `prepare`, `unprepare` and `follow`. unprepare: NodeUnprepareResources of one claim.

    abandoned_by: the UID of the pod that the claim was prepared for and is not reserved for any more. Because
        kubelet did not ask, the agent refuses while that pod has interfaces. It also refuses `prepare` if the
        claim has no VFs set aside for that pod. `unprepare` frees these VFs, `prepare` hands them over to the
        claim's new pod.
    """

    prepare: Prepare | None = None
    unprepare: ClaimName | None = None
    follow: bool = False
    abandoned_by: Text | None = None

    def __post_init__(self) -> None:
        """Refuse a question without a request, and one with several."""
        if self.abandoned_by is not None and self.follow:
            msg = "abandoned_by needs prepare or unprepare"
            raise ValueError(msg)
        if sum((self.prepare is not None, self.unprepare is not None, self.follow)) != 1:
            msg = "wanted exactly one of prepare, unprepare and follow"
            raise ValueError(msg)


class PreparedDevice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A device of a claim for kubelet; fields as of DRAPlugin v1's `Device`. cdi: qualified CDI names."""

    request: Text
    pool: Text
    device: Text
    share_id: Name
    cdi: Annotated[tuple[Annotated[str, msgspec.Meta(max_length=512)], ...], msgspec.Meta(max_length=8)]


class ClaimAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to `prepare` and `unprepare`.

    devices: of `prepare`, in the order of the allocation's results.
    error: a sentence; empty on success.
    reason: an `errors.Reason` if there is an error.
    """

    devices: Annotated[tuple[PreparedDevice, ...], msgspec.Meta(max_length=MAX_RESULTS)] = ()
    error: Sentence = ""
    reason: Name = ""


class PfOffer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A PF that claims may have VFs of.

    name: of the device, a DNS label, stable while the PF has its name.
    pf: the PF's netdev.
    pcie_root: of Kubernetes' attribute `resource.kubernetes.io/pcieRoot`, `pci0000:3a`.
    mtu: bytes.
    min_rate, max_rate: the enforcers of reservations and caps.
    bandwidth_mbps: the most that reservations may add up to.
    least_mbps: the least that each interface reserves.
    vfs: how many can be given, including those in use.
    link_up: whether the link has carrier; without carrier, `bandwidth_mbps` is of the last time that it had.
    problems: one sentence each for an operator; while the link is down, also the message of its health.
    """

    name: Text
    pf: Text
    pci: Text
    driver: Name
    vendor: Name
    link_type: LinkType
    mtu: Number
    min_rate: Enforcer
    max_rate: Enforcer
    rdma: bool
    bandwidth_mbps: Mbps
    least_mbps: Mbps = 0
    vfs: Number
    numa_node: Number | None = None
    pcie_root: Name = ""
    link_up: bool = True
    problems: Annotated[tuple[Sentence, ...], msgspec.Meta(max_length=MAX_PROBLEMS)] = ()


class PreparedClaimInterface(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An interface of a prepared claim.

    device, share_id: of the allocation.
    pci, rdma_device: the VF's. Rates in Mb/s, 0 for no rate.
    ifname: in the pod; empty while no sandbox has it. mac, ips and the enforcers of the rates are of that
        sandbox.
    ips: with prefix lengths; null if the agent, which has started since, no longer has them.
    """

    device: Text
    share_id: Name
    pci: Text
    rdma_device: Name = ""
    min_tx_rate: Mbps = 0
    max_tx_rate: Mbps = 0
    ifname: Name = ""
    mac: Name = ""
    ips: Annotated[tuple[Name, ...], msgspec.Meta(max_length=MAX_IPS)] | None = None
    min_enforced: Enforcer | None = None
    max_enforced: Enforcer | None = None


class PreparedClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A claim from its preparation to the end of that; the pod is the one that it was prepared for."""

    claim: ClaimName
    pod: Text
    pod_uid: Text
    interfaces: Annotated[tuple[PreparedClaimInterface, ...], msgspec.Meta(max_length=MAX_RESULTS)]

    @property
    def attached(self) -> bool:
        """Report whether a sandbox has any of its interfaces."""
        return any(interface.ifname for interface in self.interfaces)


class Offers(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The node's PFs for claims, ordered by name, and its prepared claims; no PFs withdraw everything."""

    node: Text
    pfs: Annotated[tuple[PfOffer, ...], msgspec.Meta(max_length=1024)] = ()
    claims: Annotated[tuple[PreparedClaim, ...], msgspec.Meta(max_length=4096)] = ()


_question = msgspec.json.Decoder(ClaimQuestion)
_answer = msgspec.json.Decoder(ClaimAnswer)
_offers = msgspec.json.Decoder(Offers)


def encode_line(message: ClaimQuestion | ClaimAnswer | Offers) -> bytes:
    """Encode a message and the end of its line."""
    return _encoder.encode(message) + b"\n"


def decode_question(line: bytes) -> ClaimQuestion:
    """Decode a question; MalformedError names the field."""
    return decode(line, _question, CLAIMS_SOCKET)


def decode_answer(line: bytes) -> ClaimAnswer:
    """Decode an answer; MalformedError names the field."""
    return decode(line, _answer, CLAIMS_SOCKET)


def decode_offers(line: bytes) -> Offers:
    """Decode the agent's offers; MalformedError names the field."""
    return decode(line, _offers, CLAIMS_SOCKET)
