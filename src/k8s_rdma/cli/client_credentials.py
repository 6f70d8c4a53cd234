"""Files of a command's HTTP clients: bearer tokens, and authorities of servers' certificates."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from k8s_rdma.config.bounded_files import read_named_file
from k8s_rdma.errors import MalformedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def first_token(text: str) -> str:
    """Return the first token of lines, empty without a token; empty lines and `#` lines are skipped."""
    lines = map(str.strip, text.splitlines())
    return next((line for line in lines if line and not line.startswith("#")), "")


def read_token(path: Path, *, option: str) -> str:
    """Return the first token in a file. MalformedError names the option if the file has no token."""
    try:
        token = first_token(read_named_file(path).decode("ascii"))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "holds bytes that are no ASCII text"
        msg = f"{option} {path}: {why}"
        raise MalformedError(msg) from error
    if not token:
        msg = f"{option} {path}: holds no token"
        raise MalformedError(msg)
    return token


def trusting(
    ca_file: Path | None, *, option: str, verification: Callable[[ssl.SSLContext], None]
) -> ssl.SSLContext:
    """Return a client's context that trusts the CA of a PEM file, by default the system's.

    MalformedError names the option of an unusable file.

    verification: a function of `config.authorities`.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        msg = f"{option} {ca_file}: {error.strerror or 'no PEM file of certificates'}"
        raise MalformedError(msg) from error
    verification(context)
    return context
