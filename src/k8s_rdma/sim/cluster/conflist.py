"""A CNI network configuration list, and what of it each plugin gets on stdin.

Source: CNI specification 1.1.0, sections 1 "Network configuration format" and 3 "Execution of Network
Configurations"; `libcni/api.go`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from k8s_rdma.errors import MalformedError
from k8s_rdma.sim.cluster.go_json import go_json
from k8s_rdma.sim.cluster.objects import JsonObject
from k8s_rdma.wire.json import decode

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SUPPORTED_VERSIONS = ("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
_IP_TELLS_VERSION = ("0.3.0", "0.3.1", "0.4.0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflist:
    """A network: its name, the version spoken with its plugins, and the chain of them."""

    name: str
    cni_version: str
    plugins: tuple[JsonObject, ...]
    disable_check: bool = False

    def at_least(self, version: str) -> bool:
        """Whether the version spoken is that one or a later one."""
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

        capability_args: what the runtime knows, by capability; a plugin gets of it what its `capabilities`
        switch on, as `runtimeConfig`.
        """
        config = {**plugin, "name": self.name, "cniVersion": self.cni_version, **(extra or {})}
        if prev_result is not None:
            config["prevResult"] = prev_result
        wanted = [name for name, on in (plugin.get("capabilities") or {}).items() if on]
        given = {
            name: capability_args[name] for name in wanted if capability_args and name in capability_args
        }
        if given:
            config["runtimeConfig"] = given
        return go_json(config, order="deterministic")


class _Plugin(msgspec.Struct, frozen=True):
    type: str
    capabilities: dict[str, bool] | None = None


class _Document(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    cni_version: str
    plugins: list[_Plugin]
    disable_check: bool = False


_decoder = msgspec.json.Decoder(_Document)


def load_conflist(path: Path) -> Conflist:
    """Read a `.conflist` file; MalformedError names what is wrong, OSError when it cannot be read."""
    text = path.read_bytes()
    checked = decode(text, _decoder, str(path))
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


def result_in_version(result: JsonObject, version: str) -> JsonObject:
    """A plugin's result as another version of the specification has it; what is empty is left out.

    Up to 0.4.0 an address tells its IP version and `dns` is always there (source: `types/040`, `types/100`).
    """
    converted = {name: value for name, value in result.items() if value} | {"cniVersion": version}
    old = version in _IP_TELLS_VERSION
    if result.get("ips"):
        converted["ips"] = [_address(ip, old=old) for ip in result["ips"]]
    if old:
        converted.setdefault("dns", {})
    return converted


def pod_ips(result: JsonObject, ifname: str) -> list[str]:
    """The addresses, without prefix length, of the pod's own interface (containerd: `selectPodIPs`).

    An address that names no interface of the result counts as this one's.
    """
    interfaces = result.get("interfaces") or []
    found = []
    for ip in result.get("ips") or []:
        index = ip.get("interface")
        named = interfaces[index]["name"] if index is not None and 0 <= index < len(interfaces) else ifname
        if named == ifname:
            found.append(str(ip["address"]).partition("/")[0])
    return found


def _address(ip: JsonObject, *, old: bool) -> JsonObject:
    kept = {name: value for name, value in ip.items() if name != "version"}
    return {**kept, "version": "6" if ":" in str(ip.get("address")) else "4"} if old else kept
