"""Tables that fit their terminal: the least important columns go, the others stay whole.

Without a terminal, and with `-o wide`, every column is shown and each row is one line, so that `grep` and
`awk` find their words. kubectl leaves columns to `-o wide` as well, and does not cut them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console, ConsoleOptions, RenderResult

WHOLE = 10_000
"""Columns of a page on which every column is shown, and unwrapped."""

_GAP = 2
_LEAST_PROSE = 24
"""Columns that sentences take beside other columns; with less room they go below their row."""

_LEAST_CUT_PROSE = 12
_INDENT = 4
_CONTINUED = 2
"""Columns by which lines that continue an indented one are indented further."""


UNKNOWN, NONE = "<unknown>", "<none>"
"""Cells without a value, as kubectl spells them."""

_WORDS = re.compile(r"\S+")
_NO_VALUE = frozenset({"", UNKNOWN, NONE})


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    right: whether its cells are numbers, which stand at the right.
    rank: 0 for a column that always stays. On a narrow terminal the column of the highest rank goes first.
    prose: whether its cells are sentences. They may be wrapped between words.
    """

    heading: str
    right: bool = False
    rank: int = 0
    prose: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns that are shown beside each other with their widths, and those below each row, by index."""

    beside: dict[int, int]
    below: tuple[int, ...] = ()


def mbps(rate: float | str) -> str:
    """Format a rate, or `RESERVED/LINK`, with its unit, in one word as in `kubectl get rdmanodes`."""
    return f"{rate}Mb/s"


def layout(columns: Sequence[Column], natural: Sequence[int], prose: Sequence[int], room: int) -> Layout:
    """Choose the columns that fit into so many columns of a terminal.

    natural: the width of each column if it is not wrapped; 0 for one that goes at any width.
    prose: the width that a column of prose takes beside others.
    """
    shown = [index for index, width in enumerate(natural) if width]
    least = [
        min(natural[index], prose[index]) if column.prose else natural[index]
        for index, column in enumerate(columns)
    ]

    def missing() -> int:
        return sum(least[index] for index in shown) + _GAP * (len(shown) - 1) - room

    below: list[int] = []
    while missing() > 0 and (optional := [index for index in shown if columns[index].rank]):
        shown.remove(max(optional, key=lambda index: (columns[index].rank, index)))
    while missing() > 0 and len(shown) > 1 and (last := [index for index in shown if columns[index].prose]):
        below.insert(0, last[-1])
        shown.remove(last[-1])
    spare, beside = max(0, -missing()), {}
    for index in shown:
        growth = min(natural[index] - least[index], spare)
        beside[index] = least[index] + growth
        spare -= growth
    return Layout(beside, tuple(below))


class Table:
    """Rows under headings, which fit the width that they are rendered in.

    cut: whether each row is one line, on a screen of so many lines: a sentence ends in an ellipsis then.
    """

    def __init__(self, *columns: Column, headings: bool = True, cut: bool = False) -> None:
        self.columns = columns
        self._headings = tuple(Text(column.heading if headings else "", style="bold") for column in columns)
        self._has_headings = headings
        self._cut = cut
        self._rows: list[tuple[Text, ...]] = []

    def add(self, *cells: str | Text) -> None:
        """Add a row, with a cell for each column; a text is shown as it is."""
        if len(cells) != len(self.columns):
            raise ValueError(cells)
        self._rows.append(tuple(Text(cell) if isinstance(cell, str) else cell for cell in cells))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines, without an end beyond the last cell."""
        room = options.max_width
        found = self._whole() if room >= WHOLE else self._fitted(room)
        for row in (*([self._headings] if self._has_headings else []), *self._rows):
            cells = [
                _Cell(self._cell(row, index, room), width, self.columns[index].right)
                for index, width in found.beside.items()
            ]
            yield from _lines(cells, cut=self._cut)
            for index in () if self._cut or row is self._headings else found.below:
                if row[index]:
                    heading = self._headings[index].plain.lower()
                    label = Text(f"{heading}: " if heading else "", style="dim")
                    yield from map(_whole, _indented(label + row[index], room))

    def _cell(self, row: tuple[Text, ...], index: int, room: int) -> Text:
        """Return a cell; `<none>` for an empty one on a pipe, because `awk` counts words."""
        is_blank = not row[index] and row is not self._headings and not self.columns[index].prose
        return Text(NONE) if is_blank and room >= WHOLE else row[index]

    def _whole(self) -> Layout:
        return Layout({index: max(self._widths(index, WHOLE)) for index in range(len(self.columns))})

    def _widths(self, index: int, room: int) -> list[int]:
        rows = (self._headings, *self._rows)
        return [self._cell(row, index, room).cell_len for row in rows]

    def _fitted(self, room: int) -> Layout:
        natural, longest = [], []
        for index, column in enumerate(self.columns):
            heading, *cells = self._widths(index, room)
            has_values = any(row[index].plain not in _NO_VALUE for row in self._rows)
            stays = has_values or not self._rows or not (column.rank or column.prose)
            word_width = max((_longest_word(row[index], room - _INDENT) for row in self._rows), default=0)
            natural.append(max([heading, *cells]) if stays else 0)
            longest.append(heading if self._cut else max(heading, word_width))
        least_prose = _LEAST_CUT_PROSE if self._cut else _LEAST_PROSE
        least = [max(width, least_prose) for width in longest]
        return layout(self.columns, natural, least, room)


