"""Commands that sentences and tables of the documents name, in backticks, are there with these options."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer

from documents import DOCUMENTS, ROOT
from k8s_rdma.cli.main import app

_NAMED = re.compile(r"`((?:k8s-rdma|make|scripts/\w+)(?:\s[^`]*)?)`")
_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
NO_COMMAND = {"k8s-rdma demo"}
"""What a sentence says that there is not."""


def named(text: str) -> list[str]:
    """Each on one line, without the page's fenced blocks, which are accounted for by themselves."""
    return [" ".join(found.split()) for found in _NAMED.findall(_FENCED.sub("", text))]


NAMED = sorted(
    {(path.relative_to(ROOT).as_posix(), each) for path in DOCUMENTS for each in named(path.read_text())}
)


def wrong(command: str) -> str:
    """The first word that nothing answers to; empty when all is there."""
    program, *words = command.split()
    if program == "make":
        return next((word for word in words[:1] if word not in TARGETS), "")
    if program != "k8s-rdma":
        return "" if (ROOT / program).is_file() else program
    found = typer.main.get_command(app)
    while words and words[0] in getattr(found, "commands", {}):
        found = found.commands[words.pop(0)]
    if words and words[0].islower() and hasattr(found, "commands") and not words[0].startswith("-"):
        return words[0]
    return next(
        (word for word in words if word.startswith("--") and word.partition("=")[0] not in options(found)), ""
    )


def options(command: Any) -> set[str]:
    """Those of a command, and of those below it."""
    below = getattr(command, "commands", {}).values()
    own = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    return own.union({"--help"}, *map(options, below))


@pytest.mark.parametrize(("document", "command"), NAMED)
def test_command_of_a_sentence_is_there(document: str, command: str):
    assert command in NO_COMMAND or not wrong(command), document


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("make lab", ""),
        ("make labs", "labs"),
        ("k8s-rdma agent adopt --pf eth0", ""),
        ("k8s-rdma agent adopt --port eth0", "--port"),
        ("k8s-rdma doctors", "doctors"),
        ("k8s-rdma doctor nod", "nod"),
        ("k8s-rdma explain pod NAMESPACE/NAME", ""),
        ("scripts/nothing", "scripts/nothing"),
    ],
)
def test_word_that_nothing_answers_to_is_found(command: str, word: str):
    assert wrong(command) == word


def test_commands_are_found_in_sentences_and_not_in_blocks():
    assert named("With `make\nlab` and `k8s-rdma-cni`.\n```\n`make x`\n```\n") == ["make lab"]
