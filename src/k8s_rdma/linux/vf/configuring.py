"""What a PF holds for its VFs besides rates: written where it differs, in one message, and read back."""

from __future__ import annotations

import errno
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from k8s_rdma.core.options import Setting, VlanProto
from k8s_rdma.core.vf_config import shown
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.discovery.vf_settings import NOT_TOLD, from_netlink
from k8s_rdma.linux.driver_settings import explain_setting
from k8s_rdma.linux.netlink import vf_config
from k8s_rdma.linux.netlink.socket import NetlinkError
from k8s_rdma.linux.netlink.vf_config import VfSetting
from k8s_rdma.linux.vf.readback import written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from k8s_rdma.core.kernel import PfState, Vf
    from k8s_rdma.core.step import ConfigureVfs, VfConfig, Vlan
    from k8s_rdma.linux.discovery.queries import VfInfo

BUSY_S = 3.0
"""For a driver that is still resetting the VF after the setting before; ice itself waits up to 0.8 s."""

_POLL_S = 0.1
_BUSY = frozenset({errno.EAGAIN, errno.EBUSY})
_FLAGS = ("trust", "spoof_check")
NO_GUID = "00:00:00:00:00:00:00:00"


class Difference(NamedTuple):
    """What is to be set: what it takes of a driver, how it is set, and what was found, in words."""

    kind: Setting
    setting: VfSetting
    found: str


def configure_vfs(
    step: ConfigureVfs,
    pf: PfState,
    *,
    write: Callable[[Sequence[VfSetting]], None],
    read: Callable[[], Iterable[VfInfo]],
) -> PfState:
    """Have a PF hold these settings; returns it with those of all its VFs as they were read back.

    pf: as last looked at; what holds already is not written. write: as `vf_config.set_vfs` for its netdev, of
    all settings at once. read: as `vf_infos`, called once when nobody else changes anything.
    KernelError names VF, setting, what was wanted and found, and the driver; settings before one that is
    refused are made.
    """
    check(step, pf)
    now = written(
        pf,
        differing=partial(differing, step),
        write=partial(write_to, pf, write),
        read=lambda: told(step, pf, read()),
    )
    require(step, now)
    return now


def check(step: ConfigureVfs, pf: PfState) -> None:
    """KernelError for what the PF's driver has no means for."""
    for refused in differing(step, pf):
        if refused.kind not in pf.takes:
            msg = f"{refused.setting.words}: {pf.driver} has no means for it (found {refused.found})"
            raise KernelError(msg)


def require(step: ConfigureVfs, now: PfState) -> None:
    """KernelError for what was read back and is not what was set."""
    for wrong in differing(step, now):
        msg = f"set {wrong.setting.words}, read back {wrong.found or 'nothing'}"
        raise KernelError(msg, details=f"{now.driver} refused nothing, and does not hold it")


def told(step: ConfigureVfs, pf: PfState, infos: Iterable[VfInfo]) -> PfState:
    """The PF with what it tells; what it does not tell as it was just set."""
    return _supplemented(step, with_settings(pf, infos))


def with_settings(pf: PfState, infos: Iterable[VfInfo]) -> PfState:
    """The PF with what it tells of its VFs; those that it tells nothing of are left out."""
    told = {info.index: from_netlink(info) for info in infos}
    changed = []
    for vf in pf.vfs:
        if vf.index in told:
            now = told[vf.index]
            fields: dict[str, Any] = {
                name: getattr(now, name)
                for name in ("vlan", "qos", "vlan_proto", "trust", "spoof_check", "link_state", "node_guid")
            }
            changed.append(replace(vf, admin_mac=now.mac, **fields))
    return replace(pf, vfs=tuple(changed))


def differences(pf: PfState, vf: Vf, config: VfConfig) -> Iterator[Difference]:
    """What has to be set for a VF to be as `config` says, in an order that every driver takes.

    A spoof check is on when the MAC is there that it checks for, and off before that is taken back
    (`mlx4_set_vf_mac`, drivers/net/ethernet/mellanox/mlx4/cmd.c).
    """
    found = list(_of_vf(vf, config))
    late = [each for each in found if each.kind is Setting.SPOOF_CHECK and config.spoof_check]
    for each in (*(each for each in found if each not in late), *late):
        words = each.setting.words.replace(f"VF {vf.index}:", f"{_named(pf, vf.index)}:", 1)
        yield each._replace(setting=VfSetting(words, each.setting.attribute))


