from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from order import longest_first

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_tests_with_a_timeout_of_their_own_come_first_in_their_order(request: pytest.FixtureRequest) -> None:
    def tests(*names: str) -> Iterator[pytest.Function]:
        for name in names:
            test = pytest.Function.from_parent(request.node.parent, name=name, callobj=lambda: None)
            if name.startswith("long"):
                test.add_marker(pytest.mark.timeout(300))
            yield test

    ordered = longest_first(tests("b", "long-d", "a", "long-c"))
    assert [test.name for test in ordered] == ["long-d", "long-c", "b", "a"]
