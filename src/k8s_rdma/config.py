"""Configuration files: YAML with camelCase keys, unknown keys refused by name; and the key beside them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import yaml

from k8s_rdma.errors import MalformedError

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")


def load_config(kind: type[T], path: str | None, overrides: Mapping[str, Any]) -> T:
    """Defaults, then the file, then the overrides that are not None (keys as in the file).

    MalformedError names the file and the field.
    """
    where = path or "command line"
    try:
        document = yaml.safe_load(Path(path).read_text(encoding="utf-8")) if path else {}
        if not isinstance(document or {}, dict):
            msg = f"{where}: expected a mapping of settings, got {type(document).__name__}"
            raise MalformedError(msg)
        given = {key: value for key, value in overrides.items() if value is not None}
        return msgspec.convert({**(document or {}), **given}, kind)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, msgspec.ValidationError) as error:
        msg = f"{where}: {error}"
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
