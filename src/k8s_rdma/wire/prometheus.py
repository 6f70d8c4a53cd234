"""Answers of Prometheus' HTTP API to queries of now and over a range, and texts of PromQL.

Source: "HTTP API" and "Querying basics", Prometheus' documentation.
"""

from __future__ import annotations

import re
from math import isfinite
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import msgspec

from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.json import decode_large

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

QUERY_PATH = "/api/v1/query"
RANGE_PATH = "/api/v1/query_range"
SERIES_PATH = "/api/v1/series"

MAX_LABEL = 512
"""The limit for a label's value, in characters: no name has more than 253."""

LabelSet = TypeVar("LabelSet", bound=msgspec.Struct)


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


class _Sample(msgspec.Struct, Generic[LabelSet], frozen=True):
    """A series' value: seconds since the epoch, and a number as text."""

    metric: LabelSet
    value: tuple[float, str]


class _Samples(msgspec.Struct, Generic[LabelSet], frozen=True):
    result: tuple[_Sample[LabelSet], ...] = ()


class _Vector(msgspec.Struct, Generic[LabelSet], frozen=True):
    data: _Samples[LabelSet] = _Samples()


class VectorDecoder(Generic[LabelSet]):
    """Parses answers to queries of now, whose series have such labels."""

    def __init__(self, labels: type[LabelSet]) -> None:
        """Prepare the decoder; labels that it does not have are passed over."""
        self._decoder: msgspec.json.Decoder[_Vector[LabelSet]] = msgspec.json.Decoder(_Vector[labels])  # type: ignore[valid-type]

    def amounts(self, body: bytes) -> Iterator[tuple[LabelSet, float]]:
        """Yield the finite values of at least 0, by the labels of their series. MalformedError."""
        for sample in decode_large(body, self._decoder, "query").data.result:
            value = _number(sample.value[1], "query")
            if isfinite(value) and value >= 0:
                yield sample.metric, value


class _Series(msgspec.Struct, frozen=True):
    """A series: seconds since the epoch, and numbers as text."""

    metric: Labels
    values: tuple[tuple[float, str], ...] = ()


class _Data(msgspec.Struct, frozen=True):
    result: tuple[_Series, ...] = ()


class _Matrix(msgspec.Struct, frozen=True):
    data: _Data = _Data()


class _Listed(msgspec.Struct, frozen=True):
    data: tuple[Labels, ...] = ()


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
            value = _number(text, "query_range")
            if isfinite(value):
                values[at_s] = value
        if series.metric.is_usable:
            found.append(RangeSeries(series.metric, values))
    return found


def _number(text: str, subject: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        msg = f"{subject}: {text[:40]!r} is no number"
        raise MalformedError(msg) from error


def decode_series(body: bytes) -> list[Labels]:
    """Parse a list of series. MalformedError."""
    return [labels for labels in decode_large(body, _listed, "series").data if labels.is_usable]


def decode_refusal(body: bytes) -> str:
    """Return the error of an answer; empty without one."""
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
