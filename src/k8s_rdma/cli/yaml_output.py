"""YAML on standard output, which every reader of YAML reads alike."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_PLAIN = re.compile(
    r"(?!(?i:y|n|yes|no|on|off|true|false|null)$)[A-Za-z][-A-Za-z0-9./_]*(?::[-A-Za-z0-9./_]+)*"
    "|[1-9][0-9]*[MGT]"
)
"""Texts that every YAML reader takes for texts. `1e3` is a number for the API server's."""


class _Dumper(yaml.SafeDumper):
    """Indents lists as Kubernetes' documentation does, and quotes texts that may be taken for other types."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  PyYAML's name
        """Write equal values again."""
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if _PLAIN.fullmatch(text) else "|" if "\n" in text else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def write_yaml(documents: Iterable[Mapping[str, Any]], *, allow_unicode: bool = False) -> None:
    """Print YAML documents. allow_unicode: whether signs beyond ASCII are printed, and not escaped."""
    sys.stdout.write(
        yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=allow_unicode, width=100)
    )
