"""Answers in the form that `--output` asks for: a page for people, a document, or names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum, unique
from typing import TYPE_CHECKING, Any

from k8s_rdma.errors import visible

if TYPE_CHECKING:
    from k8s_rdma.cli.console import Page


@unique
class Format(StrEnum):
    """The forms, in kubectl's words."""

    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandAnswer:
    """The answer of a command.

    document: makes the JSON.
    names: of the objects that it is about, as `kubectl get --output name` has them.
    show: prints on a `Page` for people.
    """

    document: Callable[[], bytes]
    names: Iterable[str]
    show: Callable[[Any], object]


def indented(document: object) -> bytes:
    """Encode a document as JSON for people: indented, with a newline at its end."""
    import msgspec  # which processes load later

    return msgspec.json.format(msgspec.json.encode(document)) + b"\n"


@dataclass(frozen=True, slots=True)
class Output:
    """The form of the output; the default is a page that fits the terminal."""

    format: Format | None = None

    @property
    def is_for_people(self) -> bool:
        """Report whether the form is a page, in contrast to a document or names."""
        return self.format in (None, Format.WIDE)

    def page(self, *, markup: bool = False) -> Page:
        """Make the page. markup: as in `Page`."""
        from k8s_rdma.cli.console import Page  # rich, which processes do not load

        return Page(markup=markup, wide=self.format is Format.WIDE)

    def write(self, answer: CommandAnswer, *, markup: bool = False) -> None:
        """Print an answer. markup: as in `Page`."""
        match self.format:
            case Format.JSON:
                from k8s_rdma.cli.console import write_json

                write_json(answer.document())
            case Format.YAML:
                import json

                from k8s_rdma.cli.yaml_output import write_yaml

                write_yaml([json.loads(answer.document())])
            case Format.NAME:
                sys.stdout.write("".join(f"{visible(name)}\n" for name in dict.fromkeys(answer.names)))
            case _:
                answer.show(self.page(markup=markup))
