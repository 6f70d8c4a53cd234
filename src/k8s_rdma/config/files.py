"""Configuration files: YAML with camelCase keys, unknown keys refused by name; the key and PORT."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

import msgspec
import yaml

from k8s_rdma.config.yaml_text import read_yaml
from k8s_rdma.errors import MalformedError, Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")

MAX_PORT = 65535

Port = Annotated[int, msgspec.Meta(ge=0, le=MAX_PORT)]
"""A TCP port; 0 for a free one."""


_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
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
            f"{key}: {text!r}: expected a domain other than Kubernetes' own, a slash, and at most 63 "
            "letters, digits and -_. between them, as in example.com/rdma"
        )
        raise ValueError(msg)


class Listening(Protocol):
    """A configuration that names a port."""

    @property
    def port(self) -> int:
        """The port of the file."""
        ...


def load_config(
    kind: type[T],
    path: str | None,
    overrides: Mapping[str, Any],
    *,
    check: Callable[[Mapping[str, Any]], None] = lambda _: None,
) -> T:
    """Defaults, then the file, then the overrides that are not None (keys as in the file).

    MalformedError names the file and the field. check: of the settings before they are read; its ValueError
    says better what is wrong.
    """
    where = path or "command line"
    try:
        document = read_yaml(Path(path).read_text(encoding="utf-8")) if path else {}
        document = {} if document is None else document
        if not isinstance(document, dict):
            msg = f"{where}: expected a mapping of settings, got {type(document).__name__}"
            raise MalformedError(msg)
        given = {key: value for key, value in overrides.items() if value is not None}
        settings = {**document, **given}
        check(settings)
        return msgspec.convert(settings, kind)
    except (OSError, ValueError, yaml.YAMLError, msgspec.ValidationError) as error:
        msg = f"{where}: {_words(error)}"
        raise MalformedError(msg) from error


def load_key(path: str | None) -> bytes | None:
    """The key that placements are signed with; None without a file.

    MalformedError when the file cannot be read or is empty: a cluster that signs must not stop silently.
    """
    if path is None:
        return None
    try:
        key = Path(path).read_bytes().strip()
    except OSError as error:
        msg = f"placementKeyFile {path}: {error.strerror}"
        raise MalformedError(msg) from error
    if not key:
        msg = f"placementKeyFile {path}: is empty"
        raise MalformedError(msg)
    return key


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
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return " ".join(str(error).split())
