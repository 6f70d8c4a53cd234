"""Counters of a node's VFs, out of its metrics: the Prometheus text format of `/metrics` of its server.

A node is not trusted: what is kept of its answer is bounded, whatever it sends. Of other metrics nothing is
kept.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from k8s_rdma.core.traffic import ByteCounts, CounterSample, Promise, VfHolder
from k8s_rdma.errors import MalformedError

if TYPE_CHECKING:
    from prometheus_client.samples import Sample

MAX_LINE = 4096
"""The limit for a line, in bytes. The labels of a VF take at most 1 KiB."""

_AGE = "k8s_rdma_sample_age_seconds"
_SENT = "k8s_rdma_vf_transmitted_bytes_total"
_RECEIVED = "k8s_rdma_vf_received_bytes_total"
_RESERVED = "k8s_rdma_vf_reserved_bits_per_second"
_CAP = "k8s_rdma_vf_cap_bits_per_second"
_OF_VFS = (_SENT, _RECEIVED, _RESERVED, _CAP)
_WANTED = tuple(f"{name}{{".encode() for name in (_AGE, *_OF_VFS))
_MAX_COUNT = 2**64
_BITS_PER_MEGABIT = 1_000_000


class CounterReader:
    """Takes the metrics of one node, part by part.

    node: the name that each sample must have; None for any. max_vfs: more than these are refused.
    """

    def __init__(self, *, max_vfs: int, node: str | None = None) -> None:
        """Begin with nothing."""
        self._node = node
        self._max_lines = len(_OF_VFS) * max_vfs + 1
        self._lines: list[bytes] = []
        self._unfinished_line = b""

    def feed(self, part: bytes) -> None:
        """Take the next part of the text. MalformedError when there is too much of it."""
        *lines, self._unfinished_line = (self._unfinished_line + part).split(b"\n")
        if len(self._unfinished_line) > MAX_LINE:
            msg = f"/metrics of a node: a line of more than {MAX_LINE} bytes"
            raise MalformedError(msg)
        for line in lines:
            if not line.startswith(_WANTED):
                continue
            if len(line) > MAX_LINE or len(self._lines) == self._max_lines:
                msg = f"/metrics of a node: more than {self._max_lines} samples, or one of {MAX_LINE} bytes"
                raise MalformedError(msg)
            self._lines.append(line)

    def sample(self, now_s: float) -> CounterSample | None:
        """Return the latest sample; None if the agent has none.

        MalformedError for text that is no such metrics, or is of another node.
        """
        found: dict[str, dict[VfHolder, int]] = {name: {} for name in _OF_VFS}
        age_s: float | None = None
        try:
            text = b"\n".join((*self._lines, b"")).decode()
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    self._check_node(sample)
                    if sample.name == _AGE:
                        age_s = sample.value
                    else:
                        found[sample.name][_holder(sample.labels)] = _count(sample.value)
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
            promises={
                holder: Promise(reserved // _BITS_PER_MEGABIT, caps.get(holder, 0) // _BITS_PER_MEGABIT)
                for holder, reserved in found[_RESERVED].items()
            },
        )

    def _check_node(self, sample: Sample) -> None:
        found = sample.labels.get("node", "")
        if self._node is not None and found != self._node:
            msg = f"{sample.name} is of node {found!r}, not of {self._node!r}"
            raise ValueError(msg)


def _holder(labels: dict[str, str]) -> VfHolder:
    named = {name: labels.get(name, "") for name in ("pf", "namespace", "pod", "interface")}
    return VfHolder(pci=labels["pci"], vf=int(labels["vf"]), **named)


def _count(value: float) -> int:
    if not 0 <= value < _MAX_COUNT:
        msg = f"{value} is no count"
        raise ValueError(msg)
    return int(value)
