"""What the API server knows a caller by: a bearer token, or a certificate with its key; tokens of files.

lightkube sends tokens as they come, and its failures tell what it sent. No message here shows one.
Source: client-go, transport/token_source.go.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from lightkube.core.exceptions import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """One or both. certificate: its chain and its key, PEM. expires: None where nobody says when."""

    token: str | None = field(default=None, repr=False)
    certificate: str | None = field(default=None, repr=False)
    expires: datetime | None = None


def usable_token(text: str, source: str) -> str:
    """The token, without white space around it; ConfigError when there is none, or no header can carry it."""
    token = text.strip()
    if not token:
        msg = f"{source}: the token is empty"
        raise ConfigError(msg)
    if not (token.isascii() and token.isprintable()):
        msg = f"{source}: the token has line breaks or other signs that no header can carry; wanted it alone"
        raise ConfigError(msg)
    return token


def file_token(path: str) -> Credential:
    """ConfigError names the file of which none can be read."""
    source = f"tokenFile {path}"
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        msg = f"{source}: {error.strerror}"
        raise ConfigError(msg) from error
    except ValueError:
        msg = f"{source}: no text"
        raise ConfigError(msg) from None  # it holds the bytes
    return Credential(token=usable_token(text, source))
