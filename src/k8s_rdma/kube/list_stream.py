"""Splitter of a list that comes as one answer, so that it is in memory item by item."""

from __future__ import annotations

import re

MAX_PART_BYTES = 32 * 1024**2
"""The limit of one item, and of the answer without its items. An object in etcd has 1.5 MiB at most."""

_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|["{}\[\]]', re.DOTALL)
"""A string, the quote of a string that is not complete yet, or a bracket of objects and arrays."""

_ITEMS_KEY = b'"items"'
_ITEMS_DEPTH = 2
"""The depth of the space between items: inside the list's braces, and inside the array."""


class ListSplitter:
    """Takes `{"metadata": ..., "items": [...]}` in pieces of any length, with its keys in any order."""

    def __init__(self) -> None:
        self._pending, self._scanned = b"", 0
        self._depth, self._key, self._in_items = 0, b"", False
        self._frame = bytearray()

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the items that the piece completes. ValueError for one of more than `MAX_PART_BYTES`."""
        data, start, items = self._pending + piece, 0, []
        scanned = len(data)
        for token in _TOKEN.finditer(data, self._scanned):
            text = token.group()
            if text == b'"':
                scanned = token.start()
                break
            if text in {b"{", b"["}:
                if self._in_items and self._depth == _ITEMS_DEPTH:
                    start = token.start()
                self._depth += 1
                if text == b"[" and self._depth == _ITEMS_DEPTH and self._key == _ITEMS_KEY:
                    self._frame += data[start : token.end()]
                    self._in_items, start = True, token.end()
            elif text in {b"}", b"]"}:
                self._depth -= 1
                if self._in_items and self._depth == _ITEMS_DEPTH:
                    items.append(data[start : token.end()])
                    start = token.end()
                elif self._in_items and self._depth < _ITEMS_DEPTH:
                    self._in_items, start = False, token.start()
            elif self._depth == 1:
                self._key = text
        self._keep(data, start, scanned)
        return items

    def frame(self) -> bytes:
        """Return the list without its items, once all of it was fed. ValueError if it is cut short."""
        if self._depth or not self._frame:
            msg = "a list that is cut short"
            raise ValueError(msg)
        return bytes(self._frame + self._pending)

    def _keep(self, data: bytes, start: int, scanned: int) -> None:
        """Keep an item that is not complete, and data that is not scanned; the frame for good."""
        if not self._in_items:
            self._frame += data[start:scanned]
        begin = start if self._in_items and self._depth > _ITEMS_DEPTH else scanned
        self._pending, self._scanned = data[begin:], scanned - begin
        if max(len(self._pending), len(self._frame)) > MAX_PART_BYTES:
            msg = f"a list with a part of more than {MAX_PART_BYTES} bytes"
            raise ValueError(msg)
