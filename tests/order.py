"""The order in which tests run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest


def longest_first(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Return tests with a timeout of their own, then the others, each in their order.

    The first are those that may take minutes. No worker should begin one when the others are about to end.
    """
    return sorted(items, key=lambda item: item.get_closest_marker("timeout") is None)
