"""`GET /v1/node`: what a node has and what is allocated there.

The same document is the snapshot that the agent sends on `state.sock` (with `vfs`, which `/v1/node`
leaves out) and that the extender reads.

`GET /getpfs`: a node's PFs and VFs as the RDMA hardware DaemonSet has always shown them.

Field names, their order and their types are those that existing scripts and extenders read.

Errors of every HTTP endpoint: `{"error": {"reason", "message", ...}}`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec.structs import replace

from k8s_rdma.wire.json import decode
from k8s_rdma.wire.rates import Rates
from k8s_rdma.wire.report_bounds import MAX_MACS, Entry, Mac, Mbps, Mtu, NumaNode, Vfs

GENERATION_PATTERN = r"^[!#-~]+$"

GenerationText = Annotated[str, msgspec.Meta(pattern=GENERATION_PATTERN)]
"""What an entity tag may hold (RFC 9110, section 8.8.3): the generation is the document's tag."""


class Pod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod by name and UID."""

    namespace: str
    name: str
    uid: str


class Enforced(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """The enforcement of an interface's rates: `hardware`, `accounted` (sums alone), or null without one.

    A cap may be `software`'s: a queueing discipline in the pod, which sees nothing of what hardware sends.
    """

    min: Literal["hardware", "accounted"] | None
    max: Literal["hardware", "software", "accounted"] | None


class Interface(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """An interface given to a pod; rates in Mb/s, 0 as in the annotation.

    entry: its index in the pod's request; null from an agent that gives a pod all of it at once.
    rdma_device: its name at home; empty for none. pool: the exclusive resource whose device it is, or empty.
    mac: in the pod. pci: the VF's own address. driver: what drives it there, `kernel` or `vfio-pci`.
    options: what was asked for besides, in the annotation's words.
    set_min_tx_rate, set_max_tx_rate: what is programmed; a reservation is rounded up to what the driver
        takes and a cap down, and 0 is programmed for what it does not take at all.
    software_max_tx_rate: what its netdev in the pod is limited to; 0 where no software has to.
    """

    pf: str
    vf: int
    ifname: str
    mac: str
    min_tx_rate: Mbps
    max_tx_rate: Mbps
    set_min_tx_rate: Mbps
    set_max_tx_rate: Mbps
    enforced: Enforced
    entry: Entry | None = None
    pci: str = ""
    rdma_device: str = ""
    pool: str = ""
    driver: str = "kernel"
    options: dict[str, Any] = {}
    software_max_tx_rate: int = 0


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """The interfaces of one sandbox; `phase` as in `core.ledger.Phase`.

    slots: CDI devices that were written for it (`core.devices.pod_devices`).
    """

    pod: Pod
    container_id: str
    phase: str
    interfaces: tuple[Interface, ...]
    slots: tuple[str, ...] = ()


class VfReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """A VF in the words of `/getpfs`; rates in Mb/s."""

    vf: int
    mac: str
    vlan: int
    qos: int
    vlan_proto: str
    spoof_check: str
    trust: str
    link_state: str
    min_tx_rate: int
    max_tx_rate: int
    vgt_plus: str
    rate_group: int
    allocated: bool


class ForeignVf(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """A VF that is held or rated by someone else than this system, or cannot be given; rates in Mb/s.

    pool: the exclusive resource that it belongs to, or empty.
    """

    vf: int
    why: str
    min_tx_rate: Mbps
    max_tx_rate: Mbps
    pool: str = ""


class MacRange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """MACs one after the other: the first, and how many."""

    first: Mac
    number: Annotated[int, msgspec.Meta(ge=1, le=MAX_MACS)] = 1


class PfReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A PF, as `core.kernel.PfState`. link_mbps: null when unknown. takes: as `core.types.Setting`.

    capacity_vfs: for pods that ask by annotation. pools: VFs of exclusive resources, by resource.
    """

    name: str
    pci: str
    driver: str
    capacity_vfs: Vfs
    link_mbps: Mbps | None
    mtu: Mtu = 0
    link_type: str = "ethernet"
    rdma_device: str | None = None
    vendor: str = ""
    firmware: str = ""
    numa_node: NumaNode | None = None
    pcie_path: tuple[str, ...] = ()
    switchdev: bool = False
    rates: Rates
    enforce: str = "auto"
    takes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    foreign: tuple[ForeignVf, ...] = ()
    pools: dict[str, Vfs] = {}
    vfs: tuple[VfReport, ...] = ()


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """A node's state at one generation (`epoch.counter`).

    ledger: `unavailable` when the agent is down: then `allocations` is not known and everything that is in
        use is foreign.
    unreadable: what the scan could not see, one sentence each; the document is then shown to nobody.
    problems: what an operator should know of the node and of no PF alone, one sentence each.
    agent_version: of the agent whose report it is; empty while it is down.
    macs: of its PFs and VFs, and those that VFs have in pods.
    """

    node: str
    generation: GenerationText
    ledger: Literal["ok", "unavailable"]
    pfs: tuple[PfReport, ...]
    allocations: tuple[Allocation, ...] = ()
    unreadable: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    agent_version: str = ""
    macs: tuple[MacRange, ...] = ()


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(NodeReport)


