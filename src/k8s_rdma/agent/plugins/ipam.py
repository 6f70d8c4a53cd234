"""Calls of the node's IPAM plugins and delegates.

Each interface is a call of its own under its own `CNI_IFNAME`, so that no two of them share a lease. The call
has the highest common version; its output is converted, whatever version the runtime wants.

Up to `MAX_PARALLEL` calls of a pod run at a time. So interfaces may get addresses in any order; no plugin
promises an order either, and host-local reuses freed addresses late. A network with a single address gives an
interface a certain one.

A delegate is a whole CNI plugin that this one calls to give pods their ordinary interface.

It gets the configuration object `delegate`, and the CNI variables of the runtime. If it does not know the
runtime's version it is called in its own newest, and its output is converted.
Source: CNI specification 1.1.0, section 4 "Plugin delegation".
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from k8s_rdma.agent.plugins.called_plugins import CalledPlugins, delete_by
from k8s_rdma.agent.plugins.execution import NoVerbError, Plugins, PluginTarget, PluginTimeoutError, target_of
from k8s_rdma.errors import K8sRdmaError, MalformedError, Reason
from k8s_rdma.wire.cni_result import SINCE_CHECK, SINCE_GC, convert
from k8s_rdma.wire.ipam_result import IpamResult, decode_ipam_result
from k8s_rdma.wire.plugin_config import PER_NODE, in_blocks, network_of, spaces_of, stdin_of, version_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from k8s_rdma.agent.plugins.address_blocks import AddressBlocks
    from k8s_rdma.core.ledger import DelegatedPlugin, Receipt
    from k8s_rdma.core.step import Route

MAX_PARALLEL = 4
"""Calls of a pod at a time: a plugin is a process of some 10 ms, or waits for a server; host-local's wait for
one another."""


class IpamPlugins:
    """Leases addresses for the interfaces of receipts, and gives them back."""

    def __init__(self, plugins: Plugins, blocks: AddressBlocks | None = None) -> None:
        """Note the sources. blocks: those of this node, if the agent has credentials for them."""
        self._plugins = plugins
        self._blocks = blocks

    def require(self, ipams: Iterable[DelegatedPlugin]) -> None:
        """Raise K8sRdmaError when one of them is not on this node, or needs credentials for its block.

        Called before a claim.
        """
        for ipam in ipams:
            self._plugins.require(ipam)
            if self._blocks is None and spaces_of(ipam.netconf):
                msg = (
                    f"network configuration: ipam.{PER_NODE}: nodes share a subnet by Leases, and the agent "
                    "has no credentials for the API server: set inCluster or kubeconfig, or rangeStart and "
                    "rangeEnd on each node"
                )
                raise K8sRdmaError(msg, reason=Reason.INVALID_NETCONF)

    def has_calls(self, receipt: Receipt) -> bool:
        """Report whether any interface of a receipt gets addresses."""
        return bool(_plugins_of(receipt))

    async def add(self, receipt: Receipt, answered: set[str] | None = None) -> dict[str, IpamResult]:
        """Lease addresses. Returns results by interface, without interfaces that do not get any.

        After a failure no further call begins, and those under way end by themselves; `delete` gives their
        leases back. answered: collects the interfaces whose call did not fail.
        """
        calls = _plugins_of(receipt)
        stdins = await self._stdins(calls.values())
        results: dict[str, IpamResult] = {}

        async def lease(ifname: str, ipam: DelegatedPlugin) -> None:
            stdout = await self._plugins.run(ipam, "ADD", stdins[ipam], target_of(receipt, ifname))
            if answered is not None:
                answered.add(ifname)
            results[ifname] = _result(stdout, ipam, ifname)

        for _, error in await _run_each(calls, lease, go_on=False):
            raise error
        _refuse_twice(calls, results)
        return {ifname: results[ifname] for ifname in calls}

    async def delete(self, receipt: Receipt, now: CalledPlugins | None = None) -> None:
        """Give every interface's addresses back; tries all, and raises one error that names all failures.

        A plugin that does not answer is not called again, as the container's next call waits for this one.
        now: the plugins of the current configuration; tried if an interface's ADD and DEL both failed by the
            former one. One with a mistake would hold up its pods for ever, also when it is corrected.
        """
        calls = _plugins_of(receipt)
        networks = {interface.ifname: interface.options.network for interface in receipt.interfaces}
        silent: dict[DelegatedPlugin, PluginTimeoutError] = {}

        async def delete_one(ifname: str, ipam: DelegatedPlugin) -> None:
            if ipam in silent:
                raise silent[ipam]
            try:
                stdin = stdin_of(ipam.netconf, await self._plugins.negotiate(ipam))
                await self._plugins.run(ipam, "DEL", stdin, target_of(receipt, ifname))
            except PluginTimeoutError as error:
                silent[ipam] = error
                raise

        async def release(ifname: str, ipam: DelegatedPlugin) -> None:
            plugin = now.ipam_in(networks[ifname]) if now and ifname in receipt.unanswered else ipam
            await delete_by(ipam, plugin, partial(delete_one, ifname))

        problems = await _run_each(calls, release)
        if problems:
            names = ", ".join(ifname for ifname, _ in problems)
            container = receipt.attachment.container
            msg = f"container {container}: addresses of {names} not given back: {problems[0][1]}"
            details = "; ".join(dict.fromkeys(f"{error} {error.details}".strip() for _, error in problems))
            raise K8sRdmaError(msg, reason=Reason.IPAM_FAILURE, details=details)

    async def check(self, receipt: Receipt, prev_results: Mapping[str, bytes]) -> None:
        """Call CHECK, where the version has it (0.4.0). K8sRdmaError when a plugin reports a difference.

        A plugin without CHECK counts as fine. CRI-O calls CHECK for every pod that it starts.
        prev_results: an IPAM result for each interface, of its ADD; without one if that is not known.
        """

        async def verify(ifname: str, ipam: DelegatedPlugin) -> None:
            version = await self._plugins.negotiate(ipam)
            if version in SINCE_CHECK:
                document = prev_results.get(ifname, b"")
                prev_result = (
                    convert(document, version, "network configuration: prevResult") if document else b""
                )
                stdin = stdin_of(ipam.netconf, version, prev_result=prev_result)
                with suppress(NoVerbError):
                    await self._plugins.run(ipam, "CHECK", stdin, target_of(receipt, ifname))

        for _, error in await _run_each(_plugins_of(receipt), verify, go_on=False):
            raise error

    async def collect(self, ipams: Iterable[DelegatedPlugin], kept_receipts: Iterable[Receipt]) -> None:
        """Call GC: plugins free leases that belong to no interface of ours.

        ipams: those of the network that is collected. kept_receipts: every receipt that is left, those of an
        ADD under way too. A plugin gets our interfaces' names, which the runtime does not know. Only a
        plugin that supports GC is called: others would ignore the list, or fail on it.
        """
        receipts = tuple(kept_receipts)
        for ipam in ipams:
            version = await self._plugins.negotiate(ipam)
            if version in SINCE_GC:
                stdin = stdin_of(ipam.netconf, version, valid=_valid(receipts, ipam))
                await self._plugins.run(ipam, "GC", stdin)

    async def _stdins(self, ipams: Iterable[DelegatedPlugin]) -> dict[DelegatedPlugin, bytes]:
        """Each plugin's input for ADD, with this node's blocks as its ranges.

        The other verbs have the whole subnet: a lease is found by its container, also one of a former block.
        """
        distinct = dict.fromkeys(ipams)
        return {
            ipam: stdin_of(await self._narrowed(ipam.netconf), await self._plugins.negotiate(ipam))
            for ipam in distinct
        }

    async def _narrowed(self, netconf: bytes) -> bytes:
        spaces = spaces_of(netconf)
        if not spaces or self._blocks is None:
            return netconf
        return in_blocks(netconf, {space: await self._blocks.block(space) for space in spaces})


def addressing(results: Mapping[str, IpamResult]) -> dict[str, tuple[tuple[str, ...], tuple[Route, ...]]]:
    """Convert results for `core.plan`; a route without a gateway uses its address's."""
    return {ifname: (result.addresses, result.routes) for ifname, result in results.items()}


