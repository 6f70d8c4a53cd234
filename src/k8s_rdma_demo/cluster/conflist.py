"""Configuration lists of CNI, and the stdin of each plugin.

Source: CNI specification 1.1.0, sections 1 and 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.json import decode
from k8s_rdma_demo.cluster.objects import JsonObject, go_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SUPPORTED_VERSIONS = ("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflist:
    """A network: its name, the version spoken with its plugins, and the chain of them."""

    name: str
    cni_version: str
    plugins: tuple[JsonObject, ...]
    disable_check: bool = False

    def at_least(self, version: str) -> bool:
        """Report whether the list's version is that one or a later one."""
        return SUPPORTED_VERSIONS.index(self.cni_version) >= SUPPORTED_VERSIONS.index(version)

    def stdin_for(
        self,
        plugin: JsonObject,
        *,
        prev_result: JsonObject | None = None,
        capability_args: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> bytes:
        """The configuration of one plugin of the chain.

        capability_args: the runtime's values by capability; a plugin gets those that its `capabilities`
        switch on, as `runtimeConfig`.
        """
        config = {**plugin, "name": self.name, "cniVersion": self.cni_version, **(extra or {})}
        if prev_result is not None:
            config["prevResult"] = prev_result
        enabled = [name for name, on in (plugin.get("capabilities") or {}).items() if on]
        runtime_config = {
            name: capability_args[name] for name in enabled if capability_args and name in capability_args
        }
        if runtime_config:
            config["runtimeConfig"] = runtime_config
        return go_json(config, order="deterministic")


class _Plugin(msgspec.Struct, frozen=True):
    type: str
    capabilities: dict[str, bool] | None = None


class _Document(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    cni_version: str
    plugins: list[_Plugin]
    disable_check: bool = False


_conflist_document = msgspec.json.Decoder(_Document)


def load_conflist(path: Path) -> Conflist:
    """Read a `.conflist` file; MalformedError names the fault, OSError if it cannot be read."""
    text = path.read_bytes()
    checked = decode(text, _conflist_document, str(path))
    if not checked.plugins:
        msg = f"{path}: plugins: wanted one at least"
        raise MalformedError(msg)
    if checked.cni_version not in SUPPORTED_VERSIONS:
        msg = (
            f"{path}: cniVersion: wanted one of {', '.join(SUPPORTED_VERSIONS)}, found {checked.cni_version}"
        )
        raise MalformedError(msg)
    return Conflist(
        name=checked.name,
        cni_version=checked.cni_version,
        plugins=tuple(msgspec.json.decode(text)["plugins"]),
        disable_check=checked.disable_check,
    )
