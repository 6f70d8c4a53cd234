"""Configuration files: YAML with camelCase keys; a fault is named with its line, or with its option."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import yaml

from k8s_rdma.config.bounded_files import read_named_text
from k8s_rdma.config.faults import ALSO, Fault, convert, faults, place_below
from k8s_rdma.config.foreign_formats import foreign_format
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.json_faults import shown
from k8s_rdma.wire.yaml import compose, yaml_words

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")


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


def config_schema(kind: type[msgspec.Struct]) -> str:
    """Return a file's JSON schema (draft 2020-12), for editors and for those who generate the file."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(kind)}
    return msgspec.json.format(msgspec.json.encode(schema, order="sorted"), indent=2).decode()


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
    return ALSO.join(lines)


def _at_line(node: yaml.Node | None, fault: Fault) -> str:
    names = fault.field.split(" and ")  # of several fields one may have its default
    line = next(filter(None, (_line_of(node, name) for name in names)), None)
    return f"line {line}: {fault}" if line else str(fault)


def _line_of(node: yaml.Node | None, field: str, prefix: str = "") -> int | None:
    """Return the line of a field, or of the nearest mapping or item around it, below the document."""
    if isinstance(node, yaml.MappingNode):
        below = [
            (place_below(prefix, shown(key.value)), key, value)
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


def _reason(error: Exception) -> str:
    """Describe the file's fault in one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, yaml.YAMLError):
        return yaml_words(error)
    return " ".join(str(error).split())
