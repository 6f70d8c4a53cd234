"""What a PF holds for a VF besides rates: as an interface's options ask for it, and as a VF shows it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from k8s_rdma.core.options import LinkState, VlanProto
from k8s_rdma.core.step import VfConfig, Vlan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.core.kernel import Vf
    from k8s_rdma.core.options import InterfaceOptions

_NO_GUID = "00:00:00:00:00:00:00:00"
_GUID_CHARACTERS = len(_NO_GUID)

_LINK_STATES = {LinkState.AUTO: "Follow", LinkState.ENABLE: "Up", LinkState.DISABLE: "Down"}
_FLAGS = {True: "ON", False: "OFF"}


def asked_config(index: int, options: InterfaceOptions) -> VfConfig | None:
    """What a PF shall hold for the VF of that index; None when nothing is asked for."""
    vlan = options.vlan
    config = VfConfig(
        index=index,
        mac=options.mac,
        vlan=None if vlan is None else Vlan(vlan, options.qos or 0, options.vlan_proto or VlanProto.DOT1Q),
        trust=options.trust,
        spoof_check=options.spoof_check,
        link_state=options.link_state,
        guid=options.guid,
    )
    return None if config == VfConfig(index=index) else config


def present_config(vf: Vf, config: VfConfig) -> VfConfig:
    """What the PF holds for a VF now of all that `config` sets.

    What its driver does not tell is taken to be what a new VF has: not trusted, source addresses checked, the
    port's link; so that no pod finds a VF as permissive as another one was allowed to have it.
    """
    present = VfConfig(
        index=vf.index,
        mac=vf.admin_mac or vf.mac,
        vlan=Vlan(vf.vlan, vf.qos, _proto(vf)),
        trust=vf.trust == _FLAGS[True],
        spoof_check=vf.spoof_check != _FLAGS[False],
        link_state=_link_state(vf),
        guid=_guid(vf),
    )
    untouched: dict[str, Any] = {
        field.name: None for field in fields(present) if getattr(config, field.name) is None
    }
    untouched["node_guid"] = (config.guid and vf.node_guid) or None
    return replace(present, **untouched)


def shown(config: VfConfig) -> Mapping[str, Any]:
    """The fields of a `Vf` whose PF holds this, as an observation tells them; those that it sets."""
    result: dict[str, Any] = {}
    if config.mac is not None:
        result["admin_mac"] = config.mac
    if config.vlan is not None:
        tagged = config.vlan.id or config.vlan.qos
        proto = config.vlan.proto.value if tagged else "N/A"
        result |= {"vlan": config.vlan.id, "qos": config.vlan.qos, "vlan_proto": proto}
    if config.trust is not None:
        result["trust"] = _FLAGS[config.trust]
    if config.spoof_check is not None:
        result["spoof_check"] = _FLAGS[config.spoof_check]
    if config.link_state is not None:
        result["link_state"] = _LINK_STATES[config.link_state]
    return result


def _proto(vf: Vf) -> VlanProto:
    return VlanProto.DOT1AD if vf.vlan_proto == VlanProto.DOT1AD else VlanProto.DOT1Q


def _link_state(vf: Vf) -> LinkState:
    return next((state for state, name in _LINK_STATES.items() if name == vf.link_state), LinkState.AUTO)


def _guid(vf: Vf) -> str:
    """The port GUID: the last eight octets of an InfiniBand interface's address (RFC 4391, section 9.1.1)."""
    address = max(vf.admin_mac, vf.mac, key=len)
    return address[-_GUID_CHARACTERS:] if len(address) >= _GUID_CHARACTERS else _NO_GUID
