"""Configuration files: YAML with camelCase keys; faults named in the words of those who write such files.

msgspec finds that a value does not fit, and describes it in words of Python's types. So the document is
compared once more with its model. The type of a field describes the expected value, or the `description` of
its `msgspec.Meta` does. Unknown keys are refused by name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar, Union, get_args, get_origin

import msgspec
import yaml
from msgspec import inspect

from k8s_rdma.config.bounded_files import read_named_text
from k8s_rdma.config.foreign_formats import foreign_format
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.annotation import parse_memlock
from k8s_rdma.wire.json_faults import describe_unknown, shown
from k8s_rdma.wire.yaml import compose, yaml_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_KINDS: tuple[tuple[type, str], ...] = (
    *((bool, "a truth value"), (int, "a number"), (float, "a number"), (str, "text")),
    *((list, "a list"), (tuple, "a list"), (dict, "a mapping"), (type(None), "empty")),
)

_NOUNS: tuple[tuple[type[inspect.Type], str], ...] = (
    *((inspect.BoolType, "true or false"), (inspect.StrType, "text"), (inspect.VarTupleType, "a list")),
    (inspect.Type, "a mapping of settings"),
)

T = TypeVar("T")

MAX_PORT = 65535

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\xa0\xad\u2000-\u200f\u2028-\u202f\u205f-\u2064\u3000\ufeff]")
"""Control characters, and those that look like a space or like nothing, as pages of the Web have them."""

_ALSO = "; also "
"""The separator of the faults in one line."""

Port = Annotated[int, msgspec.Meta(ge=0, le=MAX_PORT)]
"""A TCP port; 0 for a free one."""

AbsolutePath = Annotated[str, msgspec.Meta(pattern="^/", description="an absolute path")]
"""Absolute, so that it does not depend on where the process was started."""

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
NodeText = Annotated[
    str,
    msgspec.Meta(
        pattern=rf"^{_LABEL}(\.{_LABEL})*$",
        max_length=253,
        description="the node's name in Kubernetes, such as worker-1",
    ),
]
"""A DNS subdomain (RFC 1123), as names of Node objects are (`ValidateNodeName` in Kubernetes'
pkg/apis/core/validation)."""

MemlockText = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(unlimited|\d+(\.\d+)?([kMGTPE]|[KMGTPE]i)?)$",
        description="an amount of memory such as 64Gi, or unlimited",
    ),
]

MAX_FAULTS = 8
"""Faults that a message lists; a document with more faults is probably another kind of file."""


def _line_of(node: yaml.Node | None, field: str, prefix: str = "") -> int | None:
    """Return the line of a field, or of the nearest mapping or item around it, below the document."""
    if isinstance(node, yaml.MappingNode):
        below = [
            (_below(prefix, shown(key.value)), key, value)
            for key, value in reversed(node.value)  # keys that a merge (`<<`) brings stand before the others
            if isinstance(key, yaml.ScalarNode)
        ]
    elif isinstance(node, yaml.SequenceNode):
        below = [(f"{prefix}[{index}]", item, item) for index, item in enumerate(node.value)]
    else:
        return None
    for name, mark, value in below:
        if field == name or field.startswith((f"{name}.", f"{name}[")):
            return _line_of(value, field, name) or mark.start_mark.line + 1
    return None


def config_schema(kind: type[msgspec.Struct]) -> str:
    """Return a file's JSON schema (draft 2020-12), for editors and for those who generate the file."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(kind)}
    return msgspec.json.format(msgspec.json.encode(schema, order="sorted"), indent=2).decode()


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
    return f"is {sort(value)}"


def either(values: Iterable[object]) -> str:
    """Return `a`, `a or b`, `a, b or c`."""
    *leading, last = map(str, values)
    return f"{', '.join(leading)} or {last}" if leading else last


def sort(value: object) -> str:
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
                yield from map(sort, inner.values)
            case inspect.StrType() | inspect.EnumType():
                yield "text"
            case inspect.IntType() | inspect.FloatType():
                yield "a number"


def memlock_bytes(key: str, text: str) -> int:
    """Read an amount of locked memory; ValueError names the key."""
    try:
        return parse_memlock(text)
    except ValueError as error:
        msg = f"{key}: {error}"
        raise ValueError(msg) from error


class Listening(Protocol):
    """A configuration that names a port."""

    @property
    def port(self) -> int:
        """The port of the file."""
        ...


def convert(kind: type[T], document: object) -> T:
    """Convert as `msgspec.convert`, but refuse control characters and unseen ones in texts.

    Patterns do not exclude them, because Python's `$` also matches before a newline at the end of a text, and
    other readers of a model's schema do not know Python's alternative.
    """
    result = msgspec.convert(document, kind)
    if has_control(document):
        msg = "has a control character, or one that is not seen"
        raise msgspec.ValidationError(msg)
    return result


def fit(kind: type[T], document: object) -> T:
    """Convert the document to its model; MalformedError names the field, and the expected value."""
    try:
        return convert(kind, document)
    except msgspec.ValidationError as error:
        raise MalformedError(_ALSO.join(map(str, faults(kind, document))) or str(error)) from error


def parse_config(kind: type[T], text: str, source: str) -> T:
    """Parse the text of a configuration file; MalformedError names its source, line and field."""
    try:
        document, node = compose(text)
        document = {} if document is None else document
    except (MalformedError, ValueError, yaml.YAMLError) as error:
        raise MalformedError(f"{source}: {_reason(error)}") from error
    return _configured(kind, document, source, {}, node)


