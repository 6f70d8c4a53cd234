"""The plugins of a CNI configuration that a call runs: for addresses, or as a delegate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from k8s_rdma.core.ledger import DelegatedPlugin
from k8s_rdma.errors import K8sRdmaError, MalformedError
from k8s_rdma.wire.cni_request import (
    CniEnvironment,
    NetConf,
    decode_fields,
    decode_netconf,
    plugin_type,
    refuse,
)
from k8s_rdma.wire.json_faults import shown
from k8s_rdma.wire.plugin_config import (
    address_spaces,
    delegate_config,
    in_network_of,
    ipam_config,
    ipam_network,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class CalledPlugins:
    """The IPAM plugins and the delegate of a call, as in `core.ledger.Receipt`."""

    ipam: DelegatedPlugin | None = None
    ipams: tuple[tuple[str, DelegatedPlugin | None], ...] = ()
    delegate: DelegatedPlugin | None = None

    @property
    def all_ipams(self) -> tuple[DelegatedPlugin, ...]:
        """The IPAM plugins of all networks."""
        return tuple(ipam for ipam in (self.ipam, *dict(self.ipams).values()) if ipam)

    def ipam_in(self, network: str) -> DelegatedPlugin | None:
        """Select the IPAM plugin of an interface by the network that it names, which may be empty."""
        return dict(self.ipams).get(network, self.ipam)


def plugins_of_now(stdin: bytes, call: CniEnvironment) -> CalledPlugins | None:
    """Read the plugins of a DEL's configuration; None if it is invalid, since no DEL may depend on it."""
    try:
        conf = decode_netconf(stdin, strict=False)
        return called_plugins(stdin, conf, call, chained=conf.chained)
    except MalformedError:
        return None


async def delete_by(
    recorded: DelegatedPlugin,
    now: DelegatedPlugin | None,
    delete: Callable[[DelegatedPlugin], Awaitable[None]],
) -> None:
    """Call DEL with the recorded configuration; if that fails, with the current one.

    now: the recorded one itself if its ADD succeeded. None if the current configuration names no
        plugin: then the failure stands, since the failed plugin may have leased all the same, and no other
        call would end that lease. The current plugin is called with the recorded network: a DEL does not say
        whether it is chained, and under another name the DEL of an unknown lease succeeds.
    """
    try:
        await delete(recorded)
    except K8sRdmaError:
        plugin = now and replace(
            now, cni_args=recorded.cni_args, netconf=in_network_of(recorded.netconf, now.netconf)
        )
        if plugin is None or plugin == recorded:
            raise
        await delete(plugin)


def called_plugins(stdin: bytes, conf: NetConf, call: CniEnvironment, *, chained: bool) -> CalledPlugins:
    """Read the plugins of a configuration; MalformedError (`INVALID_NETCONF`) names the key.

    chained: whether another plugin gives addresses under the network's name, so that ours are apart.
    """
    fields = decode_fields(stdin)
    delegate = plugin_type(conf.delegate, "delegate")
    if delegate == conf.type:
        refuse("delegate.type", f"{shown(delegate)} is this very plugin")

    def plugin(name: str, netconf: bytes) -> DelegatedPlugin:
        return DelegatedPlugin(plugin=name, netconf=netconf, cni_path=call.path, cni_args=call.raw_args)

    def ipam(document: msgspec.Raw, key: str, attachment: str = "") -> DelegatedPlugin | None:
        name = plugin_type(document, key)
        if name is None:
            return None
        address_spaces(document, key)
        network = ipam_network(conf.name, chained=chained or delegate is not None, network=attachment)
        return plugin(name, ipam_config(fields, document, network))

    return CalledPlugins(
        ipam=None if conf.l2enable else ipam(conf.ipam, "ipam"),
        ipams=tuple(
            (name, None if network_conf.l2enable else ipam(network_conf.ipam, f"networks.{name}.ipam", name))
            for name, network_conf in conf.networks.items()
        ),
        delegate=None if delegate is None else plugin(delegate, delegate_config(fields, conf.delegate)),
    )
