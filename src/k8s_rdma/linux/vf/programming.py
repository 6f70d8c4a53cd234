"""Rates and settings of a PF's VFs: check, write if they differ, read back both with one query."""

from __future__ import annotations

import errno
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from k8s_rdma.core.kernel import PfState, Vf, shown
from k8s_rdma.core.step import ConfigureVfs, ProgramVfs, SetRates, VfConfig, VfRate, Vlan, check_rates
from k8s_rdma.core.types import Setting, VlanProto
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.discovery.vf_settings import NOT_TOLD, from_netlink
from k8s_rdma.linux.drivers import explain, explain_setting, understood_max
from k8s_rdma.linux.netlink import sriov
from k8s_rdma.linux.netlink.socket import NetlinkError
from k8s_rdma.linux.netlink.sriov import VfSetting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from k8s_rdma.linux.netlink.queries import VfInfo


BUSY_S = 3.0
"""Time for a driver that is still resetting the VF after an earlier setting; ice itself waits up to 0.8 s."""
_POLL_S = 0.1
_BUSY = frozenset({errno.EAGAIN, errno.EBUSY})
_FLAGS = ("trust", "spoof_check")
NO_GUID = "00:00:00:00:00:00:00:00"
S = TypeVar("S")
W = TypeVar("W")

_ROUNDS = 2
"""The second round is for changes that others made since the last observation."""


def program_vfs(
    step: ProgramVfs,
    pf: PfState,
    *,
    write_rates: Callable[[Sequence[VfRate]], None],
    write_settings: Callable[[Sequence[VfSetting]], None],
    read: Callable[[], Sequence[VfInfo]],
) -> PfState:
    """Write rates and settings of a PF; returns the PF with both as read back for all its VFs.

    Arguments and errors as with `set_rates` and `configure_vfs`. Nothing is written when any part is not
    supported.
    """
    check_rates_of_vfs(step.rates, pf, present_rates(pf))
    check_settings(step.settings, pf)

    def differing(observed: PfState) -> list[VfRate | SettingDifference]:
        return [
            *differing_rates(step.rates, present_rates(observed)),
            *differing_settings(step.settings, observed),
        ]

    def write(desired: Sequence[VfRate | SettingDifference]) -> None:
        those_rates = [item for item in desired if isinstance(item, VfRate)]
        settings = [item for item in desired if not isinstance(item, VfRate)]
        if those_rates:
            write_rates_to(pf, write_rates, those_rates)
        if settings:
            write_settings_to(pf, write_settings, settings)

    def read_back() -> PfState:
        infos = read()
        return with_rates(with_read_back_settings(step.settings, pf, infos), rates_of(pf, infos))

    now = write_and_verify(pf, differing=differing, write=write, read=read_back)
    require_rates(step.rates, present_rates(now))
    require_settings(step.settings, now)
    return now


def configure_vfs(
    step: ConfigureVfs,
    pf: PfState,
    *,
    write: Callable[[Sequence[VfSetting]], None],
    read: Callable[[], Iterable[VfInfo]],
) -> PfState:
    """Write settings of VFs of a PF; returns the PF with the settings of all its VFs as read back.

    pf: as last observed; settings in effect are not written.
    write: as `sriov.set_vfs` for its netdev, with all settings at once.
    read: as `vf_infos`, called once unless others make changes.
    KernelError names VF, setting, desired and present value, and the driver; settings before a refused one
    are written.
    """
    check_settings(step, pf)
    now = write_and_verify(
        pf,
        differing=partial(differing_settings, step),
        write=partial(write_settings_to, pf, write),
        read=lambda: with_read_back_settings(step, pf, read()),
    )
    require_settings(step, now)
    return now


def set_rates(
    step: SetRates,
    pf: PfState,
    *,
    write: Callable[[Sequence[VfRate]], None],
    read: Callable[[], Iterable[VfInfo]],
    observed: Mapping[int, VfRate],
) -> dict[int, VfRate]:
    """Program rates of VFs of a PF; returns the rates of all its VFs as read back.

    observed: the rates of all its VFs as last observed.
    write: as `sriov.set_rates` for its netdev.
    read: as `vf_infos`, which holds the RTNL lock for 1-2 ms per VF; called once unless others make changes.
    KernelError, without a change, when a rate cannot be programmed; when the driver refuses one or reports
    another value, those before it are written.
    """
    check_rates_of_vfs(step, pf, observed)
    now = write_and_verify(
        observed,
        differing=partial(differing_rates, step),
        write=partial(write_rates_to, pf, write),
        read=lambda: rates_of(pf, read()),
    )
    require_rates(step, now)
    return dict(now)


class SettingDifference(NamedTuple):
    """A setting to write: the required support by the driver, the setting, the present value in words."""

    kind: Setting
    setting: VfSetting
    found: str


