"""The report of a node: the one model of its state, of what it has and what is allocated there.

The agent sends it on `state.sock`. `GET /v1/node` shows it without `vfs`. The status of the `RdmaNode` is
made of it, and everything that is decided of a node is decided of that status (`wire.rdma_node`).

A node is not trusted for being one of the cluster: what it publishes is read by the process that schedules
for all others. So every list, text and number has a bound, generous above real machines (docs/limits.md,
"Sizes"), and what goes beyond it makes this one node unreadable. The schema of the `RdmaNode` is made of the
same types (`deploy/rdma_node_crd.py`), so that the API server refuses what the decoder would.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from k8s_rdma.core.rate_ability import EVERY_RATE, RateAbility
from k8s_rdma.core.request import MAX_INTERFACES
from k8s_rdma.core.types import MAX_RATE_MBPS
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.json import decode_large

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_PFS = 64
MAX_VFS = 4096
"""The limit for VFs of one PF, and for those that one pod holds; SR-IOV has 16 bits for them, cards have
hundreds."""

MAX_HELD_VFS = 16_384
"""The limit for a node's VFs in use, by pods and by others. A few bytes of a status can stand for thousands,
and each is examined."""

MAX_PODS = 4096
"""The limit for a node's pods with interfaces: kubelet's default is 110 pods of any kind."""

MAX_MACS = 16_384
"""Ranges of them of a node; as many addresses as its VFs can have, see `rdma_node`."""

MAX_GPUS = 256
MAX_GPU_DEVICES = 4096
"""The limit for a node's GPU devices, for each resource that counts them: machines have 16."""

MAX_BRIDGES = 32
"""The limit for bridges from the root port to a function: real machines have about four."""

MAX_POOLS = 64
MAX_SETTINGS = 64
MAX_PROBLEMS = 16
MAX_CONDITIONS = 16

UNIQUE = {"pfs": ("pci",), "pools": ("resource",), "gpus": ("resource", "pci")}
"""Lists whose items differ in these fields; `x-kubernetes-list-map-keys` of the schema."""

LABEL = r"^[ -~]*\Z"
"""Printable ASCII. `$` would let a newline at the end pass in Python; a schema writes it, see there."""

GENERATION = r"^[!#-~]+\Z"
"""The characters of an entity tag (RFC 9110, section 8.8.3): the generation is the report's tag."""

PCI = r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]\Z"
"""The pattern of a PCI address, as `core.types.pci_address` writes it."""

MAC = r"^[0-9a-f]{2}(:[0-9a-f]{2}){5}\Z"

MAX_LABEL = 63
MAX_NAME = 253
"""The limit of a Kubernetes object's name (DNS subdomain, RFC 1123)."""

MAX_RESOURCE = 317
"""A DNS subdomain, a slash, and 63 characters."""

MAX_PROBLEM = 1024
MAX_REFUSAL = 256
"""The limit for why a pod's rates are refused, in characters: a node may refuse those of all its pods."""

Mbps = Annotated[int, Meta(ge=0, le=MAX_RATE_MBPS)]
Rate = Annotated[int, Meta(ge=1, le=MAX_RATE_MBPS)]
Mtu = Annotated[int, Meta(ge=0, le=2**32 - 1)]
"""The kernel's is unsigned 32 bits (`IFLA_MTU`)."""

NumaNode = Annotated[int, Meta(ge=0, le=1023)]
"""The kernel has 1,024 at most (`NODES_SHIFT`, arch/x86/Kconfig)."""

Vfs = Annotated[int, Meta(ge=0, le=MAX_VFS)]
SomeVfs = Annotated[int, Meta(ge=1, le=MAX_VFS)]
Weight = Annotated[int, Meta(ge=1, le=65_535)]
Entry = Annotated[int, Meta(ge=0, le=MAX_INTERFACES - 1)]

RatesGeneration = Annotated[int, Meta(ge=0, le=2**53 - 1)]
"""The number of changes of a running pod's rates; every JSON reader keeps such numbers."""

Label = Annotated[str, Meta(max_length=MAX_LABEL, pattern=LABEL)]
Name = Annotated[str, Meta(max_length=MAX_NAME, pattern=LABEL)]
Resource = Annotated[str, Meta(max_length=MAX_RESOURCE, pattern=LABEL)]
Pci = Annotated[str, Meta(pattern=PCI)]
Mac = Annotated[str, Meta(max_length=17, pattern=MAC)]
Generation = Annotated[str, Meta(max_length=MAX_NAME, pattern=GENERATION)]
Problem = Annotated[str, Meta(max_length=MAX_PROBLEM)]
Message = Annotated[str, Meta(max_length=2048)]

_encoder = msgspec.json.Encoder()


