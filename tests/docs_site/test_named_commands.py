"""Commands that the documents name, in backticks and in blocks, are there with these options."""

from __future__ import annotations

import re

import pytest

from documents import BLOCKS, DOCUMENTS, ROOT
from named_commands import wrong

_NAMED = re.compile(r"`((?:k8s-rdma|make|scripts/\w+)(?:\s[^`]*)?)`")
_TYPED = re.compile(r"(?:\$ )?(?:[A-Z0-9_]+=\S+ )*((?:k8s-rdma|make|scripts/\w+)(?: [^|;&#<>]*)?)")
_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
NO_COMMAND = {"k8s-rdma demo"}
"""Commands that a sentence says do not exist."""


def named(text: str) -> list[str]:
    """Each on one line, without the page's fenced blocks, which are accounted for by themselves."""
    return [" ".join(found.split()) for found in _NAMED.findall(_FENCED.sub("", text))]


NAMED = sorted(
    {(path.relative_to(ROOT).as_posix(), each) for path in DOCUMENTS for each in named(path.read_text())}
)


TYPED = sorted(
    {
        (block.document, found[1].strip())
        for block in BLOCKS
        for line in block.text.replace("\\\n", " ").splitlines()
        if (found := _TYPED.match(line))
    }
)


@pytest.mark.parametrize(("document", "command"), NAMED + TYPED)
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
def test_unknown_command_is_found(command: str, word: str):
    assert wrong(command) == word


def test_commands_are_found_in_sentences_and_not_in_blocks():
    assert len(TYPED) > 20
    assert named("With `make\nlab` and `k8s-rdma-cni`.\n```\n`make x`\n```\n") == ["make lab"]
