"""What a field of a configuration file wants, and what was found there, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import inspect

from k8s_rdma.wire.json import shown

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


def wanted(kind: Any) -> str:
    """A type as a noun: its `description`, or its values, or what can be said of its bounds."""
    return either(dict.fromkeys(map(_noun, _members(inspect.type_info(kind)))))


def found(kind: Any, value: object) -> str:
    """The value where it is of the right sort and still does not fit, else its sort."""
    values = set(_sorts(inspect.type_info(kind)))
    if isinstance(value, str) and "text" in values:
        return shown(value) if value else "is empty"
    if isinstance(value, int | float) and not isinstance(value, bool) and "a number" in values:
        return str(value)
    return f"is {sort(value)}"


def either(values: Iterable[object]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    *others, last = map(str, values)
    return f"{', '.join(others)} or {last}" if others else last


def sort(value: object) -> str:
    """A value's, as YAML knows them."""
    return next((name for kind, name in _KINDS if isinstance(value, kind)), "a date")


def _members(info: inspect.Type) -> Iterator[inspect.Type]:
    """The types that are not null, each with its description."""
    if isinstance(info, inspect.UnionType):
        for each in info.types:
            yield from _members(each)
    elif not isinstance(info, inspect.NoneType):
        yield info


def _noun(info: inspect.Type) -> str:
    match info:
        case inspect.Metadata():
            return str((info.extra_json_schema or {}).get("description") or _noun(info.type))
        case inspect.LiteralType():
            return either(info.values)
        case inspect.EnumType():
            return either(each.value for each in info.cls)
        case inspect.IntType() | inspect.FloatType():
            return _number(info)
        case _:
            return next(noun for kind, noun in _NOUNS if isinstance(info, kind))


def _number(info: inspect.IntType | inspect.FloatType) -> str:
    noun = "a whole number" if isinstance(info, inspect.IntType) else "a number"
    if info.ge is not None and info.le is not None:
        return f"{noun} from {info.ge} to {info.le}"
    bounds = ((info.ge, "of at least"), (info.gt, "above"), (info.le, "at most"))
    told = [f"{word} {bound:g}" for bound, word in bounds if bound is not None]
    return " ".join([noun, " and ".join(told)]).rstrip()


def _sorts(info: inspect.Type) -> Iterator[str]:
    for each in _members(info):
        inner = each.type if isinstance(each, inspect.Metadata) else each
        match inner:
            case inspect.LiteralType():
                yield from map(sort, inner.values)
            case inspect.StrType() | inspect.EnumType():
                yield "text"
            case inspect.IntType() | inspect.FloatType():
                yield "a number"