class Range(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """Rates that a driver takes beside 0: multiples of `step` from `smallest` to `largest`, in Mb/s."""

    step: Rate
    smallest: Rate
    largest: Rate


class Rates(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """The rates that a PF's driver supports, as `core.rate_ability.RateAbility`."""

    min: Range | None
    max: Range | None
    sum_checked: bool
    needs_link: bool
    weights: Weight | None


class PfRates(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The minimum and maximum rates of a PF's driver; a range that is absent takes none but 0."""

    min: Range | None = None
    max: Range | None = None
    sum_checked: bool = False
    needs_link: bool = False
    weights: Weight | None = None


@lru_cache(maxsize=1024)
def rates_of(ability: RateAbility) -> Rates:
    """Return an ability in the report's words."""
    return msgspec.convert(ability, Rates, from_attributes=True)


@lru_cache(maxsize=1024)
def published_rates(rates: Rates) -> PfRates:
    """Return what a report says in the words of the `RdmaNode`."""
    return msgspec.convert(rates, PfRates, from_attributes=True)


@lru_cache(maxsize=1024)
def ability_of(rates: PfRates) -> RateAbility:
    """Return the ability that a status says; one object for all that say the same.

    ValueError if it says a range without a rate, or weights without one.
    """
    ability = msgspec.convert(rates, RateAbility, from_attributes=True)
    return EVERY_RATE if ability == EVERY_RATE else ability


class ReportedPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod by name and UID."""

    namespace: str
    name: str
    uid: str


class Enforced(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """The enforcement of an interface's rates: `hardware`, `accounted` (sums alone), or null without one.

    A cap may be `software`'s: a queueing discipline in the pod, which sees nothing of what hardware sends. Of
    virtual PFs, which are bridges with queueing disciplines, both are.
    """

    min: Literal["hardware", "software", "accounted"] | None
    max: Literal["hardware", "software", "accounted"] | None


class Interface(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """An interface given to a pod; rates in Mb/s, 0 as in the annotation.

    entry: its index in the pod's request; null from an agent that gives a pod all of it at once.
    rdma_device: its name at home; empty for none. pool: the exclusive resource whose device it is, or empty.
    mac: in the pod. pci: the VF's own address. driver: what drives it there, `kernel` or `vfio-pci`.
    options: what was asked for besides, in the annotation's words.
    set_min_tx_rate, set_max_tx_rate: what is programmed; a reservation is rounded up to what the driver
        takes and a cap down, and 0 is programmed for what it does not take at all.
    software_max_tx_rate: what its netdev in the pod is limited to; 0 if no software has to.
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

    @property
    def reserved_mbps(self) -> int:
        """The reservation that counts: as requested, or as programmed if that is more."""
        requested, programmed = self.min_tx_rate, self.set_min_tx_rate
        return requested if requested > programmed else programmed  # `max` takes twice as long


class RatesRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a running pod's rates that its node has not made: the placement's generation, and why."""

    generation: RatesGeneration
    message: Annotated[str, Meta(max_length=MAX_REFUSAL)]


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """The interfaces of one sandbox; `phase` as in `core.ledger.Phase`.

    slots: CDI devices that were written for it (`core.devices.pod_devices`).
    generation: of the pod's placement whose rates are programmed.
    refused: the pod's later generation that is not programmed, after an attempt that was refused or failed;
        it is tried again.
    """

    pod: ReportedPod
    container_id: str
    phase: str
    interfaces: tuple[Interface, ...]
    slots: tuple[str, ...] = ()
    generation: int = 0
    refused: RatesRefusal | None = None


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
    claims_mbps: the part of its link that is not for annotations, where it is split.
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
    claims_mbps: Mbps | None = None
    vfs: tuple[VfReport, ...] = ()


class GpuReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A GPU that kubelet gives pods, as `core.inventory.Gpu`."""

    resource: str
    pci: str
    pcie_path: tuple[str, ...] = ()
    numa_node: NumaNode | None = None
    in_use: bool = False
    devices: int = 1


class MentionedPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that problems name, as `pod NAMESPACE/NAME`, so that a reader's view can leave it out."""

    namespace: Name
    name: Name


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """A node's state at one generation (`epoch.counter`).

    ledger: `unavailable` when the agent is down: then `allocations` is not known and everything that is in
        use is foreign.
    unreadable: what the scan could not see, one sentence each; the document is then not served.
    problems: what an operator should know of the node and of no PF alone, one sentence each.
    mentions: the pods that problems name, the PFs' included.
    agent_version: of the agent whose report it is; empty while it is down.
    macs: of its PFs and VFs, and those that VFs have in pods.
    gpus: that kubelet gives pods; none if the agent does not know them.
    takes_placements: whether the agent has later placements of its pods sent to it, as it cannot follow them
        in the API server.
    """

    node: str
    generation: Generation
    ledger: Literal["ok", "unavailable"]
    pfs: tuple[PfReport, ...]
    allocations: tuple[Allocation, ...] = ()
    unreadable: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    mentions: tuple[MentionedPod, ...] = ()
    agent_version: str = ""
    macs: tuple[MacRange, ...] = ()
    gpus: tuple[GpuReport, ...] = ()
    takes_placements: bool = False


_decoder = msgspec.json.Decoder(NodeReport)


def encode_report(report: NodeReport) -> bytes:
    """Encode the document."""
    return _encoder.encode(report)


def held_vfs(report: NodeReport) -> Iterator[tuple[str, str, int]]:
    """List the VFs in use, of pods and others: the PF's address, the pool, and the reservation, Mb/s."""
    for pf in report.pfs:
        for vf in pf.foreign:
            yield pf.pci, vf.pool, vf.min_tx_rate
    for allocation in report.allocations:
        for interface in allocation.interfaces:
            yield interface.pf, interface.pool, interface.reserved_mbps


def without_vfs(report: NodeReport) -> NodeReport:
    """The report as `/v1/node` shows it."""
    pfs = tuple(msgspec.structs.replace(pf, vfs=()) for pf in report.pfs)
    return msgspec.structs.replace(report, pfs=pfs)


def decode_report(data: bytes) -> NodeReport:
    """Parse the document; unknown fields are tolerated (a newer agent), wrong ones are MalformedError."""
    return decode_large(data, _decoder, "node report")


def require_node(report: NodeReport, node: str) -> None:
    """Raise MalformedError if the report is of another node than the one that was asked for."""
    if report.node != node:
        msg = f"the address answers for node {report.node[:MAX_NAME]!r}"
        raise MalformedError(msg, reason=Reason.UNREADABLE_NODE)
