"""YAML that would grow without end, or nests without end, is refused by its line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml

from k8s_rdma.wire.nesting import MAX_LEVELS, TOO_DEEP
from k8s_rdma.wire.yaml import MAX_ALIASED_NODES, read_yaml, yaml_words

if TYPE_CHECKING:
    from collections.abc import Callable


def nested(levels: int) -> str:
    return "[" * levels + "x" + "]" * levels


def doubled(times: int) -> str:
    lines = ["- &a0 [x, x]", *(f"- &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, times + 1))]
    return "\n".join(lines)


def chained(links: int) -> str:
    """Aliases each of which is one level deeper than the one before."""
    return "\n".join(["- &a0 x", *(f"- &a{n} [*a{n - 1}]" for n in range(1, links + 1))])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (nested(MAX_LEVELS + 1), f"line 1, column {MAX_LEVELS + 1}: {TOO_DEEP}"),
        (nested(100_000), f"line 1, column {MAX_LEVELS + 1}: {TOO_DEEP}"),
        ("a: &a\n  b: [*a]", f"line 2, column 7: {TOO_DEEP}"),
        ("a: &a\n  <<: *a", f"line 2, column 7: {TOO_DEEP}"),
        (chained(200), f"line {MAX_LEVELS + 1}, column 9: {TOO_DEEP}"),
        (doubled(60), f"aliases stand for more than {MAX_ALIASED_NODES} nodes"),
    ],
)
def test_document_beyond_the_bounds_is_refused_by_its_line(text: str, problem: str):
    with pytest.raises(yaml.YAMLError) as refused:
        read_yaml(text)
    assert yaml_words(refused.value).endswith(problem)


@pytest.mark.parametrize(
    ("text", "build"),
    [
        (nested(MAX_LEVELS), lambda: yaml.safe_load(nested(MAX_LEVELS))),
        ("\n".join(f"- {nested(60)}" for _ in range(5)), lambda: [yaml.safe_load(nested(60))] * 5),
        (
            "base: &base {a: 1}\nnext: &next {<<: *base, b: 2}\nlast: {<<: *next, a: 3}",
            lambda: {"base": {"a": 1}, "next": {"a": 1, "b": 2}, "last": {"a": 3, "b": 2}},
        ),
        (doubled(10), lambda: yaml.safe_load(doubled(10))),
    ],
)
def test_document_within_the_bounds_is_read_as_yaml_has_it(text: str, build: Callable[[], object]):
    assert read_yaml(text) == build()
