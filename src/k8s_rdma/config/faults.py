"""Documents as their models; faults named in the words of those who write such documents.

msgspec finds that a value does not fit, and describes it in words of Python's types. So the document is
compared once more with its model. Unknown keys are refused by name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec

from k8s_rdma.config.type_descriptions import describe_type, either, found
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.json_faults import describe_unknown, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")

MAX_FAULTS = 8
"""Faults that a message lists; a document with more faults is probably another kind of file."""

ALSO = "; also "
"""The separator of the faults in one line."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\xa0\xad\u2000-\u200f\u2028-\u202f\u205f-\u2064\u3000\ufeff]")
"""Control characters, and those that look like a space or like nothing, as pages of the Web have them."""


def fit(kind: type[T], document: object) -> T:
    """Convert the document to its model; MalformedError names the field, and the expected value."""
    try:
        return convert(kind, document)
    except msgspec.ValidationError as error:
        raise MalformedError(ALSO.join(map(str, faults(kind, document))) or str(error)) from error


def convert(kind: type[T], document: object) -> T:
    """Convert as `msgspec.convert`, but refuse control characters and unseen ones in texts.

    Patterns do not exclude them, because Python's `$` also matches before a newline at the end of a text, and
    other readers of a model's schema do not know Python's alternative.
    """
    result = msgspec.convert(document, kind)
    if _has_control(document):
        msg = "has a control character, or one that is not seen"
        raise msgspec.ValidationError(msg)
    return result


def _has_control(value: object) -> bool:
    """Report whether any text of a document has a control character, or one that is not seen."""
    if isinstance(value, dict):
        return any(map(_has_control, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_control, value))
    return isinstance(value, str) and _CONTROL.search(value) is not None


@dataclass(frozen=True, slots=True)
class Fault:
    """A value that does not fit.

    field: as in `hardware.pfs[0].names`; empty for the whole document.
    why: the value found, and the expected one.
    """

    field: str
    why: str

    def __str__(self) -> str:
        return f"{self.field}: {self.why}" if self.field else self.why


def faults(kind: Any, value: object) -> tuple[Fault, ...]:
    """Find values that do not fit, at most `MAX_FAULTS`; unknown keys first. () if all fit."""
    return tuple(islice(_faults(kind, value, ""), MAX_FAULTS))


def _faults(kind: Any, value: object, field: str) -> Iterator[Fault]:
    refusal = _refusal_of_field(kind, value)
    if refusal is None:
        return
    meant = _meant(kind)
    structs = [candidate for candidate in meant if _is_struct(candidate)]
    items = next(
        (get_args(alternative)[0] for alternative in meant if get_origin(alternative) is tuple), None
    )
    if structs and isinstance(value, dict):
        yield from _in_struct(structs, value, field, refusal)
    elif items is not None and isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _faults(items, item, f"{field}[{index}]")
    else:
        yield Fault(field, f"{found(kind, value)}; wanted {describe_type(kind)}{_hint(kind, value)}")


def _refusal_of_field(kind: Any, value: object) -> BaseException | None:
    try:
        convert(kind, value)
    except msgspec.ValidationError as error:
        return error
    return None


def _meant(kind: Any) -> tuple[Any, ...]:
    """Return the types that a value may be of, other than null."""
    origin = get_origin(kind)
    if origin is Annotated:
        return _meant(get_args(kind)[0])
    if origin in {Union, UnionType}:
        return tuple(meaning for arg in get_args(kind) if arg is not NoneType for meaning in _meant(arg))
    return (kind,)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _in_struct(
    structs: list[type[msgspec.Struct]], value: dict[Any, Any], field: str, refusal: BaseException
) -> Iterator[Fault]:
    tag = structs[0].__struct_config__.tag_field
    by_tag = {variant.__struct_config__.tag: variant for variant in structs}
    struct = by_tag.get(value.get(tag)) if tag and isinstance(value.get(tag), str) else None
    if tag and struct is None:
        why = f"{shown(str(value[tag]))}; wanted" if tag in value else "not set; wanted"
        yield Fault(place_below(field, tag), f"{why} {either(by_tag)}")
        return
    of_fields = tuple(_in_fields(struct or structs[0], value, field))
    yield from of_fields or _in_its_words(refusal, field)


def _in_fields(struct: type[msgspec.Struct], value: dict[Any, Any], field: str) -> Iterator[Fault]:
    fields = {info.encode_name: info for info in msgspec.structs.fields(struct)}
    tag = struct.__struct_config__.tag_field
    names = [*fields, *([tag] if tag else [])]
    if struct.__struct_config__.forbid_unknown_fields:
        reported = set()
        for key in value:
            if key not in names:
                why = describe_unknown(str(key), names)
                yield Fault(place_below(field, shown(str(key))), "unknown key" if why in reported else why)
                reported.add(why)
    for name, info in fields.items():
        if info.required and name not in value:
            yield Fault(place_below(field, name), f"not set; wanted {describe_type(info.type)}")
    for name, info in fields.items():
        if name in value:
            yield from _faults(info.type, value[name], place_below(field, name))


def _in_its_words(refusal: BaseException, field: str) -> Iterator[Fault]:
    """Convert a model's own check to a fault; its sentence begins with the fields' names."""
    if refusal.__cause__ is not None:
        names, _, why = str(refusal.__cause__).partition(": ")
        yield Fault(place_below(field, names), why)


def _hint(kind: Any, value: object) -> str:
    if isinstance(value, str) and (control := _CONTROL.search(value)):
        return f", without the character U+{ord(control[0]):04X}"
    if not isinstance(value, list | dict) and _refusal_of_field(kind, [value]) is None:
        return f", such as [{value}]"
    is_scalar = value is not None and not isinstance(value, str | list | dict)
    return ", in quotes" if is_scalar and str in _meant(kind) else ""


def place_below(field: str, name: str) -> str:
    """Return the place of a key in a document; field: the mapping's place, empty for the document."""
    return f"{field}.{name}" if field else name