def check_settings(step: ConfigureVfs, pf: PfState) -> None:
    """Raise KernelError for a setting that the PF's driver does not support."""
    for refused in differing_settings(step, pf):
        if refused.kind not in pf.supported_settings:
            msg = f"{refused.setting.label}: {pf.driver} does not support it (found {refused.found})"
            raise KernelError(msg)


def require_settings(step: ConfigureVfs, now: PfState) -> None:
    """Raise KernelError when the values read back differ from those written."""
    for wrong in differing_settings(step, now):
        msg = f"set {wrong.setting.label}, read back {wrong.found or 'nothing'}"
        raise KernelError(msg, details=f"{now.driver} reported no error, but did not apply it")


def with_read_back_settings(step: ConfigureVfs, pf: PfState, infos: Iterable[VfInfo]) -> PfState:
    """Return the PF with the settings read back; those that it does not report are as just written."""
    return _supplemented(step, with_settings(pf, infos))


def with_settings(pf: PfState, infos: Iterable[VfInfo]) -> PfState:
    """Return the PF with the settings read back; VFs that it does not report are left out."""
    by_index = {info.index: from_netlink(info) for info in infos}
    changed = []
    for vf in pf.vfs:
        if vf.index in by_index:
            now = by_index[vf.index]
            fields: dict[str, Any] = {
                name: getattr(now, name)
                for name in ("vlan", "qos", "vlan_proto", "trust", "spoof_check", "link_state", "node_guid")
            }
            changed.append(replace(vf, admin_mac=now.mac, **fields))
    return replace(pf, vfs=tuple(changed))


def differences(pf: PfState, vf: Vf, config: VfConfig) -> Iterator[SettingDifference]:
    """Yield the settings to write for a VF to match `config`, in an order that every driver accepts.

    The spoof check is turned on after the MAC is set, and off before the MAC is reset (`mlx4_set_vf_mac`,
    drivers/net/ethernet/mellanox/mlx4/cmd.c).
    """
    found = list(_of_vf(vf, config))
    late = [
        difference for difference in found if difference.kind is Setting.SPOOF_CHECK and config.spoof_check
    ]
    for difference in (*(difference for difference in found if difference not in late), *late):
        label = difference.setting.label.replace(f"VF {vf.index}:", f"{_named(pf, vf.index)}:", 1)
        yield difference._replace(setting=VfSetting(label, difference.setting.attribute))


def _of_vf(vf: Vf, config: VfConfig) -> Iterator[SettingDifference]:
    number, desired = config.index, shown(config)
    check, trust, state = config.spoof_check, config.trust, config.link_state
    if check is not None and vf.spoof_check != desired["spoof_check"]:
        yield SettingDifference(Setting.SPOOF_CHECK, sriov.spoof_check(number, on=check), vf.spoof_check)
    if config.mac is not None and vf.admin_mac != config.mac:
        yield SettingDifference(Setting.MAC, sriov.mac(number, config.mac), vf.admin_mac)
    if config.vlan is not None:
        yield from _of_vlan(vf, config.vlan, desired)
    if trust is not None and vf.trust != desired["trust"]:
        yield SettingDifference(Setting.TRUST, sriov.trust(number, on=trust), vf.trust)
    if state is not None and vf.link_state != desired["link_state"]:
        yield SettingDifference(Setting.LINK_STATE, sriov.link_state(number, state.value), vf.link_state)
    if config.guid is not None:
        yield from _of_guids(vf, config.guid, config.node_guid or config.guid)


def _of_vlan(vf: Vf, vlan: Vlan, desired: Mapping[str, Any]) -> Iterator[SettingDifference]:
    if all(getattr(vf, name) == desired[name] for name in ("vlan", "qos", "vlan_proto")):
        return
    kind = Setting.VLAN
    if vlan.proto is not VlanProto.DOT1Q:
        kind = Setting.VLAN_PROTO
    elif vlan.qos:
        kind = Setting.QOS
    found = f"VLAN {vf.vlan}, QoS {vf.qos}, {vf.vlan_proto}"
    yield SettingDifference(kind, sriov.vlan(vf.index, vlan.id, vlan.qos, vlan.proto.value), found)


def _of_guids(vf: Vf, port: str, node: str) -> Iterator[SettingDifference]:
    if (vf.node_guid or NO_GUID) != node:
        yield SettingDifference(Setting.GUID, sriov.node_guid(vf.index, node), vf.node_guid)
    if (vf.admin_mac or NO_GUID) != port:
        yield SettingDifference(Setting.GUID, sriov.port_guid(vf.index, port), vf.admin_mac)


def differing_settings(step: ConfigureVfs, pf: PfState) -> list[SettingDifference]:
    """Return the settings that the step still has to write; see `differences`."""
    return [
        difference for config in step.configs for difference in differences(pf, _vf(pf, config.index), config)
    ]


