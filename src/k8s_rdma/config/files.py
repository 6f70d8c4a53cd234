"""Configuration files: YAML with camelCase keys, unknown keys refused by name; PORT."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

import msgspec
import yaml

from k8s_rdma.config.yaml_text import read_yaml, yaml_words
from k8s_rdma.errors import MalformedError, Reason

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")

MAX_PORT = 65535

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

_ALSO = "; also "
"""Between what is wrong in one line."""

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

RESOURCE_PATTERN = (
    r"^(?!requests\.)(?![^/]*kubernetes\.io/)"
    rf"(?=[^/]{{1,244}}/){_LABEL}(\.{_LABEL})*/"
    "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
)

ResourceName = Annotated[str, msgspec.Meta(pattern=RESOURCE_PATTERN)]
"""Of an extended resource: a domain that is not Kubernetes' own, and a name of at most 63 characters.

Kubelet takes no other, as a quota is to name it with `requests.` before it (`IsExtendedResourceName` in
Kubernetes' pkg/apis/core/v1/helper).
"""

ResourceText = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": RESOURCE_PATTERN})]
"""A `ResourceName` that people write: checked by `require_resource_name`, as a pattern explains nothing."""


def is_resource_name(text: str) -> bool:
    """Whether a text is a `ResourceName`."""
    return re.fullmatch(RESOURCE_PATTERN, text) is not None


def require_resource_name(key: str, text: str) -> None:
    """ValueError, in words, when a key's text is no `ResourceName`."""
    if not is_resource_name(text):
        msg = (
            f"{key}: {text!r}; wanted a domain other than Kubernetes' own, a slash, and at most 63 "
            "letters, digits and -_. between them, as in example.com/rdma"
        )
        raise ValueError(msg)


class Listening(Protocol):
    """A configuration that names a port."""

    @property
    def port(self) -> int:
        """The port of the file."""
        ...


def convert(kind: type[T], document: object) -> T:
    """As `msgspec.convert`, but no text may have control characters.

    Patterns do not see to that: Python's `$` also matches before a newline at the end of a text, and what
    Python has in its place no other reader of a model's schema knows.
    """
    made = msgspec.convert(document, kind)
    if has_control(document):
        msg = "has a control character"
        raise msgspec.ValidationError(msg)
    return made


def fit(kind: type[T], document: object) -> T:
    """The document as what its model is; MalformedError names the field, and what it wants."""
    try:
        return convert(kind, document)
    except msgspec.ValidationError as error:
        from k8s_rdma.config.faults import faults  # noqa: PLC0415  memory of those that start well

        raise MalformedError(_ALSO.join(map(str, faults(kind, document))) or str(error)) from error


def load_config(kind: type[T], path: str | None, overrides: Mapping[str, Any]) -> T:
    """Defaults, then the file, then the overrides that are not None (keys as in the file).

    Each override is an option of that name on the command line. MalformedError names the file, or the option,
    and the field.
    """
    given = {key: value for key, value in overrides.items() if value is not None}
    document = _read(path) if path else {}
    settings = {**document, **given} if isinstance(document, dict) else document
    try:
        return convert(kind, settings)
    except msgspec.ValidationError as error:
        raise MalformedError(_refusal(kind, settings, path, overrides) or str(error)) from error


def has_control(value: object) -> bool:
    """Whether any text of a document has a control character."""
    if isinstance(value, dict):
        return any(map(has_control, value.values()))
    if isinstance(value, list | tuple):
        return any(map(has_control, value))
    return isinstance(value, str) and _CONTROL.search(value) is not None


def _read(path: str) -> Any:
    try:
        document = read_yaml(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise MalformedError(f"{path}: {_words(error)}") from error
    return {} if document is None else document


def _refusal(kind: type[Any], settings: Any, path: str | None, overrides: Mapping[str, Any]) -> str:
    """What does not fit, and where it was written."""
    from k8s_rdma.config.faults import faults  # noqa: PLC0415  memory of those that start well

    told, said = [], ""
    for fault in faults(kind, settings):
        key = fault.field.partition(".")[0].partition("[")[0]
        if fault.field in overrides and key not in settings:
            told.append(f"{key}: not set; --{key} NAME, or {key}: in {path or '--config FILE'}")
            continue
        where = "command line" if path is None or overrides.get(key) is not None else path
        told.append(str(fault) if where == said else f"{where}: {fault}")
        said = where
    return _ALSO.join(told)


def port_of(config: Listening, environment: Mapping[str, str]) -> int:
    """The port to listen on; MalformedError (`INVALID_ENVIRONMENT`) when the variable PORT holds none."""
    text = environment.get("PORT", "")
    if not text:
        return config.port
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(MAX_PORT)) and int(text) <= MAX_PORT):
        msg = f"PORT: {text!r} is no TCP port (0 to {MAX_PORT})"
        raise MalformedError(msg, reason=Reason.INVALID_ENVIRONMENT)
    return int(text)


def _words(error: Exception) -> str:
    """What is wrong with the file, in one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, yaml.YAMLError):
        return yaml_words(error)
    return " ".join(str(error).split())