def _plugins_of(receipt: Receipt) -> dict[str, DelegatedPlugin]:
    """Map interfaces that get addresses to their IPAM plugins."""
    found = ((interface.ifname, receipt.ipam_of(interface)) for interface in receipt.interfaces)
    return {ifname: ipam for ifname, ipam in found if ipam is not None}


async def _run_each(
    plugins: Mapping[str, DelegatedPlugin],
    work: Callable[[str, DelegatedPlugin], Awaitable[None]],
    *,
    go_on: bool = True,
) -> list[tuple[str, K8sRdmaError]]:
    """Run work for each interface, several at a time. Returns failures. go_on: begin more after a failure."""
    waiting = iter(plugins.items())
    failed: list[tuple[str, K8sRdmaError]] = []

    async def run_some() -> None:
        for ifname, ipam in waiting:
            if failed and not go_on:
                return
            try:
                await work(ifname, ipam)
            except K8sRdmaError as error:
                failed.append((ifname, error))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(min(MAX_PARALLEL, len(plugins))):
            tasks.create_task(run_some())
    return failed


def _result(stdout: bytes, ipam: DelegatedPlugin, ifname: str) -> IpamResult:
    try:
        result = decode_ipam_result(stdout)
    except MalformedError as error:
        msg = f"plugin {ipam.plugin}: ADD of {ifname}: {error}"
        raise MalformedError(msg, reason=error.reason) from error
    if not result.ips:
        msg = (
            f"plugin {ipam.plugin}: ADD of {ifname}: it gave no address; without `ipam`, or with l2enable, "
            "interfaces come up without one"
        )
        raise K8sRdmaError(msg, reason=Reason.IPAM_FAILURE)
    return result


