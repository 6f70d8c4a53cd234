"""Where a JSON document has another type than its model, in JSON's words.

msgspec says it in those of Python's types.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import inspect

from k8s_rdma.wire.json import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

_EXPECTED: tuple[tuple[tuple[type[inspect.Type], ...], type, str], ...] = (
    ((inspect.BoolType,), bool, "true or false"),
    ((inspect.IntType,), int, "a whole number"),
    ((inspect.StrType,), str, "text"),
    ((inspect.VarTupleType,), list, "a list"),
    ((inspect.DictType, inspect.StructType), dict, "an object"),
)


def type_mismatch(kind: Any, document: bytes) -> tuple[str, str] | None:
    """The first place, as in `networks.a.l2enable`, and what is there and wanted; or None."""
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
