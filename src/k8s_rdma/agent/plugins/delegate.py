"""A whole plugin that this one calls in its place: it gives pods their ordinary interface.

It gets the configuration object `delegate`, and of CNI's variables what the runtime gave us. Where it does
not know the runtime's version it is called in its own newest, and what it prints is converted.
Source: CNI specification 1.1.0, section 4 "Plugin delegation".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.agent.plugins.ipam import IpamPlugins
from k8s_rdma.wire.cni_result import SINCE_CHECK, SINCE_GC, convert
from k8s_rdma.wire.plugin_config import stdin_of, version_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from k8s_rdma.agent.plugins.runner import Plugins, Target
    from k8s_rdma.core.ledger import DelegatedPlugin


class Delegate:
    """Calls delegates; a `prev_result` is in the version of the runtime's call, and theirs alone."""

    def __init__(self, plugins: Plugins) -> None:
        """Nothing is run yet."""
        self._plugins = plugins

    def require(self, plugin: DelegatedPlugin) -> None:
        """K8sRdmaError when it is not on this node."""
        self._plugins.require(plugin)

    async def add(self, plugin: DelegatedPlugin, target: Target) -> bytes:
        """Its result, in the version that its recorded configuration asks for.

        After a failure, `delete` is to be called as after any ADD (section 2, "ADD").
        """
        wanted = version_of(plugin.netconf)
        stdin = stdin_of(plugin.netconf, await self._plugins.negotiate(plugin, wanted))
        stdout = await self._plugins.run(plugin, "ADD", stdin, target)
        return convert(stdout, wanted, f"result of plugin {plugin.plugin}")

    async def delete(self, plugin: DelegatedPlugin, target: Target, prev_result: bytes = b"") -> None:
        """Undo an ADD, whatever came of it."""
        version = await self._plugins.negotiate(plugin, version_of(plugin.netconf))
        await self._plugins.run(plugin, "DEL", _stdin(plugin, version, prev_result), target)

    async def check(self, plugin: DelegatedPlugin, target: Target, prev_result: bytes) -> None:
        """K8sRdmaError when it says that its attachment is not what it was; nobody is asked before 0.4.0."""
        version = await self._plugins.negotiate(plugin, version_of(plugin.netconf))
        if version in SINCE_CHECK:
            await self._plugins.run(plugin, "CHECK", _stdin(plugin, version, prev_result), target)

    async def status(self, plugin: DelegatedPlugin) -> None:
        """K8sRdmaError when it says that it could not serve an ADD, or is not there at all.

        One that knows no STATUS (before 1.1.0), or is called in an older version, is not asked.
        """
        version = await self._plugins.negotiate(plugin, version_of(plugin.netconf))
        if version in SINCE_GC:
            await self._plugins.run(plugin, "STATUS", stdin_of(plugin.netconf, version))

    async def collect(self, plugin: DelegatedPlugin, valid: Iterable[tuple[str, str]]) -> None:
        """GC, for one that knows it. valid: container and interface of the runtime's attachments."""
        version = await self._plugins.negotiate(plugin, version_of(plugin.netconf))
        if version in SINCE_GC:
            await self._plugins.run(plugin, "GC", stdin_of(plugin.netconf, version, valid=valid))


def _stdin(plugin: DelegatedPlugin, version: str, prev_result: bytes) -> bytes:
    before = convert(prev_result, version, "prevResult") if prev_result else b""
    return stdin_of(plugin.netconf, version, prev_result=before)


@dataclass(frozen=True, slots=True, kw_only=True)
class CniPlugins:
    """The other plugins of a node: those that give addresses, and those that give the ordinary interface."""

    ipam: IpamPlugins
    delegate: Delegate
