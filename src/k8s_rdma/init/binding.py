"""VFs given to their driver, and waiting for what that makes of them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from k8s_rdma.init.failure import SetupError, refused_write
from k8s_rdma.init.waiting import until
from k8s_rdma.linux.vf.binding import PciDriver

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from k8s_rdma.init.job import Job
    from k8s_rdma.linux.vf.creation import VfFunction

TELL_EVERY_S = 5.0


def wait_for_link(job: Job) -> None:
    """For the PF's own link, as VFs without it are slow to get theirs; a PF without cable is as good."""
    path = f"class/net/{job.target.name}/carrier"
    if not until(job.clock, job.config.carrier_timeout_s, lambda: job.sysfs.value_if_any(path) == "1"):
        job.log.warning("pf_without_link", waited_s=job.config.carrier_timeout_s)


def bind(job: Job, vfs: Iterable[VfFunction]) -> dict[int, str]:
    """Have VFs taken by their driver, those that have one anew; what failed, by index.

    One after the other, so that netdevs are numbered as VFs are.
    """
    failed: dict[int, str] = {}
    told = job.clock.now()
    for done, vf in enumerate(vfs):
        if job.clock.now() - told >= TELL_EVERY_S:
            told = job.clock.now()
            job.log.info("vfs_bound", vfs=done)
        job.clock.wait(0)
        try:
            PciDriver(job.sysfs, vf.pci).bind_anew()
        except OSError as error:
            failed[vf.index] = str(refused_write(f"driver of {vf.pci}", error))
    return failed


def wait_for_netdevs(
    job: Job, vfs: Sequence[VfFunction], failed: Mapping[int, str]
) -> tuple[VfFunction, ...]:
    """These VFs once each has a netdev; SetupError names one that has none in time."""
    missing = deque(vfs)
    told = job.clock.now()

    def complete() -> bool:
        nonlocal told
        while missing and job.sriov.again(missing[0]).netdevs:
            missing.popleft()
        if missing and job.clock.now() - told >= TELL_EVERY_S:
            told = job.clock.now()
            job.log.info("waiting_for_netdevs", missing=len(missing), of=len(vfs))
        return not missing

    if not until(job.clock, job.config.vf_timeout_s + job.config.timeout_per_vf_s * len(vfs), complete):
        lacking = [vf for vf in missing if not job.sriov.again(vf).netdevs]
        raise _without_netdevs(job, lacking or vfs, len(vfs), failed)
    return tuple(map(job.sriov.again, vfs))


def _without_netdevs(
    job: Job, missing: Sequence[VfFunction], of: int, failed: Mapping[int, str]
) -> SetupError:
    first = job.sriov.again(missing[0])
    state = failed.get(first.index) or (f"driver {first.driver}" if first.driver else "no driver")
    return SetupError(
        f"PF {job.target.name}: {len(missing)} of {of} VFs without a netdev, the first VF {first.index} "
        f"({first.pci}): {state}",
        advice="see its driver's lines in dmesg"
        if first.driver or first.index in failed
        else f"load its driver on the host: modprobe {job.sriov.modalias(first)}",
    )
