"""YAML as configuration files have it: a key that stands twice in a mapping is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Hashable


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """As its own, but without the last one of a key's values taking the place of those before."""
        keys: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in keys:
                    problem = f"the key {key.value!r} stands twice in one mapping"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                keys.add(key.value)
        return super().construct_mapping(node, deep=deep)


def read_yaml(text: str) -> Any:
    """The document; yaml.YAMLError tells the line of what is wrong."""
    return yaml.load(text, Loader=_Loader)  # noqa: S506  a SafeLoader


def yaml_words(error: yaml.YAMLError) -> str:
    """Where a text is no YAML and why, in one line, without the text, which may be secret."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return " ".join(str(error).split())
