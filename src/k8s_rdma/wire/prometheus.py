"""Answers of Prometheus' HTTP API to a query over a range, and texts of PromQL.

Source: "HTTP API" and "Querying basics", Prometheus' documentation.
"""

from __future__ import annotations

import re
from math import isfinite
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.json import decode_large

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

RANGE_PATH = "/api/v1/query_range"
SERIES_PATH = "/api/v1/series"

MAX_LABEL = 512
"""The limit for a label's value, in characters: no name has more than 253."""


class Labels(msgspec.Struct, frozen=True):
    """The labels of series about VFs and nodes; empty for those that a series has not."""

    node: str = ""
    pf: str = ""
    pci: str = ""
    vf: str = ""
    namespace: str = ""
    pod: str = ""
    interface: str = ""

    @property
    def is_usable(self) -> bool:
        """Report whether they are no longer than names can be."""
        return max(map(len, msgspec.structs.astuple(self))) <= MAX_LABEL


class _Series(msgspec.Struct, frozen=True):
    """A series: seconds since the epoch, and numbers as text."""

    metric: Labels
    values: tuple[tuple[float, str], ...] = ()


class _Data(msgspec.Struct, frozen=True):
    result: tuple[_Series, ...] = ()


class _Matrix(msgspec.Struct, frozen=True):
    data: _Data = _Data()
    error: str = ""


class _Listed(msgspec.Struct, frozen=True):
    data: tuple[Labels, ...] = ()
    error: str = ""


class _Refusal(msgspec.Struct, frozen=True):
    error: str = ""


_matrix = msgspec.json.Decoder(_Matrix)
_listed = msgspec.json.Decoder(_Listed)
_refusal = msgspec.json.Decoder(_Refusal)


class RangeSeries(NamedTuple):
    """The values of a series by the time of their evaluation."""

    labels: Labels
    values: Mapping[float, float]


def decode_matrix(body: bytes) -> list[RangeSeries]:
    """Parse the answer to a range query; values that are no numbers are left out. MalformedError."""
    found = []
    for series in decode_large(body, _matrix, "query_range").data.result:
        values = {}
        for at_s, text in series.values:
            try:
                value = float(text)
            except ValueError as error:
                msg = f"query_range: {text[:40]!r} is no number"
                raise MalformedError(msg) from error
            if isfinite(value):
                values[at_s] = value
        if series.metric.is_usable:
            found.append(RangeSeries(series.metric, values))
    return found


def decode_series(body: bytes) -> list[Labels]:
    """Parse a list of series. MalformedError."""
    return [labels for labels in decode_large(body, _listed, "series").data if labels.is_usable]


def decode_refusal(body: bytes) -> str:
    """Return the error of an answer; empty where it has none."""
    try:
        return decode_large(body, _refusal, "error").error
    except MalformedError:
        return ""


def selector(equal: Mapping[str, str], any_of: Mapping[str, Iterable[str]]) -> str:
    """Write a selector: labels that are equal to a text, and labels that are one of several."""
    parts = [f"{name}={quoted(value)}" for name, value in equal.items()]
    for name, values in any_of.items():
        pattern = "|".join(re.escape(value) for value in sorted(values))
        parts.append(f"{name}=~{quoted(pattern)}")
    return "{" + ", ".join(parts) + "}"


def quoted(value: str) -> str:
    """Quote a string of PromQL, whose escapes are those of JSON in ASCII."""
    return msgspec.json.encode(value).decode()