def _supplemented(step: ConfigureVfs, pf: PfState) -> PfState:
    """Fill in settings that the PF does not report (GUIDs: before Linux 5.5) as they were just written."""
    desired: Mapping[int, VfConfig] = {config.index: config for config in step.configs}

    def believed(vf: Vf) -> Vf:
        if vf.index not in desired:
            return vf
        config, as_set = desired[vf.index], shown(desired[vf.index])
        untold = {name: as_set[name] for name in _FLAGS if name in as_set and getattr(vf, name) == NOT_TOLD}
        if config.guid is not None and not vf.admin_mac:
            untold |= {"admin_mac": config.guid, "node_guid": config.node_guid or config.guid}
        return replace(vf, **untold)

    return replace(pf, vfs=tuple(map(believed, pf.vfs)))


def write_settings_to(
    pf: PfState, write: Callable[[Sequence[VfSetting]], None], desired: Sequence[SettingDifference]
) -> None:
    """Write them; KernelError with an explanation of the driver's error."""
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            write([item.setting for item in desired])
        except NetlinkError as error:
            if error.errno in _BUSY and time.monotonic() < deadline:
                time.sleep(_POLL_S)
                continue
            raise KernelError(str(error), details=explain_setting(pf.driver, error.errno)) from error
        return


def _vf(pf: PfState, index: int) -> Vf:
    found = pf.vf(index)
    if found is None:
        msg = f"{_named(pf, index)}: unknown: {pf.name} reports {len(pf.vfs)} VFs"
        raise KernelError(msg)
    return found


def _named(pf: PfState, index: int) -> str:
    return f"VF {index} of PF {pf.pci} ({pf.name})"


def check_rates_of_vfs(step: SetRates, pf: PfState, observed: Mapping[int, VfRate]) -> None:
    """Raise KernelError for rates that cannot be programmed."""
    for rate in step.rates:
        if rate.index not in observed:
            msg = f"VF {rate.index} of PF {step.pf}: unknown: {pf.name} has {len(observed)} VFs"
            raise KernelError(msg)
    check_rates(step, ability=pf.rates, link_mbps=pf.link_mbps, current=observed)


def require_rates(step: SetRates, now: Mapping[int, VfRate]) -> None:
    """Raise KernelError when the values read back differ from those written."""
    for wrong in differing_rates(step, now):
        msg = f"VF {wrong.index} of PF {step.pf}: read back {now.get(wrong.index)}, set {wrong}"
        raise KernelError(msg)


def present_rates(pf: PfState) -> dict[int, VfRate]:
    """Return the rates of a PF's VFs as last observed."""
    return {vf.index: VfRate(vf.index, vf.min_tx_rate_mbps, vf.max_tx_rate_mbps) for vf in pf.vfs}


def with_rates(pf: PfState, rates: Mapping[int, VfRate]) -> PfState:
    """Return the PF with these rates of its VFs."""
    vfs = (
        replace(
            vf,
            min_tx_rate_mbps=rates[vf.index].min_tx_rate_mbps,
            max_tx_rate_mbps=rates[vf.index].max_tx_rate_mbps,
        )
        for vf in pf.vfs
        if vf.index in rates
    )
    return replace(pf, vfs=tuple(vfs))


def rates_of(pf: PfState, infos: Iterable[VfInfo]) -> dict[int, VfRate]:
    """Return the rates in a query's answer, by VF."""
    return {
        info.index: VfRate(
            info.index,
            info.min_tx_rate_mbps,
            understood_max(pf.driver, info.max_tx_rate_mbps, pf.link_mbps),
        )
        for info in infos
    }


def write_rates_to(pf: PfState, write: Callable[[Sequence[VfRate]], None], rates: Sequence[VfRate]) -> None:
    """Write them; KernelError with an explanation of the driver's error."""
    try:
        write(rates)
    except NetlinkError as error:
        raise KernelError(str(error), details=explain(pf.driver, error.errno)) from error


def differing_rates(step: SetRates, observed: Mapping[int, VfRate]) -> list[VfRate]:
    """Return the rates that differ, lowered minima first: drivers that check the sum do so at each VF."""

    def raised_mbps(rate: VfRate) -> int:
        return rate.min_tx_rate_mbps - observed.get(rate.index, VfRate(rate.index)).min_tx_rate_mbps

    return sorted((rate for rate in step.rates if observed.get(rate.index) != rate), key=raised_mbps)


def write_and_verify(
    observed: S,
    *,
    differing: Callable[[S], Sequence[W]],
    write: Callable[[Sequence[W]], None],
    read: Callable[[], S],
) -> S:
    """Write the differences and read back; returns the last state read, which may still differ.

    observed: the last known state.
    read: holds the RTNL lock for 1-2 ms per VF; called once unless others make changes or the driver
        disobeys.
    """
    for _ in range(_ROUNDS):
        pending = differing(observed)
        if pending:
            write(pending)
        observed = read()
        if not differing(observed):
            break
    return observed