def _refuse_twice(plugins: Mapping[str, DelegatedPlugin], results: Mapping[str, IpamResult]) -> None:
    """Refuse one address for two interfaces of a network: each would answer for the other."""
    holders: dict[tuple[DelegatedPlugin, str], str] = {}
    for ifname, ipam in plugins.items():
        for ip in results[ifname].ips:
            holder = holders.setdefault((ipam, ip.address.partition("/")[0]), ifname)
            if holder != ifname:
                msg = (
                    f"plugin {ipam.plugin}: it gave {ip.address} to both {holder} and {ifname}; "
                    "a static address needs a network with one interface in the pod"
                )
                raise K8sRdmaError(msg, reason=Reason.IPAM_FAILURE)


def _valid(receipts: Iterable[Receipt], ipam: DelegatedPlugin) -> list[tuple[str, str]]:
    """List a plugin's leases of receipts in its network: container and interface."""
    network = network_of(ipam.netconf)
    return [
        (receipt.attachment.container, ifname)
        for receipt in receipts
        for ifname, theirs in _plugins_of(receipt).items()
        if theirs.plugin == ipam.plugin and network_of(theirs.netconf) == network
    ]


class Delegate:
    """Calls delegates. A `prev_result` has the runtime's version, and the delegate's interfaces alone."""

    def __init__(self, plugins: Plugins) -> None:
        """plugins: run the delegates."""
        self._plugins = plugins

    def require(self, plugin: DelegatedPlugin) -> None:
        """Raise K8sRdmaError when the plugin is not on this node."""
        self._plugins.require(plugin)

    async def add(self, plugin: DelegatedPlugin, target: PluginTarget) -> bytes:
        """Call ADD. Returns the result in the version of the recorded configuration.

        After a failure, `delete` is to be called as after any ADD (section 2, "ADD").
        """
        version = version_of(plugin.netconf)
        stdin = stdin_of(plugin.netconf, await self._plugins.negotiate(plugin, version))
        stdout = await self._plugins.run(plugin, "ADD", stdin, target)
        return convert(stdout, version, f"result of plugin {plugin.plugin}")

    async def delete(self, plugin: DelegatedPlugin, target: PluginTarget, prev_result: bytes = b"") -> None:
        """Call DEL, after a successful or failed ADD."""
        version = await self._plugins.negotiate(plugin, version_of(plugin.netconf))
        await self._plugins.run(plugin, "DEL", _stdin(plugin, version, prev_result), target)

    async def check(self, plugin: DelegatedPlugin, target: PluginTarget, prev_result: bytes) -> None:
        """Call CHECK, where the version has it (0.4.0). K8sRdmaError when the plugin reports a difference."""
        version = await self._plugins.negotiate(plugin, version_of(plugin.netconf))
        if version in SINCE_CHECK:
            await self._plugins.run(plugin, "CHECK", _stdin(plugin, version, prev_result), target)

    async def status(self, plugin: DelegatedPlugin) -> None:
        """Call STATUS. K8sRdmaError when the plugin could not serve an ADD, or is not on this node.

        A plugin without STATUS (before 1.1.0), or called in an older version, is not called.
        """
        version = await self._plugins.negotiate(plugin, version_of(plugin.netconf))
        if version in SINCE_GC:
            await self._plugins.run(plugin, "STATUS", stdin_of(plugin.netconf, version))

    async def collect(self, plugin: DelegatedPlugin, valid: Iterable[tuple[str, str]]) -> None:
        """Call GC, if the version has it. valid: container and interface of the runtime's attachments."""
        version = await self._plugins.negotiate(plugin, version_of(plugin.netconf))
        if version in SINCE_GC:
            await self._plugins.run(plugin, "GC", stdin_of(plugin.netconf, version, valid=valid))


def _stdin(plugin: DelegatedPlugin, version: str, prev_result: bytes) -> bytes:
    converted = convert(prev_result, version, "prevResult") if prev_result else b""
    return stdin_of(plugin.netconf, version, prev_result=converted)


@dataclass(frozen=True, slots=True, kw_only=True)
class CniPlugins:
    """The other plugins of a node: IPAM plugins and delegates."""

    ipam: IpamPlugins
    delegate: Delegate
