"""Faults of a JSON document in words: unknown keys, with the nearest known one, and wrong types.

msgspec describes a wrong type in words of Python's types. `type_mismatch` describes it in JSON's words.
"""

from __future__ import annotations

import json
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import inspect

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SHOWN = 60
"""Characters of an unknown key that a message shows; its author may have made it of any length."""

_EXPECTED: tuple[tuple[tuple[type[inspect.Type], ...], type, str], ...] = (
    ((inspect.BoolType,), bool, "true or false"),
    ((inspect.IntType,), int, "a whole number"),
    ((inspect.StrType,), str, "text"),
    ((inspect.VarTupleType,), list, "a list"),
    ((inspect.DictType, inspect.StructType), dict, "an object"),
)


def describe_unknown(key: str, allowed: Iterable[str]) -> str:
    """Return `unknown key; did you mean <the nearest known one>?`, or the known keys if no key is near.

    Letter case and the choice between `-` and `_` do not count as a difference.
    """
    names = tuple(allowed)
    near = nearest(key, names)
    if near:
        return f"unknown key; did you mean {near}?"
    return f"unknown key; known are {', '.join(names)}"


def nearest(key: str, allowed: Iterable[str]) -> str | None:
    """Return the known one that a foreign one may stand for, if any is near; as in `describe_unknown`."""
    by_folded = {_folded(name): name for name in allowed}
    found = get_close_matches(_folded(key[:_SHOWN]), by_folded, n=1)
    return by_folded[found[0]] if found else None


def shown(key: str) -> str:
    """Return a foreign key as a message may hold it: not printable characters escaped, its length bounded."""
    clipped = key if len(key) <= _SHOWN else key[:_SHOWN] + "..."
    return clipped if clipped.isprintable() and clipped.isascii() and clipped else ascii(clipped)


def _folded(key: str) -> str:
    return key.casefold().replace("-", "_")


def type_mismatch(kind: Any, document: bytes) -> tuple[str, str] | None:
    """Return the place of the first wrong type, as in `networks.a.l2enable`, and both types in words."""
    try:
        value = msgspec.json.decode(document)
    except (msgspec.DecodeError, RecursionError):
        return None
    return next(_mismatches(inspect.type_info(kind), value, ""), None)


def _mismatches(info: inspect.Type, value: object, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(info, inspect.UnionType):
        if value is None:
            return
        info = next(arm for arm in info.types if not isinstance(arm, inspect.NoneType))
    for kinds, type_name, noun in _EXPECTED:
        if isinstance(info, kinds) and type(value) is not type_name:
            yield place, f"{shown(json.dumps(value))}; wanted {noun}"
            return
    for below, item, name in _parts(info, value):
        path = f"{place}{name}".removeprefix(".")
        if item is msgspec.UNSET:
            yield path, "not set"
        else:
            yield from _mismatches(below, item, path)


def unknown_keys(kind: Any, value: object) -> Iterator[str]:
    """Find keys in a document, as plain values, that its model lacks, also if the model tolerates them."""
    yield from _unknown(inspect.type_info(kind), value, "")


def _unknown(info: inspect.Type, value: Any, place: str) -> Iterator[str]:
    if isinstance(info, inspect.UnionType):
        if value is None:
            return
        info = next(arm for arm in info.types if not isinstance(arm, inspect.NoneType))
    if isinstance(info, inspect.StructType):
        names = [field.encode_name for field in info.fields]
        for key in value:
            if key not in names:
                yield f"{place}.{shown(key)}".removeprefix(".") + f": {describe_unknown(key, names)}"
    for below, item, name in _parts(info, value):
        yield from _unknown(below, item, f"{place}{name}")


def _parts(info: inspect.Type, value: Any) -> Iterator[tuple[inspect.Type, object, str]]:
    match info:
        case inspect.StructType():
            yield from (
                (field.type, value.get(field.encode_name, msgspec.UNSET), f".{field.encode_name}")
                for field in info.fields
                if field.required or field.encode_name in value
            )
        case inspect.DictType():
            yield from ((info.value_type, item, f".{shown(key)}") for key, item in value.items())
        case inspect.VarTupleType():
            yield from ((info.item_type, entry, f"[{index}]") for index, entry in enumerate(value))
