"""Report of `k8s-rdma verify --report`: the measurements and the card, for everyone to read.

It names no host, pod, interface or address. docs/verify.md has its form.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

import msgspec

from k8s_rdma.core.types import Enforcer, pci_address
from k8s_rdma.core.verification import Check, PfFacts, Result, TrafficKind
from k8s_rdma.wire.json import decode
from k8s_rdma.wire.rdma_node import in_use

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from k8s_rdma.core.verification import TrialOutcome
    from k8s_rdma.wire.rdma_node import RdmaNodeStatus

FORMAT: Literal[1] = 1
"""Grows when a field changes its meaning or goes; new fields do not count."""

Receiver = Literal["same PF", "another PF", "another node"]

_encoder = msgspec.json.Encoder()

_ADDRESS = re.compile(
    r"(?i)\b\d{1,3}(?:\.\d{1,3}){3}\b|\b[0-9a-f]{2}(?::[0-9a-f]{2}){5}\b|\b[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){3,7}\b"
)
"""IPv4 addresses, MACs, IPv6 addresses."""


class CheckReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A check, as `core.verification.TrialOutcome`; rates in Mb/s of frames, null if not measured."""

    check: Check
    traffic: TrafficKind
    rate_mbps: int
    enforced: Enforcer | None
    measured_mbps: float | None
    result: Result
    why: str = ""


class CardReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A PF. device: PCI vendor and device. receiver: where the traffic went."""

    driver: str
    device: str
    firmware: str
    link_mbps: int | None
    receiver: Receiver
    checks: tuple[CheckReport, ...]


class VerificationReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A run. version: the program's. kernel: the sending node's, without distributions' suffixes."""

    format: Literal[1] = FORMAT
    version: str
    kernel: str
    cards: tuple[CardReport, ...]


_decoder = msgspec.json.Decoder(VerificationReport)


def encode_verification(report: VerificationReport) -> bytes:
    """Return the report's bytes, on several lines."""
    return msgspec.json.format(_encoder.encode(report), indent=2) + b"\n"


def decode_verification(data: bytes, subject: str) -> VerificationReport:
    """Parse a report; MalformedError names the field that does not fit."""
    return decode(data, _decoder, subject)


def card_report(
    pf: PfFacts, receiver: Receiver, outcomes: Collection[TrialOutcome], names: Mapping[str, str]
) -> CardReport:
    """Report a PF's outcomes. names: those that reasons may contain, with their replacements."""
    return CardReport(
        driver=pf.driver,
        device=pf.vendor,
        firmware=pf.firmware,
        link_mbps=pf.link_mbps,
        receiver=receiver,
        checks=tuple(
            CheckReport(
                check=outcome.check,
                traffic=outcome.traffic,
                rate_mbps=outcome.rate_mbps,
                enforced=outcome.enforced,
                measured_mbps=None if outcome.mbps is None else round(outcome.mbps, 2),
                result=outcome.result,
                why=anonymous(outcome.why, names),
            )
            for outcome in outcomes
        ),
    )


def anonymous(text: str, names: Mapping[str, str]) -> str:
    """Replace names, as whole words, and everything that has the form of an address."""
    for name in sorted(filter(None, names), key=len, reverse=True):
        text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", names[name], text)
    return _ADDRESS.sub("ADDRESS", text)


def pf_facts(status: RdmaNodeStatus) -> Iterator[PfFacts]:
    """Read the PFs whose VFs pods can have by annotation, with their free capacity."""
    reserved_mbps = in_use(status.pfs, status.allocations).mbps
    for pf in status.pfs:
        if not pf.capacity_vfs:
            continue
        pods = (
            allocation.pod
            for allocation in status.allocations
            for interfaces in allocation.interfaces
            if interfaces.pf == pf.pci
        )
        yield PfFacts(
            name=pf.name,
            pci=pci_address(pf.pci),
            driver=pf.driver,
            vendor=pf.vendor,
            link_mbps=pf.link_mbps,
            free_mbps=max(0, (pf.link_mbps or 0) - reserved_mbps[pf.pci]),
            holders=tuple(f"{pod.namespace}/{pod.name}".lstrip("/") for pod in pods),
        )