def load_config(kind: type[T], path: str | None, overrides: Mapping[str, Any]) -> T:
    """Combine defaults, the file's values, and overrides that are not None (keys as in the file).

    Each override is an option of that name on the command line.
    MalformedError names the file, or the option, and the field.
    """
    flags = {key: value for key, value in overrides.items() if value is not None}
    document, node = _read(path) if path else ({}, None)
    settings = {**document, **flags} if isinstance(document, dict) else document
    return _configured(kind, settings, path, overrides, node)


def _configured(
    kind: type[T], settings: Any, path: str | None, overrides: Mapping[str, Any], node: yaml.Node | None
) -> T:
    """Convert settings; MalformedError as `_refusal` has it."""
    try:
        return convert(kind, settings)
    except msgspec.ValidationError as error:
        origin = f"{path}: " if path else ""
        if path and (foreign := foreign_format(settings)):
            raise MalformedError(f"{origin}{foreign}") from error
        refusal = _refusal(kind, settings, path, overrides, node)
        raise MalformedError(refusal or f"{origin}{error}") from error


def has_control(value: object) -> bool:
    """Report whether any text of a document has a control character, or one that is not seen."""
    if isinstance(value, dict):
        return any(map(has_control, value.values()))
    if isinstance(value, list | tuple):
        return any(map(has_control, value))
    return isinstance(value, str) and _CONTROL.search(value) is not None


def _read(path: str) -> tuple[Any, yaml.Node | None]:
    try:
        document, node = compose(read_named_text(path))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise MalformedError(f"{path}: {_reason(error)}") from error
    return {} if document is None else document, node


def _refusal(
    kind: type[Any], settings: Any, path: str | None, overrides: Mapping[str, Any], node: yaml.Node | None
) -> str:
    """Describe the values that do not fit, and where they are written."""
    lines, previous = [], ""
    for fault in faults(kind, settings):
        key = fault.field.partition(".")[0].partition("[")[0]
        if fault.field in overrides and key not in settings:
            lines.append(f"{key}: not set; --{key} NAME, or {key}: in {path or '--config FILE'}")
            continue
        origin = "command line" if path is None or overrides.get(key) is not None else path
        described = _at_line(node, fault) if origin == path else str(fault)
        lines.append(described if origin == previous else f"{origin}: {described}")
        previous = origin
    return _ALSO.join(lines)


def _at_line(node: yaml.Node | None, fault: Fault) -> str:
    names = fault.field.split(" and ")  # of several fields one may have its default
    line = next(filter(None, (_line_of(node, name) for name in names)), None)
    return f"line {line}: {fault}" if line else str(fault)


def port_of(config: Listening, environment: Mapping[str, str]) -> int:
    """Return the port to listen on; MalformedError (`INVALID_ENVIRONMENT`) if PORT is invalid."""
    text = environment.get("PORT", "")
    if not text:
        return config.port
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(MAX_PORT)) and int(text) <= MAX_PORT):
        msg = f"PORT: {text!r} is no TCP port (0 to {MAX_PORT})"
        raise MalformedError(msg, reason=Reason.INVALID_ENVIRONMENT)
    return int(text)


def _reason(error: Exception) -> str:
    """Describe the file's fault in one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, yaml.YAMLError):
        return yaml_words(error)
    return " ".join(str(error).split())


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
        yield Fault(_below(field, tag), f"{why} {either(by_tag)}")
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
                yield Fault(_below(field, shown(str(key))), "unknown key" if why in reported else why)
                reported.add(why)
    for name, info in fields.items():
        if info.required and name not in value:
            yield Fault(_below(field, name), f"not set; wanted {describe_type(info.type)}")
    for name, info in fields.items():
        if name in value:
            yield from _faults(info.type, value[name], _below(field, name))


def _in_its_words(refusal: BaseException, field: str) -> Iterator[Fault]:
    """Convert a model's own check to a fault; its sentence begins with the fields' names."""
    if refusal.__cause__ is not None:
        names, _, why = str(refusal.__cause__).partition(": ")
        yield Fault(_below(field, names), why)


def _hint(kind: Any, value: object) -> str:
    if isinstance(value, str) and (control := _CONTROL.search(value)):
        return f", without the character U+{ord(control[0]):04X}"
    if not isinstance(value, list | dict) and _refusal_of_field(kind, [value]) is None:
        return f", such as [{value}]"
    is_scalar = value is not None and not isinstance(value, str | list | dict)
    return ", in quotes" if is_scalar and str in _meant(kind) else ""


def _below(field: str, name: str) -> str:
    return f"{field}.{name}" if field else name


class TlsConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """YAML with these keys in camelCase; files are PEM.

    cert_file: the server's certificate and those that lead to its issuer.
    key_file: its key, not encrypted.
    client_ca_file: the issuer of clients' certificates; null if clients need no certificate.
    client_names: the names of accepted clients: a certificate needs one of them as the subject's common name,
        or as a DNS name, URI or mail address of the alternative names. Empty accepts any certificate of that
        issuer.
    """

    cert_file: AbsolutePath
    key_file: AbsolutePath
    client_ca_file: AbsolutePath | None = None
    client_names: tuple[Annotated[str, msgspec.Meta(min_length=1)], ...] = ()

    def __post_init__(self) -> None:
        """Refuse client names when no client certificates are requested."""
        if self.client_names and self.client_ca_file is None:
            msg = "clientNames: is for certificates of clientCaFile, which is not set"
            raise ValueError(msg)


class NodeTls(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """YAML with these keys in camelCase: how the nodes' servers are identified, if they speak TLS.

    ca_file: PEM, the issuer of their certificates.
    server_name: the name in these; null for the requested address.
    cert_file, key_file: ours, if they demand one.
    """

    ca_file: AbsolutePath
    server_name: str | None = None
    cert_file: AbsolutePath | None = None
    key_file: AbsolutePath | None = None
