"""Types of fields and values of files in words."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta

from k8s_rdma.config.type_descriptions import describe_type, either, found
from k8s_rdma.core.types import Enforce


@pytest.mark.parametrize(
    ("kind", "noun"),
    [
        (bool, "true or false"),
        (str | None, "text"),
        (tuple[str, ...], "a list"),
        (dict[str, int], "a mapping of settings"),
        (Literal["linux", "virtual"], "linux or virtual"),
        (Enforce, "hardware, software or auto"),
        (int, "a whole number"),
        (Annotated[int, Meta(ge=1, le=9)], "a whole number from 1 to 9"),
        (Annotated[float, Meta(gt=0)], "a number above 0"),
        (Annotated[int, Meta(ge=2)], "a whole number of at least 2"),
        (Annotated[float, Meta(gt=0.5, le=1.5)], "a number above 0.5 and at most 1.5"),
        (Annotated[int, Meta(ge=0)] | Literal["all"], "a whole number of at least 0 or all"),
        (Annotated[str, Meta(pattern="x", description="a name")] | None, "a name"),
    ],
)
def test_type_is_a_noun(kind: Any, noun: str):
    assert describe_type(kind) == noun


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (str, "x", "x"),
        (str, "", "is empty"),
        (str, 5, "is a number"),
        (int, 5, "5"),
        (int, True, "is a truth value"),
        (int, "5", "is text"),
        (int | None, 1.5, "1.5"),
        (Literal["all"], "some", "some"),
        (Literal[1], "some", "is text"),
        (Annotated[int, Meta(ge=1)], 0, "0"),
        (bool, [1], "is a list"),
        (bool, {}, "is a mapping"),
        (bool, None, "is empty"),
        (str, date(2026, 1, 1), "is a date"),
        (str, "\x1b[2J", "'\\x1b[2J'"),
    ],
)
def test_value_is_shown_if_it_is_of_the_right_sort_and_else_its_sort(kind: Any, value: object, words: str):
    assert found(kind, value) == words


def test_last_of_several_follows_a_conjunction():
    assert [either("a"), either("ab"), either("abc")] == ["a", "a or b", "a, b or c"]