def _of_vf(vf: Vf, config: VfConfig) -> Iterator[Difference]:
    number, wanted = config.index, shown(config)
    check, trust, state = config.spoof_check, config.trust, config.link_state
    if check is not None and vf.spoof_check != wanted["spoof_check"]:
        yield Difference(Setting.SPOOF_CHECK, vf_config.spoof_check(number, on=check), vf.spoof_check)
    if config.mac is not None and vf.admin_mac != config.mac:
        yield Difference(Setting.MAC, vf_config.mac(number, config.mac), vf.admin_mac)
    if config.vlan is not None:
        yield from _of_vlan(vf, config.vlan, wanted)
    if trust is not None and vf.trust != wanted["trust"]:
        yield Difference(Setting.TRUST, vf_config.trust(number, on=trust), vf.trust)
    if state is not None and vf.link_state != wanted["link_state"]:
        yield Difference(Setting.LINK_STATE, vf_config.link_state(number, state.value), vf.link_state)
    if config.guid is not None:
        yield from _of_guids(vf, config.guid, config.node_guid or config.guid)


def _of_vlan(vf: Vf, vlan: Vlan, wanted: Mapping[str, Any]) -> Iterator[Difference]:
    if all(getattr(vf, name) == wanted[name] for name in ("vlan", "qos", "vlan_proto")):
        return
    kind = Setting.VLAN
    if vlan.proto is not VlanProto.DOT1Q:
        kind = Setting.VLAN_PROTO
    elif vlan.qos:
        kind = Setting.QOS
    found = f"VLAN {vf.vlan}, QoS {vf.qos}, {vf.vlan_proto}"
    yield Difference(kind, vf_config.vlan(vf.index, vlan.id, vlan.qos, vlan.proto.value), found)


def _of_guids(vf: Vf, port: str, node: str) -> Iterator[Difference]:
    if (vf.node_guid or NO_GUID) != node:
        yield Difference(Setting.GUID, vf_config.node_guid(vf.index, node), vf.node_guid)
    if (vf.admin_mac or NO_GUID) != port:
        yield Difference(Setting.GUID, vf_config.port_guid(vf.index, port), vf.admin_mac)


def differing(step: ConfigureVfs, pf: PfState) -> list[Difference]:
    """What has to be set for the step to hold; see `differences`."""
    return [each for config in step.configs for each in differences(pf, _vf(pf, config.index), config)]


def _supplemented(step: ConfigureVfs, pf: PfState) -> PfState:
    """With what is not told (GUIDs: before Linux 5.5) as it was just set: nobody knows better."""
    wanted: Mapping[int, VfConfig] = {config.index: config for config in step.configs}

    def believed(vf: Vf) -> Vf:
        if vf.index not in wanted:
            return vf
        config, as_set = wanted[vf.index], shown(wanted[vf.index])
        untold = {name: as_set[name] for name in _FLAGS if name in as_set and getattr(vf, name) == NOT_TOLD}
        if config.guid is not None and not vf.admin_mac:
            untold |= {"admin_mac": config.guid, "node_guid": config.node_guid or config.guid}
        return replace(vf, **untold)

    return replace(pf, vfs=tuple(map(believed, pf.vfs)))


def write_to(pf: PfState, write: Callable[[Sequence[VfSetting]], None], wanted: Sequence[Difference]) -> None:
    """Write them; KernelError with what the driver means by its refusal."""
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            write([each.setting for each in wanted])
        except NetlinkError as error:
            if error.errno in _BUSY and time.monotonic() < deadline:
                time.sleep(_POLL_S)
                continue
            raise KernelError(str(error), details=explain_setting(pf.driver, error.errno)) from error
        return


def _vf(pf: PfState, index: int) -> Vf:
    found = next((vf for vf in pf.vfs if vf.index == index), None)
    if found is None:
        msg = f"{_named(pf, index)}: unknown: {pf.name} tells of {len(pf.vfs)} VFs"
        raise KernelError(msg)
    return found


def _named(pf: PfState, index: int) -> str:
    return f"VF {index} of PF {pf.pci} ({pf.name})"
