"""The values that `cni/netconf.c` must find in a configuration, said with Python's own JSON decoder.

The C reader accepts all that Python's does but for four things, which make both equal here: it takes UTF-8
only, no NaN and no Infinity, no nesting deeper than 128, and only an object.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

MAX_DEPTH = 128
MAX_RUN_DIR_BYTES = 98
MAX_TIMEOUT_MS = 3_600_000
ANNOTATIONS = "io.kubernetes.cri.pod-annotations"
UNKNOWN, NOTHING, SOMETHING = range(3)
MALFORMED, WRONG = 6, 7


class Members(list):
    """An object as it is written, equal keys included."""

    def last(self, name: str, default: Any = None) -> Any:
        return next((value for key, value in reversed(self) if key == name), default)


@dataclass(frozen=True)
class Number:
    """A number as it is written."""

    text: str


ABSENT = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The document's values; versions and prevResult decoded, if they are there."""

    wish: int
    timeout_ms: int
    run_dir: bytes
    delegate: bool
    only_plugin: bool
    exclusive_devices: bool
    version: str | None
    prev_result: Members | None


def parse(text: str) -> Any:
    """The document; ValueError if the text is no document."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    return json.loads(
        text, object_pairs_hook=Members, parse_int=Number, parse_float=Number, parse_constant=refuse
    )


def look(data: bytes) -> Found | int:
    """The values that are found, or the code of the error."""
    try:
        document = parse(data.decode())
    except (ValueError, RecursionError):
        return MALFORMED
    if depth(document) > MAX_DEPTH or not isinstance(document, Members):
        return MALFORMED
    version, run_dir = document.last("cniVersion", ABSENT), document.last("runDir", "/run/k8s-rdma")
    timeout, prev_result = document.last("timeoutMs", Number("60000")), document.last("prevResult")
    named = document.last("delegate")
    delegate = named is not None and not (isinstance(named, Members) and not named)
    if (
        not (version is ABSENT or isinstance(version, str))
        or not is_run_dir(run_dir)
        or not is_timeout(timeout)
    ):
        return WRONG
    return Found(
        wish=wish_of(document),
        timeout_ms=int(timeout.text),
        run_dir=run_dir.encode(),
        delegate=delegate,
        only_plugin=delegate or document.last("emptyResult") is True,
        exclusive_devices=document.last("exclusiveDevices") is True,
        version=None if version in (ABSENT, "") else version,
        prev_result=prev_result if isinstance(prev_result, Members) else None,
    )


def depth(value: Any) -> int:
    level, deepest = [value], 0
    while level := [item for item in level if isinstance(item, list)]:
        deepest += 1
        level = [
            inner
            for item in level
            for inner in ([value for _, value in item] if isinstance(item, Members) else item)
        ]
    return deepest


def is_run_dir(value: Any) -> bool:
    try:
        return value.startswith("/") and "\0" not in value and len(value.encode()) <= MAX_RUN_DIR_BYTES
    except (AttributeError, UnicodeEncodeError):
        return False


def is_timeout(value: Any) -> bool:
    return (
        isinstance(value, Number)
        and value.text.isdigit()
        and len(value.text) < 20
        and 1 <= int(value.text) <= MAX_TIMEOUT_MS
    )


def wish_of(document: Members) -> int:
    config = document.last("runtimeConfig")
    annotations = config.last(ANNOTATIONS, ABSENT) if isinstance(config, Members) else ABSENT
    if annotations is None:
        return NOTHING
    if not isinstance(annotations, Members):
        return UNKNOWN
    return SOMETHING if any(asks(key, value) for key, value in annotations) else NOTHING


def asks(key: str, value: Any) -> bool:
    if key == "k8s-rdma.io/placement":
        return True
    nothing = isinstance(value, str) and "".join(c for c in value if c not in " \t\r\n") in ("", "[]")
    return key in ("rdma_interfaces_required", "k8s-rdma.io/interfaces") and not nothing
