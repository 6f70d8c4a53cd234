"""Counters of a node's VFs, out of its metrics: the Prometheus text format of `/metrics` of its server.

A node is not trusted: only a bounded part of its answer is kept, however much it sends. Other metrics are not
kept at all. Lines are read in a time that grows with their length alone; for example, the parser of
`prometheus_client` takes 14 ms for a line of 4,000 backslashes.

Source: "Exposition formats", Prometheus' documentation.
"""

from __future__ import annotations

import re
from math import isfinite
from typing import NamedTuple, NoReturn

from k8s_rdma.core.traffic import ByteCounts, CounterSample, Losses, ProgrammedRates, VfHolder
from k8s_rdma.core.types import BITS_PER_MEGABIT
from k8s_rdma.errors import MalformedError

MAX_LINE = 1024
"""The limit for a line, in bytes. A VF's line takes 800 at most, with the longest names."""

MAX_VALUE = 512
"""The limit for a label, in characters as sent: no name has more than 253."""

_AGE = "k8s_rdma_sample_age_seconds"
_SENT = "k8s_rdma_vf_transmitted_bytes_total"
_RECEIVED = "k8s_rdma_vf_received_bytes_total"
_RESERVED = "k8s_rdma_vf_reserved_bits_per_second"
_CAP = "k8s_rdma_vf_cap_bits_per_second"
_OF_VFS = (_SENT, _RECEIVED, _RESERVED, _CAP)
_DROPPED = "k8s_rdma_vf_transmitted_dropped_total"
_RDMA = "k8s_rdma_vf_rdma_counter_total"
_WANTED = tuple(f"{name}{{".encode() for name in (_AGE, *_OF_VFS))
_OF_LOSSES = tuple(f"{name}{{".encode() for name in (_DROPPED, _RDMA))

RETRANSMISSIONS = (
    "local_ack_timeout_err",
    "packet_seq_err",
    "to_retransmits",
    "seq_err_naks_rcvd",
    "completer_retry_err",
    "rcvd_seq_err",
)
"""Counters of RDMA devices that grow if packets were lost and are sent again, by the kernel's names.

Counters of receivers that were not ready (`rnr_nak_retry_err`) are left out, because they are not about
bandwidth. Source: drivers/infiniband of Linux 6.1: hw/mlx5/counters.c (the first two),
hw/bnxt_re/hw_counters.c, and sw/rxe/rxe_hw_counters.c (the last two)."""

_REPEATED = tuple(f'counter="{name}"'.encode() for name in RETRANSMISSIONS)
_MAX_COUNT = 2**64

