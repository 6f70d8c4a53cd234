"""What is counted, in the Prometheus text format (version 0.0.4).

Written by hand: a dozen numbers do not need a client library in the process.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Reading: TypeAlias = tuple[str, str, Callable[[], float]]

_PREFIX = "k8s_rdma_extender_"


class Metrics:
    """Requests by verb and outcome, and numbers read from elsewhere when they are asked for.

    readings: name without prefix, to help text, type (`counter` or `gauge`) and the number.
    """

    def __init__(self, readings: Mapping[str, Reading]) -> None:
        self._readings = readings
        self._requests: Counter[tuple[str, str]] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def count(self, verb: str, outcome: str, seconds: float) -> None:
        """One request was answered, in so long."""
        self._requests[verb, outcome] += 1
        self._seconds[verb] += seconds

    def render(self) -> str:
        """The exposition."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield from _head("requests_total", "Requests by verb and outcome.", "counter")
        for (verb, outcome), number in sorted(self._requests.items()):
            yield f'{_PREFIX}requests_total{{verb="{verb}",outcome="{outcome}"}} {number}'
        yield from _head("request_seconds_total", "Time spent on requests, waiting included.", "counter")
        for verb, seconds in sorted(self._seconds.items()):
            yield f'{_PREFIX}request_seconds_total{{verb="{verb}"}} {seconds:.6f}'
        for name, (help_text, kind, read) in self._readings.items():
            yield from _head(name, help_text, kind)
            yield f"{_PREFIX}{name} {read():g}"


def _head(name: str, help_text: str, kind: str) -> Iterator[str]:
    yield f"# HELP {_PREFIX}{name} {help_text}"
    yield f"# TYPE {_PREFIX}{name} {kind}"
