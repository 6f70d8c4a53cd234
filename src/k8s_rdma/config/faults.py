"""What of a document does not fit its model, in the words of those who write such documents.

msgspec finds that something does not fit, and says it in the words of Python's types. Here the document is
gone through once more, beside its model: what a field wants its type says, or the `description` of its
`msgspec.Meta`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

import msgspec

from k8s_rdma.config.files import convert, has_control
from k8s_rdma.config.wanted import either, found, wanted
from k8s_rdma.wire.json import describe_unknown, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST = 8
"""Faults that are told of a document: who has more gives another kind of file."""


@dataclass(frozen=True, slots=True)
class Fault:
    """field: as in `hardware.pfs[0].names`; empty for the whole document. why: what is there, and wanted."""

    field: str
    why: str

    def __str__(self) -> str:
        return f"{self.field}: {self.why}" if self.field else self.why


def faults(kind: Any, value: object) -> tuple[Fault, ...]:
    """What does not fit, `MOST` at most; keys that are not known before others. () where all fits."""
    return tuple(islice(_faults(kind, value, ""), MOST))


def _faults(kind: Any, value: object, field: str) -> Iterator[Fault]:
    refusal = _refusal(kind, value)
    if refusal is None:
        return
    meant = _meant(kind)
    structs = [each for each in meant if _is_struct(each)]
    items = next((get_args(each)[0] for each in meant if get_origin(each) is tuple), None)
    if structs and isinstance(value, dict):
        yield from _in_struct(structs, value, field, refusal)
    elif items is not None and isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _faults(items, item, f"{field}[{index}]")
    else:
        yield Fault(field, f"{found(kind, value)}; wanted {wanted(kind)}{_hint(kind, value)}")


def _refusal(kind: Any, value: object) -> BaseException | None:
    try:
        convert(kind, value)
    except msgspec.ValidationError as error:
        return error
    return None


def _meant(kind: Any) -> tuple[Any, ...]:
    """The types that a value may be of, other than null."""
    origin = get_origin(kind)
    if origin is Annotated:
        return _meant(get_args(kind)[0])
    if origin in {Union, UnionType}:
        return tuple(each for arg in get_args(kind) if arg is not NoneType for each in _meant(arg))
    return (kind,)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _in_struct(
    structs: list[type[msgspec.Struct]], value: dict[Any, Any], field: str, refusal: BaseException
) -> Iterator[Fault]:
    tag = structs[0].__struct_config__.tag_field
    by_tag = {each.__struct_config__.tag: each for each in structs}
    struct = by_tag.get(value.get(tag)) if tag and isinstance(value.get(tag), str) else None
    if tag and struct is None:
        why = f"{shown(str(value[tag]))}; wanted" if tag in value else "not set; wanted"
        yield Fault(_below(field, tag), f"{why} {either(by_tag)}")
        return
    of_fields = tuple(_in_fields(struct or structs[0], value, field))
    yield from of_fields or _in_its_words(refusal, field)


def _in_fields(struct: type[msgspec.Struct], value: dict[Any, Any], field: str) -> Iterator[Fault]:
    fields = {each.encode_name: each for each in msgspec.structs.fields(struct)}
    tag = struct.__struct_config__.tag_field
    known = [*fields, *([tag] if tag else [])]
    if struct.__struct_config__.forbid_unknown_fields:
        told = set()
        for key in value:
            if key not in known:
                why = describe_unknown(str(key), known)
                yield Fault(_below(field, shown(str(key))), "unknown key" if why in told else why)
                told.add(why)
    for name, each in fields.items():
        if each.required and name not in value:
            yield Fault(_below(field, name), f"not set; wanted {wanted(each.type)}")
    for name, each in fields.items():
        if name in value:
            yield from _faults(each.type, value[name], _below(field, name))


def _in_its_words(refusal: BaseException, field: str) -> Iterator[Fault]:
    """What a model says of fields that fit one by one; its sentence begins with their names."""
    if refusal.__cause__ is not None:
        names, _, why = str(refusal.__cause__).partition(": ")
        yield Fault(_below(field, names), why)


def _hint(kind: Any, value: object) -> str:
    if isinstance(value, str) and has_control(value):
        return ", without control characters"
    if not isinstance(value, list | dict) and _refusal(kind, [value]) is None:
        return f", such as [{value}]"
    is_other = value is not None and not isinstance(value, str | list | dict)
    return ", in quotes" if is_other and str in _meant(kind) else ""


def _below(field: str, name: str) -> str:
    return f"{field}.{name}" if field else name
