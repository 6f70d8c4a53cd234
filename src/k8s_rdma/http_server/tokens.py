"""Bearer tokens (RFC 6750, section 2.1)."""

from __future__ import annotations

import re
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from k8s_rdma.config.reloaded import Reloaded
from k8s_rdma.errors import MalformedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_SCHEME = b"bearer "


class Tokens:
    """Those that are accepted.

    How long a comparison takes tells nothing of them: digests are compared, and all of them.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        self._digests = [sha256(token.encode()).digest() for token in tokens]

    def accept(self, fields: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether header fields (names in lower case) bear one of them: one `Authorization`, no more."""
        return self.bearer(fields) is not None

    def bearer(self, fields: Iterable[tuple[bytes, bytes]]) -> bytes | None:
        """The digest of the token that header fields bear; None when it is none of these."""
        values = [value for name, value in fields if name == b"authorization"]
        if len(values) != 1 or values[0][: len(_SCHEME)].lower() != _SCHEME:
            return None
        given = sha256(values[0][len(_SCHEME) :].strip(b" ")).digest()
        accepted = any([compare_digest(given, digest) for digest in self._digests])  # noqa: C419  each is compared
        return given if accepted else None


def tokens_of(path: str, *, field: str, clock: Callable[[], float] = monotonic) -> Callable[[], Tokens]:
    """The tokens of now, read anew when the file has changed: one a line; empty lines and `#` lines are none.

    MalformedError names the field, and the line that is no token.
    """
    return Reloaded(lambda: _load(Path(path), field), Path(path), clock=clock)


def token_of(path: str, *, field: str, clock: Callable[[], float] = monotonic) -> Callable[[], str]:
    """The one token of now that is borne to others; the file as in `tokens_of`."""
    return Reloaded(lambda: _read_one(Path(path), field), Path(path), clock=clock)


def _load(path: Path, field: str) -> Tokens:
    return Tokens(_read(path, field))


def _read_one(path: Path, field: str) -> str:
    found = _read(path, field)
    if len(found) > 1:
        msg = f"{field} {path}: holds {len(found)} tokens, and only one can be borne"
        raise MalformedError(msg)
    return found[0]


def _read(path: Path, field: str) -> list[str]:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError as error:
        msg = f"{field} {path}: {error.strerror}"
        raise MalformedError(msg) from error
    except UnicodeDecodeError as error:
        msg = f"{field} {path}: holds bytes that are no ASCII text"
        raise MalformedError(msg) from error
    numbered = [(number, line.strip()) for number, line in enumerate(lines, 1)]
    given = [(number, line) for number, line in numbered if line and not line.startswith("#")]
    for number, line in given:
        if not _TOKEN.fullmatch(line):
            msg = (
                f"{field} {path}: line {number} is no bearer token (letters, digits, -._~+/ and = at its end)"
            )
            raise MalformedError(msg)
    if not given:
        msg = f"{field} {path}: holds no token"
        raise MalformedError(msg)
    return [line for _, line in given]
