"""JSON with errors that name the field."""

from __future__ import annotations

import json
import mmap
import re
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec

from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.nesting import TOO_DEEP, NestingError, pruned, require_shallow

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")

Buffer: TypeAlias = bytes | bytearray | memoryview | mmap.mmap | msgspec.Raw
"""A document, or a part of one."""

Document: TypeAlias = Buffer | tuple[Buffer, ...]
"""A document, or the parts of a large one, which have not been copied to join them."""

HUGE_PAGE_BYTES = 2 << 20
"""The size on x86-64, and on arm64 with pages of 4 KiB; with pages of another size memory is as usual."""

_EXPLAINED = 1 << 20
"""Bytes or characters of text whose syntax is explained."""

_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")
_BLANK = re.compile(r"[ \t\n\r]*")
_python_decoder = json.JSONDecoder()


def large_buffer(size: int) -> mmap.mmap:
    """Map memory for a document of many megabytes, in huge pages if the kernel has them (madvise(2)).

    The kernel maps fresh memory of the C library page by page on each use, which takes six times as long as
    to copy the document into it.
    OSError if there is no memory.
    """
    region = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages
        region.madvise(mmap.MADV_HUGEPAGE)
    return region


def size_of(document: Document) -> int:
    """Return the size of a document in bytes."""
    return sum(map(len, document)) if isinstance(document, tuple) else len(document)


def joined(document: Document) -> Buffer:
    """Join the parts of a document."""
    if not isinstance(document, tuple):
        return document
    size = size_of(document)
    if size < HUGE_PAGE_BYTES:
        return b"".join(document)
    region = large_buffer(size)
    for part in document:
        region.write(part)
    return memoryview(region)


def decode(
    data: Buffer | str,
    decoder: msgspec.json.Decoder[T],
    subject: str,
    reason: Reason = Reason.MALFORMED_REQUEST,
) -> T:
    """Decode a document; MalformedError `<subject>: <cause, with the field's path>` if it does not fit.

    Text that is no Unicode (lone surrogates) and more levels than `nesting.MAX_LEVELS` are such errors as
    well.
    """
    try:
        require_shallow(data if isinstance(data, str) else bytes(data))
    except NestingError as error:
        msg = f"{subject}: {error}"
        raise MalformedError(msg, reason=reason) from error
    return decode_large(data, decoder, subject, reason)


def decode_large(
    data: Buffer | str,
    decoder: msgspec.json.Decoder[T],
    subject: str,
    reason: Reason = Reason.MALFORMED_REQUEST,
) -> T:
    """Decode as `decode` does, with as many levels as the interpreter reads.

    For documents of programs that are too large to be read twice.
    """
    try:
        return decoder.decode(data)
    except RecursionError as error:
        msg = f"{subject}: {TOO_DEEP}"
        raise MalformedError(msg, reason=reason) from error
    except (msgspec.MsgspecError, UnicodeError) as error:
        is_json = isinstance(error, msgspec.ValidationError) or not isinstance(error, msgspec.DecodeError)
        msg = f"{subject}: {error if is_json else f'no valid JSON: {_syntax(data) or error}'}"
        raise MalformedError(msg, reason=reason) from error


def is_document(error: MalformedError) -> bool:
    """Report whether the refused text is JSON at all, so that the fault is in its content."""
    cause = error.__cause__
    return isinstance(cause, msgspec.ValidationError) or not isinstance(cause, msgspec.DecodeError)


def decode_lossy(data: bytes) -> Any:
    """Decode a document that has several authors; ValueError if it is no document.

    Kubernetes keeps some of an author's bytes as they came (opaque parameters, managed fields): bytes that
    are no UTF-8 become U+FFFD, and values are `pruned` if the interpreter's stack is too small for them. One
    object then cannot hide the list that it is in.
    """
    text = data.decode(errors="replace")
    try:
        return json.loads(text)
    except RecursionError:
        return json.loads(pruned(text))


def utf8_bytes(text: str) -> int:
    """Return the size of a text as UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def _syntax(data: Buffer | str) -> str:
    """Describe where the text is no JSON, by character; empty if Python's reader takes it.

    It is empty also for a text that is too long to be read a second time, because that takes several times
    its memory.
    """
    if len(data if isinstance(data, str) else memoryview(data)) > _EXPLAINED:
        return ""
    text = data if isinstance(data, str) else bytes(data).decode(errors="replace")
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        if not text[error.pos :].strip():
            return "ends too early"
        return f"{error.msg.removesuffix(' starting at')} at character {error.pos + 1}"
    except (ValueError, RecursionError):
        pass
    return ""


def line_of(text: str, path: str) -> int:
    """Return the line, from 1, of the value at a path such as `nodes[0].name`.

    If the document has no such value, return the line of the nearest value that contains it. The text must be
    JSON.
    RecursionError if it is nested too deep.
    """
    position = _skip_blank(text, 0)
    for step in _STEP.finditer(path):
        key = step[1] if step[2] is None else int(step[2])
        below = next((start for name, start in _values(text, position) if name == key), None)
        if below is None:
            break
        position = below
    return text.count("\n", 0, position) + 1


def _values(text: str, position: int) -> Iterator[tuple[str | int, int]]:
    """Yield the keys or indexes of an object or list, each with the position where its value begins."""
    kind, position = text[position], _skip_blank(text, position + 1)
    for index in count():
        if kind not in "{[" or text[position] in "]}":
            return
        key: str | int = index
        if kind == "{":
            key, position = _python_decoder.raw_decode(text, position)
            position = _skip_blank(text, _skip_blank(text, position) + 1)
        yield key, position
        position = _skip_blank(text, _python_decoder.raw_decode(text, position)[1])
        position = _skip_blank(text, position + (text[position] == ","))


def _skip_blank(text: str, position: int) -> int:
    found = _BLANK.match(text, position)
    return found.end() if found else position