def encode_report(report: NodeReport) -> bytes:
    """The document's bytes."""
    return _encoder.encode(report)


def without_vfs(report: NodeReport) -> NodeReport:
    """The report as `/v1/node` shows it."""
    pfs = tuple(msgspec.structs.replace(pf, vfs=()) for pf in report.pfs)
    return msgspec.structs.replace(report, pfs=pfs)


def decode_report(data: bytes) -> NodeReport:
    """Parse the document; unknown fields are tolerated (a newer agent), wrong ones are MalformedError."""
    return decode(data, _decoder, "node report")


class LegacyPf(msgspec.Struct, frozen=True, kw_only=True):
    """A PF; rates in Mb/s.

    used_tx_rate: the sum of its VFs' `min_tx_rate`.
    capacity_tx_rate: the link's speed. 0 when it is unknown: the readers decode an unsigned integer, and
        with 0 they place no reservation on the PF, as placement itself does; `/v1/node` says null.
    used_vfs: VFs that a pod has, or somebody else, wherever they are. capacity_vfs: VFs that exist, in any
        pool: the readers know of none.
    """

    name: str
    used_tx_rate: int
    capacity_tx_rate: int
    used_vfs: int
    capacity_vfs: int
    vfs: tuple[VfReport, ...]


def legacy_pf(pf: PfReport) -> LegacyPf:
    """A PF in the words of `/getpfs`; the report must hold the VFs."""
    foreign = {vf.vf for vf in pf.foreign}
    vfs = tuple(replace(vf, allocated=True) if vf.vf in foreign else vf for vf in pf.vfs)
    return LegacyPf(
        name=pf.name,
        used_tx_rate=sum(vf.min_tx_rate for vf in vfs),
        capacity_tx_rate=pf.link_mbps or 0,
        used_vfs=sum(vf.allocated for vf in vfs),
        capacity_vfs=pf.capacity_vfs + sum(pf.pools.values()),
        vfs=vfs,
    )


def encode_getpfs(report: NodeReport) -> bytes:
    """The document's bytes, PFs in the report's order."""
    return _encoder.encode([legacy_pf(pf) for pf in report.pfs])


class Error(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error.

    reason: a stable name: a value of `k8s_rdma.errors.Reason`, or one of HTTP's own (`not_found`).
    message: one sentence for an operator.
    since: how long it has been so (RFC 3339), where that is known.
    problems: what exactly could not be seen, one sentence each.
    """

    reason: str
    message: str
    since: str | msgspec.UnsetType = msgspec.UNSET
    problems: tuple[str, ...] = ()


class ErrorDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an error."""

    error: Error


_error_decoder = msgspec.json.Decoder(ErrorDocument)


def message_of(body: bytes) -> str:
    """The message of an error document; empty when it is none."""
    try:
        return _error_decoder.decode(body).error.message
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return ""
