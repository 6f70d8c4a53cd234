"""Configurations and logs without secrets, for reports that leave a machine.

By the names of keys, as nothing else tells a secret from a value. Our own files name files that hold secrets,
and hold none themselves; those of other network plugins may.
"""

from __future__ import annotations

import re
from typing import Any

LEFT_OUT = "(left out)"

_SECRET = re.compile(
    r"(?i)pass(word|wd|phrase)?$|secret|token|credential|authorization|(?<!k)key(-?data)?$|-data$"
)
_PLACE = re.compile(r"(?i)(file|dir|path|name|namespace)$")
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{6,}")
_IN_TEXT = re.compile(
    r"""(?ix) (?P<key>["']?[\w-]*(?:pass(?:word|wd|phrase)?|secret|token|credential|authorization)[\w-]*["']?
    \s*[:=]\s*) (?P<value>"(?:[^"\\]|\\.)*"|'[^']*'|[^\s,;}"']+)"""
)
_PEM = re.compile(r"-----BEGIN [A-Z0-9 ]+-----.*?(-----END [A-Z0-9 ]+-----|\Z)", re.DOTALL)
_JWT = re.compile(r"\beyJ[\w-]{10,}\.[\w-]+\.[\w-]+")


def redacted(document: Any) -> Any:
    """A document of any depth; of keys that name a secret the value is left out, whatever it is."""
    match document:
        case dict():
            return {
                key: LEFT_OUT if is_secret(str(key)) else redacted(each) for key, each in document.items()
            }
        case list():
            return [redacted(each) for each in document]
        case str():
            return redacted_text(document)
        case _:
            return document


def is_secret(key: str) -> bool:
    """Whether a key's value is to be left out; where a secret is kept is none."""
    return bool(_SECRET.search(key)) and not _PLACE.search(key)


def redacted_text(text: str) -> str:
    """A log, or any text: tokens, PEM blocks, and values beside words that name a secret."""
    text = _PEM.sub(LEFT_OUT, text)
    text = _JWT.sub(LEFT_OUT, text)
    text = _BEARER.sub(lambda found: f"{found[1]} {LEFT_OUT}", text)
    return _IN_TEXT.sub(_without_value, text)


def _without_value(found: re.Match[str]) -> str:
    name = re.sub(r"[^\w-]", "", found["key"])
    if _PLACE.search(name) or LEFT_OUT.startswith(found["value"].strip("\"'")[:5]):
        return found[0]
    quote = found["value"][0] if found["value"][0] in "\"'" else ""
    return f"{found['key']}{quote}{LEFT_OUT}{quote}"
