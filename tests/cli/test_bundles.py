"""Options that several commands have together, passed as one value."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

from k8s_rdma.cli.bundles import Bundle, with_bundles


def pair(*, first: int = 1, second: int = 2) -> tuple[int, int]:
    return first, second


Pair = Annotated[Any, Bundle(pair)]


def triple(*, pair: Pair, third: int = 3) -> tuple[int, ...]:
    return (*pair, third)


Triple = Annotated[Any, Bundle(triple)]


def test_bundle_becomes_its_options_and_is_passed_as_one_value():
    @with_bundles
    def command(word: str, *, triple: Triple, pair: Pair) -> tuple[object, ...]:
        return word, triple, pair

    assert list(inspect.signature(command).parameters) == ["word", "first", "second", "third"]
    assert command(word="w", first=5, second=6, third=7) == ("w", (5, 6, 7), (5, 6))
