"""Types of fields, and values of files, in the words of those who write such files.

The `description` of a type's `msgspec.Meta` describes it, otherwise its values or its bounds do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import inspect

from k8s_rdma.wire.json_faults import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_KINDS: tuple[tuple[type, str], ...] = (
    *((bool, "a truth value"), (int, "a number"), (float, "a number"), (str, "text")),
    *((list, "a list"), (tuple, "a list"), (dict, "a mapping"), (type(None), "empty")),
)

_NOUNS: tuple[tuple[type[inspect.Type], str], ...] = (
    *((inspect.BoolType, "true or false"), (inspect.StrType, "text"), (inspect.VarTupleType, "a list")),
    (inspect.Type, "a mapping of settings"),
)


def describe_type(kind: Any) -> str:
    """Return a type as a noun: its `description`, or its values, or a description of its bounds."""
    return either(dict.fromkeys(map(_noun, _members(inspect.type_info(kind)))))


def found(kind: Any, value: object) -> str:
    """Return the value if it is of the right sort and still does not fit, else its sort."""
    values = set(_sorts(inspect.type_info(kind)))
    if isinstance(value, str) and "text" in values:
        return shown(value) if value else "is empty"
    if isinstance(value, int | float) and not isinstance(value, bool) and "a number" in values:
        return str(value)
    return f"is {_sort(value)}"


def either(values: Iterable[object]) -> str:
    """Return `a`, `a or b`, `a, b or c`."""
    *leading, last = map(str, values)
    return f"{', '.join(leading)} or {last}" if leading else last


def _sort(value: object) -> str:
    """Return a value's sort, as YAML has it."""
    return next((name for kind, name in _KINDS if isinstance(value, kind)), "a date")


def _members(info: inspect.Type) -> Iterator[inspect.Type]:
    """Yield the types that are not null, each with its description."""
    if isinstance(info, inspect.UnionType):
        for member in info.types:
            yield from _members(member)
    elif not isinstance(info, inspect.NoneType):
        yield info


def _noun(info: inspect.Type) -> str:
    match info:
        case inspect.Metadata():
            return str((info.extra_json_schema or {}).get("description") or _noun(info.type))
        case inspect.LiteralType():
            return either(info.values)
        case inspect.EnumType():
            return either(member.value for member in info.cls)
        case inspect.IntType() | inspect.FloatType():
            return _number(info)
        case _:
            return next(noun for kind, noun in _NOUNS if isinstance(info, kind))


def _number(info: inspect.IntType | inspect.FloatType) -> str:
    noun = "a whole number" if isinstance(info, inspect.IntType) else "a number"
    if info.ge is not None and info.le is not None:
        return f"{noun} from {info.ge} to {info.le}"
    bounds = ((info.ge, "of at least"), (info.gt, "above"), (info.le, "at most"))
    limits = [f"{relation} {bound:g}" for bound, relation in bounds if bound is not None]
    return " ".join([noun, " and ".join(limits)]).rstrip()


def _sorts(info: inspect.Type) -> Iterator[str]:
    for member in _members(info):
        inner = member.type if isinstance(member, inspect.Metadata) else member
        match inner:
            case inspect.LiteralType():
                yield from map(_sort, inner.values)
            case inspect.StrType() | inspect.EnumType():
                yield "text"
            case inspect.IntType() | inspect.FloatType():
                yield "a number"
