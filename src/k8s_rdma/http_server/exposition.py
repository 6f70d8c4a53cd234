"""The Prometheus text format, version 0.0.4, as lines."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    Sample = tuple[str, int | float]
    """Its labels, as `labels` writes them, and its value."""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Histogram:
    """How many of what was measured were at most so large, and their sum."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """bounds: ascending; what is beyond the last one is counted as well."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """One was measured."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def buckets(self) -> Iterator[tuple[str, int]]:
        """Each bound as the format writes it, and how many were at most that."""
        yield from zip((*map(_number, self._bounds), "+Inf"), accumulate(self._counts), strict=True)


def family(
    name: str, kind: Literal["counter", "gauge"], help_text: str, samples: Iterable[Sample]
) -> Iterator[str]:
    """A metric and its samples, one of each set of labels."""
    yield from _head(name, kind, help_text)
    for labelled, value in samples:
        yield f"{name}{labelled} {_number(value)}"


def summary(name: str, help_text: str, labelled: str, *, count: int, total: float) -> Iterator[str]:
    """A summary without quantiles: how many, and their sum."""
    yield from _head(name, "summary", help_text)
    yield f"{name}_sum{labelled} {_number(total)}"
    yield f"{name}_count{labelled} {_number(count)}"


def histograms(
    name: str, help_text: str, samples: Iterable[tuple[Mapping[str, str], Histogram]]
) -> Iterator[str]:
    """Histograms, one of each set of labels."""
    yield from _head(name, "histogram", help_text)
    for values, histogram in samples:
        for bound, count in histogram.buckets():
            yield f"{name}_bucket{labels({**values, 'le': bound})} {count}"
        yield f"{name}_sum{labels(values)} {_number(histogram.total)}"
        yield f"{name}_count{labels(values)} {count}"


def labels(values: Mapping[str, str]) -> str:
    """`{name="value",...}`; nothing for no labels."""
    inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in values.items())
    return f"{{{inside}}}" if inside else ""


def _head(name: str, kind: str, help_text: str) -> Iterator[str]:
    yield f"# HELP {name} {help_text}"
    yield f"# TYPE {name} {kind}"


def _number(value: float) -> str:
    return repr(value) if isinstance(value, float) else str(int(value))


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
