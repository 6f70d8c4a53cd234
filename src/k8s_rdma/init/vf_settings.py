"""Addresses and trust of VFs: made from those of their PF, and set if the PF has others.

They are the same after every boot, without a file to keep them in.

Ethernet: a locally administered unicast MAC (IEEE 802, clause 8.4) of 46 free bits: 12 bits of a hash of the
PF's first three octets, 10 bits VF index, the PF's last three octets. The last three octets are unique per
manufacturer, so VFs of PFs of one manufacturer never share a MAC. VFs of two manufacturers could share one
only if the hash (1 in 4,096) and the PFs' serial numbers are the same.

InfiniBand: a 64-bit GUID with the bit "local" set (EUI-64), the rest a hash of the PF's port GUID, the VF and
which of its two GUIDs it is. A million of them hold two equal ones with a chance of 1 in ten million.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from k8s_rdma.core.types import LinkType
from k8s_rdma.init.job import Job, SetupError
from k8s_rdma.linux.vf.sriov_links import GuidOf, Setting, VfGuid, VfLinkState, VfMac, VfTrust

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from k8s_rdma.linux.netlink.queries import VfInfo
    from k8s_rdma.linux.vf.creation import VfFunction

_GUID_CHARACTERS = 23

MOST_VFS = 1024
"""VFs of a PF with distinct addresses; the largest NICs have about 1,000."""


def vf_mac(pf_mac: str, index: int) -> str:
    """Return the MAC of a PF's VF; `pf_mac` is the PF's permanent one, `aa:bb:cc:dd:ee:ff`."""
    octets = bytes.fromhex(pf_mac.replace(":", ""))
    if len(octets) != 6 or not 0 <= index < MOST_VFS:
        msg = f"no MAC for VF {index} of {pf_mac}"
        raise ValueError(msg)
    maker = int.from_bytes(_hash(octets[:3], 2)) >> 4
    free = maker << 34 | index << 24 | int.from_bytes(octets[3:])
    first = (free >> 40) << 2 | 0b10  # local, and no group address
    return (bytes([first]) + (free & 0xFFFFFFFFFF).to_bytes(5)).hex(":")


def vf_guid(pf_guid: str, index: int, guid_of: GuidOf) -> str:
    """Return a GUID of a PF's VF, `aa:bb:cc:dd:ee:ff:00:11`; never zero. `pf_guid`: the PF's port GUID."""
    octets = bytes.fromhex(pf_guid.replace(":", ""))
    if len(octets) != 8 or index < 0:
        msg = f"no GUID for VF {index} of {pf_guid}"
        raise ValueError(msg)
    free = _hash(octets + index.to_bytes(4) + guid_of.value.encode(), 8)
    return (bytes([free[0] & 0xFC | 0b10]) + free[1:]).hex(":")


def _hash(value: bytes, size: int) -> bytes:
    return hashlib.blake2b(value, digest_size=size, person=b"k8s-rdma vf").digest()


def address_conflicts(addresses: Mapping[str, str]) -> dict[str, str]:
    """Return why PFs cannot have VFs with addresses of their own, by the PF's name; others are left out.

    addresses: permanent hardware addresses of PFs by name, as in `desired_settings`. A PF without one (zeros)
    would have the VFs' addresses of every other such PF of the network, and two PFs with one address, as
    cloned and some virtual machines have them, those of each other.
    """
    found, by_address = {}, dict[str, list[str]]()
    for name, address in addresses.items():
        own = address[-_GUID_CHARACTERS:]
        if own.strip("0:"):
            by_address.setdefault(own, []).append(name)
        else:
            found[name] = f"its permanent address is {own}"
    for own, names in by_address.items():
        for name in names[1:] and names:
            sharers = ", ".join(f"PF {sharer}" for sharer in names if sharer != name)
            found[name] = f"its permanent address {own} is also that of {sharers}"
    return found


def desired_settings(
    link_type: LinkType, pf_address: str, index: int, trust: bool | None
) -> tuple[Setting, ...]:
    """Return the settings of a VF, addresses first.

    On InfiniBand its port follows the PF's, because mlx5 has it down by default.

    pf_address: the PF's permanent hardware address; of InfiniBand's the last 8 of 20 bytes are its port GUID
        (RFC 4391, 9.1.1).
    """
    if link_type is LinkType.ETHERNET:
        settings: tuple[Setting, ...] = (VfMac(vf_mac(pf_address, index)),)
    else:
        port_guid = pf_address[-_GUID_CHARACTERS:]
        guids = (VfGuid(kind, vf_guid(port_guid, index, kind)) for kind in GuidOf)
        settings = (*guids, VfLinkState("auto"))
    return settings if trust is None else (*settings, VfTrust(trust))


def differs(setting: Setting, info: VfInfo) -> bool | None:
    """Report whether the PF has another value for the VF, if its driver reports it."""
    if isinstance(setting, VfMac):
        return info.mac != setting.value
    if isinstance(setting, VfTrust):
        return None if info.trust is None else info.trust is not setting.value
    if isinstance(setting, VfLinkState):
        return info.link_state != setting.value
    found = info.node_guid if setting.guid_of is GuidOf.NODE else info.port_guid
    return found != setting.value if found else None


def is_applied(setting: Setting, netdev_address: str) -> bool:
    """Report whether the VF's netdev has the address; a driver reads addresses only when it is bound."""
    match setting:
        case VfMac(value):
            return netdev_address == value
        case VfGuid(GuidOf.PORT, value):
            return netdev_address.endswith(value)
        case _:
            return True