_QUOTED = r'"(?:[^"\\]|\\.)*"'
_LINE = re.compile(
    rf'(?P<name>\w+)\{{(?P<labels>(?:[^"}}]|{_QUOTED})*)\}} +(?P<value>[^ ]+)(?: .*)?', re.DOTALL
)
_LABEL = re.compile(r',?(?P<name>\w+)="(?P<value>(?:[^"\\]|\\["\\n])*)"', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_NUMBER = re.compile(r"[-+.0-9A-Za-z]{1,32}")


class _Sample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


class CounterReader:
    """Takes the metrics of one node, part by part.

    node: the name that each sample must have; None for any.
    max_vfs: more than these are refused.
    losses: whether drops and retransmissions are read.
    """

    def __init__(self, *, max_vfs: int, node: str | None = None, losses: bool = False) -> None:
        """Begin without samples."""
        self._node = node
        self._losses = losses
        per_vf = len(_OF_VFS) + (1 + len(RETRANSMISSIONS) if losses else 0)
        self._max_lines = per_vf * max_vfs + 1
        self._lines: list[bytes] = []
        self._unfinished_line = b""

    def feed(self, part: bytes) -> None:
        """Take the next part of the text. MalformedError when there is too much of it."""
        *lines, self._unfinished_line = (self._unfinished_line + part).split(b"\n")
        if len(self._unfinished_line) > MAX_LINE:
            msg = f"/metrics of a node: a line of more than {MAX_LINE} bytes"
            raise MalformedError(msg)
        for line in lines:
            if not self._is_wanted(line):
                continue
            if len(line) > MAX_LINE or len(self._lines) == self._max_lines:
                msg = f"/metrics of a node: more than {self._max_lines} samples, or one of {MAX_LINE} bytes"
                raise MalformedError(msg)
            self._lines.append(line)

    def sample(self, now_s: float) -> CounterSample | None:
        """Return the latest sample, if the agent has one.

        MalformedError for text that is no such metrics, or is of another node.
        """
        found: dict[str, dict[VfHolder, int]] = {name: {} for name in (*_OF_VFS, _DROPPED, _RDMA)}
        age_s: float | None = None
        try:
            for line in self._lines:
                sample = _read(line.decode())
                self._check_node(sample)
                if sample.name == _AGE:
                    age_s = sample.value
                    continue
                holder, count = _holder(sample.labels), _count(sample.value)
                if sample.name == _RDMA:
                    count += found[_RDMA].get(holder, 0)
                found[sample.name][holder] = count
        except (ValueError, LookupError, OverflowError) as error:
            msg = f"/metrics of a node: {error}"
            raise MalformedError(msg) from error
        if age_s is None or not isfinite(age_s) or age_s < 0:
            return None
        received, caps = found[_RECEIVED], found[_CAP]
        return CounterSample(
            sampled_at=now_s - age_s,
            counts={
                holder: ByteCounts(sent, received[holder])
                for holder, sent in found[_SENT].items()
                if holder in received
            },
            programmed={
                holder: ProgrammedRates(reserved // BITS_PER_MEGABIT, caps.get(holder, 0) // BITS_PER_MEGABIT)
                for holder, reserved in found[_RESERVED].items()
            },
            losses={
                holder: Losses(found[_DROPPED].get(holder), found[_RDMA].get(holder))
                for holder in found[_DROPPED].keys() | found[_RDMA].keys()
            },
        )

    def _is_wanted(self, line: bytes) -> bool:
        if line.startswith(_WANTED):
            return True
        if not self._losses or not line.startswith(_OF_LOSSES):
            return False
        return line.startswith(_OF_LOSSES[0]) or any(name in line for name in _REPEATED)

    def _check_node(self, sample: _Sample) -> None:
        found = sample.labels.get("node", "")
        if self._node is not None and found != self._node:
            msg = f"{sample.name} is of node {found!r}, not of {self._node!r}"
            raise ValueError(msg)


def _read(line: str) -> _Sample:
    """Read a sample. ValueError for a line that is no sample."""
    found = _LINE.fullmatch(line)
    if found is None or not _NUMBER.fullmatch(found["value"]):
        _refuse(line)
    labels, position, text = {}, 0, found["labels"]
    while position < len(text):
        label = _LABEL.match(text, position)
        if label is None or label["name"] in labels or len(label["value"]) > MAX_VALUE:
            _refuse(line)
        labels[label["name"]] = _ESCAPED.sub(_unescape, label["value"])
        position = label.end()
    return _Sample(found["name"], labels, float(found["value"]))


def _unescape(escaped: re.Match[str]) -> str:
    return "\n" if escaped[1] == "n" else escaped[1]


def _refuse(line: str) -> NoReturn:
    msg = f"no sample: {line[:80]!r}"
    raise ValueError(msg)


def _holder(labels: dict[str, str]) -> VfHolder:
    named = {name: labels.get(name, "") for name in ("pf", "namespace", "pod", "interface")}
    return VfHolder(pci=labels["pci"], vf=int(labels["vf"]), **named)


def _count(value: float) -> int:
    if not 0 <= value < _MAX_COUNT:
        msg = f"{value} is no count"
        raise ValueError(msg)
    return int(value)
