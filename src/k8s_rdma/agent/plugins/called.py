"""The other plugins that a call of ours calls, by its network configuration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from k8s_rdma.core.ledger import DelegatedPlugin
from k8s_rdma.errors import K8sRdmaError, MalformedError
from k8s_rdma.wire.json import shown
from k8s_rdma.wire.netconf import decode_fields, decode_netconf, plugin_type, refuse
from k8s_rdma.wire.plugin_config import delegate_config, in_network_of, ipam_config, ipam_network

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import msgspec

    from k8s_rdma.wire.cni_environment import CniEnvironment
    from k8s_rdma.wire.netconf import NetConf


@dataclass(frozen=True, slots=True, kw_only=True)
class CalledPlugins:
    """As in `core.ledger.Receipt`: what gives addresses, and what gives pods their ordinary interface."""

    ipam: DelegatedPlugin | None = None
    ipams: tuple[tuple[str, DelegatedPlugin | None], ...] = ()
    delegate: DelegatedPlugin | None = None

    @property
    def all_ipams(self) -> tuple[DelegatedPlugin, ...]:
        """What gives addresses in any of the networks."""
        return tuple(each for each in (self.ipam, *dict(self.ipams).values()) if each)

    def ipam_in(self, network: str) -> DelegatedPlugin | None:
        """What gives addresses to an interface that names this network, or none by an empty name."""
        return dict(self.ipams).get(network, self.ipam)


def plugins_of_now(stdin: bytes, call: CniEnvironment) -> CalledPlugins | None:
    """Those of a DEL's configuration; None where that cannot be read, on which no DEL may depend."""
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
    """DEL by the recorded configuration; where that fails, by another one of now.

    now: the recorded one itself where something is held by it. None where nothing is named: then the failure
        stands, since a plugin that failed may have leased all the same, and nobody else would end that. It
        would have leased in the recorded network, which a DEL, that is not told whether it is chained, can
        not know: by another name the DEL of a lease that nobody knows succeeds.
    """
    try:
        await delete(recorded)
    except K8sRdmaError:
        other = now and replace(
            now, cni_args=recorded.cni_args, netconf=in_network_of(recorded.netconf, now.netconf)
        )
        if other is None or other == recorded:
            raise
        await delete(other)


def called_plugins(stdin: bytes, conf: NetConf, call: CniEnvironment, *, chained: bool) -> CalledPlugins:
    """Read them; MalformedError (`INVALID_NETCONF`) names the key.

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
        network = ipam_network(conf.name, chained=chained or delegate is not None, network=attachment)
        return plugin(name, ipam_config(fields, document, network))

    return CalledPlugins(
        ipam=None if conf.l2enable else ipam(conf.ipam, "ipam"),
        ipams=tuple(
            (name, None if each.l2enable else ipam(each.ipam, f"networks.{name}.ipam", name))
            for name, each in conf.networks.items()
        ),
        delegate=None if delegate is None else plugin(delegate, delegate_config(fields, conf.delegate)),
    )
