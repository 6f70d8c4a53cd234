"""What the PF has for its VFs: addresses and trust."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.init.failure import SetupError
from k8s_rdma.init.settings import differs, taken_over, wanted
from k8s_rdma.linux.vf.creation import VfTrust

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from k8s_rdma.init.job import Job
    from k8s_rdma.linux.discovery.queries import VfInfo
    from k8s_rdma.linux.vf.creation import Setting, VfFunction


class Configuration:
    """The settings of some VFs of one PF."""

    def __init__(self, job: Job, vfs: Sequence[VfFunction]) -> None:
        """Those that these VFs are to have."""
        self._job = job
        self._pf = job.link()
        address = job.links.permanent_address(self._pf)
        target = job.target
        self._wanted = {
            vf.index: wanted(target.link_type, address, vf.index, target.rule.trust) for vf in vfs
        }
        self._bound = {vf.index for vf in vfs if vf.driver}
        self.unsupported: set[str] = set()
        """Kinds of settings that the PF's driver has no means for."""

    def apply(self) -> int:
        """Set what differs, and say how many settings that were."""
        infos = self._infos()
        return sum(self._set(vf, each) for vf, each in self._each() if self._is_due(vf, each, infos[vf]))

    def _is_due(self, vf: int, setting: Setting, info: VfInfo) -> bool:
        """What the driver does not tell is set while the VF has no driver, and left alone later."""
        differing = differs(setting, info)
        return vf not in self._bound if differing is None else differing

    def stale(self, addresses: Mapping[int, str]) -> set[int]:
        """The VFs whose netdevs (by their hardware addresses) have not what the PF has for them."""
        return {
            vf for vf, setting in self._each() if vf in addresses and not taken_over(setting, addresses[vf])
        }

    def check(self, addresses: Mapping[int, str]) -> None:
        """SetupError when the PF, or a netdev by its address, has something else than what was set."""
        infos = self._infos()
        stale = self.stale(addresses)
        wrong = [
            f"VF {vf} has not {setting}"
            for vf, setting in self._each()
            if differs(setting, infos[vf]) or (vf in stale and not taken_over(setting, addresses[vf]))
        ]
        if wrong:
            raise SetupError(
                f"PF {self._pf.name}: {len(wrong)} settings did not hold: {wrong[0]}",
                advice="see its driver's lines in dmesg; set them with `ip link set PF vf N ...` to see why",
            )

    def _infos(self) -> Mapping[int, VfInfo]:
        infos = {info.index: info for info in self._job.links.vf_infos(self._pf.index)}
        if untold := sorted(self._wanted.keys() - infos.keys()):
            raise SetupError(
                f"PF {self._pf.name}: its driver tells nothing of VF {untold[0]} ({len(untold)} such)",
                advice="run init again once its driver is done with them; see its lines in dmesg",
            )
        return infos

    def _each(self) -> Iterator[tuple[int, Setting]]:
        for vf, settings in self._wanted.items():
            for setting in settings:
                if setting.kind not in self.unsupported:
                    yield vf, setting

    def _set(self, vf: int, setting: Setting) -> bool:
        if self._job.links.set_vf(self._pf, vf, setting):
            return True
        if isinstance(setting, VfTrust):
            raise SetupError(
                f"PF {self._pf.name}: its driver cannot set trust on VFs",
                advice="take `trust` out of the rule for this PF",
                lasting=True,
            )
        self.unsupported.add(setting.kind)
        return False
