"""Bearer tokens: which are accepted, and files that hold none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from k8s_rdma.errors import MalformedError
from k8s_rdma.http_server.asgi import Tokens, tokens_of

if TYPE_CHECKING:
    from pathlib import Path


def bearing(*values: bytes) -> list[tuple[bytes, bytes]]:
    return [(b"host", b"w1"), *((b"authorization", value) for value in values)]


@pytest.mark.parametrize("value", [b"Bearer one", b"bearer one", b"BEARER two==", b"Bearer  one "])
def test_token_is_accepted_when_it_is_one_of_ours(value: bytes) -> None:
    assert Tokens(["one", "two=="]).accept(bearing(value))


@pytest.mark.parametrize(
    ("fields", "accepted"),
    [
        ([(b"k8s-rdma-token", b"one")], True),
        ([(b"k8s-rdma-token", b" two== ")], True),
        ([(b"k8s-rdma-token", b"")], False),
        ([(b"k8s-rdma-token", b"Bearer one")], False),
        ([(b"k8s-rdma-token", b"one"), (b"k8s-rdma-token", b"one")], False),
        ([(b"k8s-rdma-token", b"one"), (b"authorization", b"Bearer one")], False),
    ],
)
def test_token_through_a_proxy_is_alone_in_a_field(
    fields: list[tuple[bytes, bytes]], *, accepted: bool
) -> None:
    assert Tokens(["one", "two=="]).accept(fields) is accepted


@pytest.mark.parametrize(
    "values",
    [
        (),
        *(
            (value,)
            for value in (b"", b"one", b"Bearer", b"Bearer ", b"Bearer on", b"Bearer one1", b"Basic one")
        ),
        *((value,) for value in (b"Bearer one, Bearer one", b"Bearer ONE", b"Bearer \xff")),
        (b"Bearer one", b"Bearer one"),
    ],
)
def test_unknown_token_is_not_accepted(values: tuple[bytes, ...]) -> None:
    assert not Tokens(["one", "two=="]).accept(bearing(*values))


def test_file_holds_a_token_a_line(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("# of the extender\none\n\n two \n")
    tokens = tokens_of(str(path), field="tokenFile")()
    assert [tokens.accept(bearing(b"Bearer " + each)) for each in (b"one", b"two", b"#", b"")] == [
        True,
        True,
        False,
        False,
    ]


def test_file_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    now = [0.0]
    path = tmp_path / "tokens"
    path.write_text("old\n")
    tokens = tokens_of(str(path), field="tokenFile", clock=lambda: now[0])

    def accepted(token: bytes) -> bool:
        now[0] += 1
        return tokens().accept(bearing(b"Bearer " + token))

    assert accepted(b"old")
    path.write_text("newer\n")
    assert [accepted(b"old"), accepted(b"newer")] == [False, True]
    path.write_text("no token\n")
    assert accepted(b"newer")
    path.unlink()
    assert accepted(b"newer")
    path.write_text("newest\n")
    assert [accepted(b"newer"), accepted(b"newest")] == [False, True]


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (None, "No such file"),
        (b"", "holds no token"),
        (b"# nothing\n\n", "holds no token"),
        (b"one\nt wo\n", "line 2 is no bearer token"),
        (b"tok\xc3\xa9n\n", "no ASCII"),
        (b"=\n", "line 1"),
    ],
)
def test_malformed_file_is_refused_by_its_field(tmp_path: Path, content: bytes | None, named: str) -> None:
    path = tmp_path / "tokens"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(MalformedError) as refused:
        tokens_of(str(path), field="tokenFile")
    assert refused.value.message.startswith(f"tokenFile {path}: ")
    assert named in refused.value.message