class Configuration:
    """The settings of some VFs of one PF."""

    def __init__(self, job: Job, vfs: Sequence[VfFunction]) -> None:
        """Compute the settings of these VFs."""
        self._job = job
        self._pf = job.link()
        address = job.links.permanent_address(self._pf)
        target = job.target
        self._desired = {
            vf.index: desired_settings(target.link_type, address, vf.index, target.rule.trust) for vf in vfs
        }
        self._bound = {vf.index for vf in vfs if vf.driver}
        self.unsupported: set[str] = set()
        """Kinds of settings that the PF's driver has no means for."""

    def apply(self) -> int:
        """Set the settings that differ, and return their number."""
        infos = self._infos()
        return sum(
            self._set(vf, setting) for vf, setting in self._settings() if self._is_due(vf, setting, infos[vf])
        )

    def _is_due(self, vf: int, setting: Setting, info: VfInfo) -> bool:
        """Report whether to set it; a setting that is not reported is set only on an unbound VF."""
        differing = differs(setting, info)
        return vf not in self._bound if differing is None else differing

    def stale(self, addresses: Mapping[int, str]) -> set[int]:
        """Return the VFs whose netdevs (by hardware address) differ from the PF's settings for them."""
        return {
            vf
            for vf, setting in self._settings()
            if vf in addresses and not is_applied(setting, addresses[vf])
        }

    def check(self, addresses: Mapping[int, str]) -> None:
        """Raise SetupError if the PF, or a netdev by its address, differs from the settings."""
        infos = self._infos()
        stale = self.stale(addresses)
        wrong = [
            f"VF {vf} has not {setting}"
            for vf, setting in self._settings()
            if differs(setting, infos[vf]) or (vf in stale and not is_applied(setting, addresses[vf]))
        ]
        if wrong:
            raise SetupError(
                f"PF {self._pf.name}: {len(wrong)} settings are not in effect: {wrong[0]}",
                advice="see its driver's lines in dmesg; set them with `ip link set PF vf N ...` to see why",
            )

    def _infos(self) -> Mapping[int, VfInfo]:
        infos = {info.index: info for info in self._job.links.vf_infos(self._pf.index)}
        if untold := sorted(self._desired.keys() - infos.keys()):
            raise SetupError(
                f"PF {self._pf.name}: its driver does not report VF {untold[0]} ({len(untold)} such)",
                advice="run init again once its driver is done with them; see its lines in dmesg",
            )
        return infos

    def _settings(self) -> Iterator[tuple[int, Setting]]:
        for vf, settings in self._desired.items():
            for setting in settings:
                if setting.kind not in self.unsupported:
                    yield vf, setting

    def _set(self, vf: int, setting: Setting) -> bool:
        if self._job.links.set_vf(self._pf, vf, setting):
            return True
        if isinstance(setting, VfTrust):
            raise SetupError(
                f"PF {self._pf.name}: its driver cannot set trust on VFs",
                advice="remove `trust` from the rule for this PF",
                lasting=True,
            )
        self.unsupported.add(setting.kind)
        return False
