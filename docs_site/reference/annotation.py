"""The tables about the annotation's keys: which values a key takes, and which keys a namespace policy names.

The pages themselves have the meanings of keys.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from docs_site.reference.configuration import meaning
from docs_site.reference.tables import code, rows_by_name, table
from k8s_rdma.core.options import (
    NO_OPTIONS,
    OPTIONS,
    Choices,
    KeyRow,
    Permission,
    Syntax,
    Whole,
    keys_with,
)
from k8s_rdma.wire.annotation import KEYS

if TYPE_CHECKING:
    from collections.abc import Iterable
    from enum import StrEnum

_VALUES = {
    Syntax.FLAG: '`true`, `false`, `"on"`, `"off"`',
    Syntax.MAC: "`02:00:00:00:00:01`, also with `-`; neither 0 nor a group address",
    Syntax.GUID: "`02:00:00:ff:fe:00:00:01`, also with `-`; neither 0 nor all ones",
    Syntax.PKEY: '`"0x8001"` or 32769: 0x0001 to 0xffff but 0x8000',
    Syntax.INTERFACE_NAME: "up to 15 printable ASCII characters; no `/`, `:`, `%`, white space; "
    "not `lo`, `all`, `default`",
    Syntax.NETWORK_NAME: "a network's name",
    Syntax.PFS: "a PF's name or PCI address, or an object",
}


def keys_table(page: str) -> str:
    """Return the annotation's keys. Values of rates, `enforce` and `count` (no options) are in the page."""
    cells = dict(rows_by_name(page.partition("<!-- /made: keys -->")[0]))
    meanings = {name: found[-1] for name, found in cells.items()}
    rows = [
        [
            code(key),
            _values(key, OPTIONS[key]) if key in OPTIONS else cells[key][1],
            meaning(meanings, key),
        ]
        for key in KEYS
    ]
    return table(("key", "value", "meaning"), rows)


def _values(key: str, row: KeyRow) -> str:
    match row.values:
        case Whole(smallest, largest, _, unit):
            return f"{smallest} to {largest}{' bytes' if unit == 'bytes' else ''}"
        case Choices():
            return _choices(row.values, (getattr(NO_OPTIONS, key), row.plain))
    return _VALUES[row.values]


def _choices(words: Choices, defaults: Iterable[object]) -> str:
    """Return the words; those that mean the same in brackets after the first of them."""
    spellings: dict[StrEnum, list[str]] = {}
    for word, value in words.by_word.items():
        spellings.setdefault(value, []).append(code(word))
    found = []
    for value, (first, *aliases) in spellings.items():
        remarks = [*(["default"] if value in defaults else []), *aliases]
        found.append(f"{first} ({', '.join(remarks)})" if remarks else first)
    return ", ".join(found) + (", in any letter case" if words.any_case else "")


def with_policy_keys(page: str) -> str:
    """Return the table of a namespace policy's keys with those that `allow` and `deny` may name."""
    listed = {
        "allow": f'of {_codes(keys_with(lambda row: row.permission is Permission.IF_ALLOWED))}; `"*"` is all',
        "deny": f"of {_codes(keys_with(lambda row: row.permission is Permission.UNLESS_DENIED))}",
    }
    found = page.partition("<!-- made: policy -->\n\n")[2].partition("\n<!-- /made: policy -->")[0]
    for key, values in listed.items():
        head, _, tail = re.split(rf"(?m)^(\| `{key}` \| [^|]*)", found)
        found = f"{head}| `{key}` | {values} {tail}"
    return found


def _codes(keys: Iterable[str]) -> str:
    return ", ".join(map(code, keys))
