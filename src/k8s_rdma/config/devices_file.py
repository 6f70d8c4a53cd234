"""Loads the device plugin's configuration: its own file, or that of Mellanox' shared device plugin."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from k8s_rdma.config.devices import DevicePluginConfig
from k8s_rdma.config.files import load_config
from k8s_rdma.config.mellanox import Read, from_mellanox, is_mellanox
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.json import decode

if TYPE_CHECKING:
    from collections.abc import Mapping

_decoder = msgspec.json.Decoder(object)


def load_device_config(path: str | None, overrides: Mapping[str, Any], *, cdi: bool = False) -> Read:
    """As `load_config`, which reads whatever is not Mellanox' by its keys. cdi: for all of that file's.

    MalformedError as well for cdi with another file, whose resources say for themselves.
    """
    document = _json(path) if path else None
    if path is None or not is_mellanox(document):
        if cdi:
            raise MalformedError(
                f"{path}: has no configList, which --use-cdi is for; say cdi: true of a resource"
            )
        return Read(load_config(DevicePluginConfig, path, overrides), ())
    return _from_mellanox(document, path, overrides, cdi=cdi)


def load_mellanox_config(path: str, overrides: Mapping[str, Any], *, cdi: bool) -> Read:
    """Of a file that can be no other's. MalformedError names it, and the field."""
    try:
        document = decode(Path(path).read_bytes(), _decoder, path)
    except OSError as error:
        raise MalformedError(f"{path}: {error.strerror}") from error
    if not isinstance(document, dict):
        raise MalformedError(f"{path}: is no object; wanted one with configList")
    return _from_mellanox(document, path, overrides, cdi=cdi)


def _from_mellanox(document: object, path: str, overrides: Mapping[str, Any], *, cdi: bool) -> Read:
    given = {key: value for key, value in overrides.items() if value is not None}
    try:
        return from_mellanox(document, cdi=cdi, overrides=given)
    except MalformedError as error:
        raise MalformedError(f"{path}: {error.message}") from error


def _json(path: str) -> object:
    """None for what is no JSON, or cannot be read: `load_config` says so."""
    try:
        return msgspec.json.decode(Path(path).read_bytes())
    except (OSError, msgspec.DecodeError):
        return None
