"""The YAML of machine files: every scalar is text, and two tags say what of sysfs is no text.

`!link /devices/...` is a symbolic link, its target counted from the root of sysfs; `!refused EINVAL` is a
file or directory that the kernel refuses to read.
"""

from __future__ import annotations

import errno
import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from k8s_rdma.errors import MalformedError

if TYPE_CHECKING:
    from collections.abc import Hashable

_WIDTH = 160
_MAP, _STR = "tag:yaml.org,2002:map", "tag:yaml.org,2002:str"


@dataclass(frozen=True, slots=True)
class SymbolicLink:
    """target: a path from the root of sysfs, beginning with `/`."""

    target: str

    def __post_init__(self) -> None:
        """Refuse a target that depends on where the link is, or leaves sysfs."""
        if not self.target.startswith("/") or posixpath.normpath(self.target) != self.target:
            msg = f"!link: expected a path from the root of sysfs without `.` and `..`, got {self.target!r}"
            raise MalformedError(msg)


@dataclass(frozen=True, slots=True)
class Refused:
    """error: the name of what the kernel answers (errno(3))."""

    error: str

    def __post_init__(self) -> None:
        """Refuse a name that is none."""
        if not (self.error.startswith("E") and hasattr(errno, self.error)):
            msg = f"!refused: expected the name of an error such as EINVAL, got {self.error!r}"
            raise MalformedError(msg)

    @property
    def number(self) -> int:
        """The same as a number of this machine."""
        return int(getattr(errno, self.error))


class Flow(dict[str, Any]):
    """A mapping that is written in one line."""


class _Loader(yaml.BaseLoader):
    """Text only: `0x10`, `no` and `21:10` are what sysfs says, not numbers and booleans."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Refuse a key given twice, which YAML demands and the library leaves out (YAML 1.2.2, 3.2.1.3)."""
        keys = set()
        for key, _ in node.value:
            if key.value in keys:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value}: is given twice", key.start_mark
                )
            keys.add(key.value)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """The same way back; texts of several lines as blocks, nothing by reference."""

    def ignore_aliases(self, _data: Any) -> bool:
        """Write everything out."""
        return True


def _scalar(kind: type[SymbolicLink | Refused]) -> Any:
    return lambda loader, node: kind(loader.construct_scalar(node))


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(_STR, text, style="|" if "\n" in text else None)


_Dumper.yaml_implicit_resolvers = {}
_Loader.add_constructor("!link", _scalar(SymbolicLink))
_Loader.add_constructor("!refused", _scalar(Refused))
_Dumper.add_representer(str, _text)
_Dumper.add_representer(int, lambda dumper, number: _text(dumper, str(number)))
_Dumper.add_representer(bool, lambda dumper, flag: _text(dumper, str(flag).lower()))
_Dumper.add_representer(type(None), lambda dumper, _: _text(dumper, "null"))
_Dumper.add_representer(Flow, lambda dumper, flow: dumper.represent_mapping(_MAP, flow, flow_style=True))
_Dumper.add_representer(SymbolicLink, lambda dumper, link: dumper.represent_scalar("!link", link.target))
_Dumper.add_representer(Refused, lambda dumper, refused: dumper.represent_scalar("!refused", refused.error))


def load(text: str) -> Any:
    """Mappings, lists, text, `SymbolicLink` and `Refused`. MalformedError names the line, or the tag."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - it makes nothing but the five kinds of value
    except yaml.MarkedYAMLError as error:
        line = 0 if error.problem_mark is None else error.problem_mark.line + 1
        msg = f"line {line}: {error.problem}"
        raise MalformedError(msg) from error
    except yaml.YAMLError as error:
        msg = " ".join(str(error).split())
        raise MalformedError(msg) from error


def dump(document: Any) -> str:
    """The text of such a value, keys in their order; numbers and flags as `load` then gives them as text."""
    return str(yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=_WIDTH, allow_unicode=True))
