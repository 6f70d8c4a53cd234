"""The Prometheus text format, version 0.0.4, as lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    Sample = tuple[str, int | float]
    """Its labels, as `labels` writes them, and its value."""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


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
