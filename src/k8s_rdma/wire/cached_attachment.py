"""Records of attachments in the cache of a container runtime's CNI library."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.cni_request import POD_ANNOTATIONS
from k8s_rdma.wire.json import decode

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])

_flags_decoder = msgspec.json.Decoder(dict[str, bool])

KIND = "cniCacheV1"

_NULL = msgspec.Raw(b"null")
_EMPTY = msgspec.Raw(b"{}")

_cached_plugins_decoder = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_type_decoder = msgspec.json.Decoder(str | None)


class _Interface(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    pci: str = msgspec.field(name="pciID", default="")


class _Result(msgspec.Struct, frozen=True, kw_only=True):
    interfaces: tuple[_Interface, ...] | None = None


class CachedAttachment(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A cached attachment; `config` is the list of plugins, or the single one, as the runtime read it."""

    kind: str
    container_id: str
    config: bytes
    if_name: str
    network_name: str
    netns: str = ""
    cni_args: tuple[tuple[str, str], ...] = ()
    capability_args: dict[str, msgspec.Raw] = {}
    result: msgspec.Raw = msgspec.Raw(b"{}")

    def environment(self, cni_path: str) -> Mapping[str, str]:
        """Return the variables of its ADD. cni_path: the plugins' directories; the runtime keeps none."""
        return {
            "CNI_COMMAND": "ADD",
            "CNI_CONTAINERID": self.container_id,
            "CNI_NETNS": self.netns,
            "CNI_IFNAME": self.if_name,
            "CNI_ARGS": ";".join(f"{key}={value}" for key, value in self.cni_args),
            "CNI_PATH": cni_path,
        }

    def functions(self) -> Mapping[str, str]:
        """Return PCI addresses of interfaces by name; results have them since version 1.1.0."""
        result = decode(self.result, _result_decoder, "cached result")
        return {interface.name: interface.pci for interface in result.interfaces or () if interface.pci}

    def stdin(self, types: Collection[str]) -> bytes | None:
        """Return the configuration that a plugin of one of these types got on ADD, if there is one.

        The results of the plugins before it are unknown, so that `prevResult` is an empty one if there were
        any.
        """
        subject = f"cached configuration of {self.network_name}"
        fields = decode(self.config, _fields_decoder, subject)
        plugins = (
            decode(fields["plugins"], _cached_plugins_decoder, subject) if "plugins" in fields else [fields]
        )
        for number, plugin in enumerate(plugins):
            if decode(plugin.get("type", _NULL), _type_decoder, f"{subject}: type") in types:
                return self._stdin(plugin, fields.get("cniVersion", _NULL), chained=number > 0)
        return None

    def _stdin(self, plugin: dict[str, msgspec.Raw], version: msgspec.Raw, *, chained: bool) -> bytes:
        capabilities = decode(plugin.get("capabilities", _EMPTY), _flags_decoder, "capabilities")
        runtime_config = {
            name: value for name, value in self.capability_args.items() if capabilities.get(name)
        }
        if POD_ANNOTATIONS in self.capability_args:  # kept whether our part of the list asked for it or not
            runtime_config[POD_ANNOTATIONS] = self.capability_args[POD_ANNOTATIONS]
        added: dict[str, object] = {
            "name": self.network_name,
            "cniVersion": version,
            "runtimeConfig": runtime_config,
        }
        if chained:
            added["prevResult"] = {}
        return msgspec.json.encode({**plugin, **added})


_decoder = msgspec.json.Decoder(CachedAttachment)
_result_decoder = msgspec.json.Decoder(_Result)


def decode_cached(data: bytes) -> CachedAttachment:
    """Parse a file; MalformedError when it is another's, or of another version."""
    cached = decode(data, _decoder, "cached attachment")
    if cached.kind != KIND:
        msg = f"cached attachment: kind is {cached.kind}, wanted {KIND}"
        raise MalformedError(msg)
    return cached
