"""YAML with bounds on the size of the document, and its faults by line (YAML 1.1, as PyYAML reads it).

Numbers with colons are text, as in YAML 1.2 and go-yaml. YAML 1.1 counts them by sixties: the port `12:30`
would be 750, and the PCI address `41:00.0` would be 2460.

A few lines may be nested without end, or name one node so often that no memory holds the document. For
example, aliases of aliases double it with each line, and a node may be an alias within itself.
"""

from __future__ import annotations

from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any, cast

import yaml
from yaml.composer import Composer, ComposerError
from yaml.constructor import BaseConstructor, ConstructorError
from yaml.parser import Parser

from k8s_rdma.wire.nesting import MAX_LEVELS, TOO_DEEP

if TYPE_CHECKING:
    from collections.abc import Hashable

MAX_ALIASED_NODES = 100_000
"""Nodes that the aliases of a text may add to it."""

_MERGE = "tag:yaml.org,2002:merge"
_TEXT = "tag:yaml.org,2002:str"
_NUMBERS = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})


class Bounded(Parser, Composer):
    """A part of a loader that refuses a document beyond these bounds, by the line."""

    _depth = 0
    _deepest: float = 0
    _nodes: float = 0
    _aliased: float = 0

    @cached_property
    def _extents(self) -> dict[str, tuple[float, float]]:
        """The number of levels of an anchor's node, and the number of its nodes."""
        return {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node with those below it; an alias counts as the nodes that it stands for."""
        event: Any = cast("Any", self).peek_event()  # which has no types
        nodes, deepest = self._nodes, self._deepest
        levels = int(isinstance(event, yaml.CollectionStartEvent))
        self._depth += levels
        self._nodes += 1
        self._deepest = self._depth
        is_alias = isinstance(event, yaml.AliasEvent)
        if is_alias:
            height, size = self._extents.get(event.anchor, (0, 0))
            self._deepest += height
            self._nodes += size
            self._aliased += size
        elif event.anchor is not None:
            self._extents[event.anchor] = inf, inf  # an alias within it has no end
        self._require_bounds(event)
        node = super().compose_node(parent, index)
        if not is_alias and event.anchor is not None:
            self._extents[event.anchor] = self._deepest - self._depth + levels, self._nodes - nodes
        self._deepest = max(self._deepest, deepest)
        self._depth -= levels
        return node

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> Any:
        """Return the tag of a node that has none in the text."""
        tag = cast("Any", super()).resolve(kind, value, implicit)
        return _TEXT if kind is yaml.ScalarNode and ":" in value and tag in _NUMBERS else tag

    def _require_bounds(self, event: Any) -> None:
        if self._deepest > MAX_LEVELS:
            raise ComposerError(None, None, TOO_DEEP, event.start_mark)
        if self._aliased > MAX_ALIASED_NODES:
            problem = f"aliases stand for more than {MAX_ALIASED_NODES} nodes"
            raise ComposerError(None, None, problem, event.start_mark)


class UniqueKeys(Bounded, BaseConstructor):
    """A part of a loader that also refuses duplicate keys, as YAML demands (1.2.2, section 3.2.1.3)."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Construct a mapping; the keys of others that it merges (`<<`) may be its own as well."""
        keys: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                if key.value in keys:
                    problem = f"the key {key.value!r} stands twice in one mapping"
                    raise ConstructorError(None, None, problem, key.start_mark)
                keys.add(key.value)
        return super().construct_mapping(node, deep=deep)


class _Loader(UniqueKeys, yaml.SafeLoader):
    pass


def read_yaml(text: str) -> Any:
    """Return the document; yaml.YAMLError names the line of a fault."""
    document, _ = compose(text)
    return document


def compose(text: str) -> tuple[Any, yaml.Node | None]:
    """Return the document and its nodes, which have the lines. yaml.YAMLError for a fault."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        return (None if node is None else loader.construct_document(node)), node
    finally:
        loader.dispose()


def yaml_words(error: yaml.YAMLError) -> str:
    """Describe in one line where a text is no YAML and why, without the text, which may be secret."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark, problem = error.problem_mark, str(error.problem)
        if problem.startswith("but "):
            problem = f"{error.context}, {problem}"
        return f"line {mark.line + 1}, column {mark.column + 1}: {problem}"
    return " ".join(str(error).split())