@dataclass(frozen=True, slots=True)
class _Cell:
    text: Text
    width: int
    right: bool


def _longest_word(text: Text, room: int) -> int:
    """Return the width of the longest word that has room in a line of its own."""
    return max((width for width in map(cell_len, text.plain.split()) if width <= room), default=0)


def _lines(cells: Sequence[_Cell], *, cut: bool) -> Iterator[Text]:
    """Yield the lines of a row: more than one if one of its cells is wrapped. cut: yield one line."""
    blocks = [[_cut(cell)] if cut else wrapped(cell.text, cell.width) for cell in cells]
    for number in range(max(map(len, blocks), default=0)):
        line, column = Text(), 0
        for cell, lines in zip(cells, blocks, strict=True):
            text = lines[number] if number < len(lines) else Text()
            start = column + (cell.width - text.cell_len if cell.right else 0)
            if text:
                line.append(" " * (start - line.cell_len)).append_text(text)
            column += cell.width + _GAP
        yield _whole(line)


def _cut(cell: _Cell) -> Text:
    text = cell.text.copy()
    text.truncate(cell.width, overflow="ellipsis")
    return text


def wrapped(text: Text, width: int) -> list[Text]:
    """Wrap a text between words; a word that is longer than a line stands whole in a separate line.

    Lines that continue an indented one are indented by two more. rich is not used, because it would fold a
    long word, or not wrap at all.
    """
    return [line for part in text.split("\n", allow_blank=True) for line in _wrapped_line(part, width)]


def _wrapped_line(text: Text, width: int) -> list[Text]:
    if text.cell_len <= width:
        return [text]
    indent = len(text.plain) - len(text.plain.lstrip(" "))
    if not indent:
        return _divided(text, width)
    first, *continued = _divided(text[indent:], max(1, width - indent - _CONTINUED))
    return [Text(" " * indent) + first, *(Text(" " * (indent + _CONTINUED)) + line for line in continued)]


def _divided(text: Text, width: int) -> list[Text]:
    breaks, begin = [], 0
    for word in _WORDS.finditer(text.plain):
        if word.start() > begin and cell_len(text.plain[begin : word.end()]) > width:
            begin = word.start()
            breaks.append(begin)
    lines = list(text.divide(breaks))
    for line in lines:
        line.rstrip()
    return lines


def _indented(text: Text, room: int) -> Iterator[Text]:
    for line in wrapped(text, max(_LEAST_PROSE, room - _INDENT)):
        yield Text(" " * _INDENT).append_text(line)


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Sentences, wrapped between words to the width that they are rendered in."""

    text: Text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines."""
        for line in wrapped(self.text, options.max_width):
            yield _whole(line)


def _whole(line: Text) -> Text:
    """Have rich print a line as it is."""
    line.no_wrap, line.overflow = True, "ignore"
    return line
