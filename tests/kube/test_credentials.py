"""Tokens that no call can be made with, in kubeconfig files and beside them."""

from __future__ import annotations

from traceback import format_exception
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.documents import Documents
from kube.asking import ask, document, giving, plugin, refusal, serving, write

if TYPE_CHECKING:
    from pathlib import Path


def test_white_space_around_a_token_does_not_count(tmp_path: Path):
    with serving() as asked:
        ask(write(tmp_path / "k", document(asked.url, {"token": " t\n"})))
    assert asked.by == ["Bearer t"]


@pytest.mark.parametrize("empty", [{"token": ""}, {"token": "\n"}, {"tokenFile": ""}])
def test_empty_token_counts_as_none(tmp_path: Path, empty: dict[str, str]):
    user = plugin(tmp_path, giving('{"status": {"token": "of the plugin"}}'))
    with serving() as asked:
        ask(write(tmp_path / "k", document(asked.url, {**user, **empty})))
        ask(write(tmp_path / "k", document(asked.url, empty)))
    assert asked.by == ["Bearer of the plugin", None]


@pytest.mark.parametrize("sign", ["\n", "\r", "\0", "\x7f", "é"])
def test_token_that_no_header_can_carry_is_refused_without_being_shown(tmp_path: Path, sign: str):
    path = write(tmp_path / "k", document(user={"token": f"SECRET{sign}SECRET"}))
    with pytest.raises(MalformedError) as refused:
        Documents(path)
    assert (
        "context c: user c: the token has line breaks or other signs that no header" in refused.value.message
    )
    assert "SECRET" not in "".join(format_exception(refused.value))


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (b"SECRET\nSECRET", "the token has line breaks"),
        (b"SECRET\xff", "no text"),
        (b" \n", "the token is empty"),
        (None, "Is a directory"),
    ],
)
def test_token_file_that_cannot_be_used_is_named(tmp_path: Path, found: bytes | None, told: str):
    token = tmp_path / "token"
    if found is None:
        token.mkdir()
    else:
        token.write_bytes(found)
    path = write(tmp_path / "k", document(user={"tokenFile": "token"}))
    assert refusal(path).startswith(f"tokenFile {token}: {told}")
