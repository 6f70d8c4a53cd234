"""ConfigureVfs on a pretended machine: one setting after the other, as netlink hands them to a driver.

Source: Linux `net/core/rtnetlink.c` (do_setvfinfo) and the checks that drivers have in common, 6.1.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

from k8s_rdma.core.options import LinkType, Setting, VlanProto
from k8s_rdma.core.step import VfRef
from k8s_rdma.errors import KernelError
from k8s_rdma.sim.fake_function import HOST

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.core.step import ConfigureVfs, VfConfig, Vlan
    from k8s_rdma.sim.fake_function import FakePf, Function
    from k8s_rdma.sim.fake_machine import FakeMachine

_MAX_VLAN, _MAX_QOS = 4094, 7


def configure(machine: FakeMachine, step: ConfigureVfs) -> Iterator[None]:
    """Make these settings hold; yields before every change, and makes none that holds already.

    KernelError, and nothing is set, when a VF is unknown or the driver has no means for a setting.
    """
    functions = [machine.function(VfRef(step.pf, config.index)) for config in step.configs]
    for config in step.configs:
        _check(machine.pfs[step.pf], config)
    for function, config in zip(functions, step.configs, strict=True):
        yield from _set(function, _with_node_guid(config))
        if config.guid and function.is_netdev and function.device.place == HOST:
            function.device.mac = function.own_mac()  # bound anew


def _set(function: Function, config: VfConfig) -> Iterator[None]:
    settings = function.settings
    for each in fields(config):
        value = getattr(config, each.name)
        if each.name == "index" or value is None or getattr(settings, each.name) == value:
            continue
        yield
        setattr(settings, each.name, value)


def _with_node_guid(config: VfConfig) -> VfConfig:
    return replace(config, node_guid=config.node_guid or config.guid)


def _check(pf: FakePf, config: VfConfig) -> None:
    for setting, words in _asked(config):
        if setting not in pf.taken():
            msg = f"VF {config.index} of PF {pf.pci}: {words}: {pf.driver} has no means for it"
            raise KernelError(msg)
    fault = _fault(pf, config)
    if fault:
        msg = f"VF {config.index} of PF {pf.pci}: {fault}"
        raise KernelError(msg)


def _asked(config: VfConfig) -> Iterator[tuple[Setting, str]]:
    """What of a driver the settings need, and the words for that."""
    if config.vlan is not None:
        yield from _asked_of_vlan(config.vlan)
    for setting, value in {
        Setting.MAC: config.mac,
        Setting.TRUST: config.trust,
        Setting.SPOOF_CHECK: config.spoof_check,
        Setting.LINK_STATE: config.link_state,
        Setting.GUID: config.guid,
    }.items():
        if value is not None:
            yield setting, f"{setting} {value}"


def _asked_of_vlan(vlan: Vlan) -> Iterator[tuple[Setting, str]]:
    yield Setting.VLAN, f"VLAN {vlan.id}"
    if vlan.qos:
        yield Setting.QOS, f"QoS {vlan.qos}"
    if vlan.proto is not VlanProto.DOT1Q:
        yield Setting.VLAN_PROTO, f"VLAN protocol {vlan.proto}"


def _fault(pf: FakePf, config: VfConfig) -> str:
    """What no driver takes, in words; empty when it does."""
    vlan = config.vlan
    if vlan is not None and not (0 <= vlan.id <= _MAX_VLAN and 0 <= vlan.qos <= _MAX_QOS):
        return f"VLAN {vlan.id} with QoS {vlan.qos}: a VLAN is 0 to {_MAX_VLAN}, QoS 0 to {_MAX_QOS}"
    if config.mac is not None and int(config.mac[:2], 16) & 1:
        return f"MAC {config.mac}: a multicast address"
    if config.guid is not None and pf.link_type is not LinkType.INFINIBAND:
        return f"GUID {config.guid}: its link is {pf.link_type}"
    return ""
