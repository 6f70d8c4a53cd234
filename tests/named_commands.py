"""Whether a command that a document names exists, with its options."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import typer

from documents import ROOT
from k8s_rdma.cli.main import app

TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def wrong(command: str) -> str:
    """Return the first word that is unknown; empty if all exist."""
    program, *words = command.split()
    if program == "make":
        return next((word for word in words[:1] if word not in TARGETS), "")
    if program != "k8s-rdma":
        return "" if (ROOT / program).is_file() else program
    found = _root()
    while words and words[0] in getattr(found, "commands", {}):
        found = found.commands[words.pop(0)]
    if words and words[0].islower() and hasattr(found, "commands") and not words[0].startswith("-"):
        return words[0]
    given = (word.partition("=")[0] for word in words if word.startswith("--"))
    return next((word for word in given if word not in options(found)), "")


@cache
def _root() -> Any:
    return typer.main.get_command(app)


def options(command: Any) -> set[str]:
    """Those of a command, and of those below it."""
    below = getattr(command, "commands", {}).values()
    own = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    return own.union({"--help"}, *map(options, below))
