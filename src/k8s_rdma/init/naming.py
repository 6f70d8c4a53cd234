"""Names of VF netdevs that tell their PF and index, where nobody else gives them any."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from k8s_rdma.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from k8s_rdma.init.job import Job
    from k8s_rdma.linux.sriov import VfFunction

_LONGEST = 15
"""IFNAMSIZ without its NUL (Linux `include/uapi/linux/if.h`)."""

_BY_KERNEL = re.compile(r"(eth|ib)\d+")
_RENAMED = "4"
"""NET_NAME_RENAMED of `name_assign_type` (Linux `Documentation/ABI/testing/sysfs-class-net`)."""


def name_netdevs(job: Job, vfs: Iterable[VfFunction]) -> int:
    """Name those that the kernel numbered as udev would on a host of its own; how many were.

    A name that is taken, too long, or refused, as that of a netdev which is up, stays away and is no failure.
    """
    return sum(_name(job, vf.index, *vf.netdevs) for vf in vfs if vf.netdevs and len(vf.netdevs) == 1)


def _name(job: Job, vf: int, old: str) -> bool:
    new = f"{job.target.name}v{vf}"
    if not _BY_KERNEL.fullmatch(old) or len(new) > _LONGEST or job.links.link(new):
        return False
    if job.sysfs.value_if_any(f"class/net/{old}/name_assign_type") == _RENAMED:
        return False
    link = job.links.link(old)
    if link is None or link.up:
        return False
    try:
        job.links.rename(link, new)
    except KernelError as error:
        job.log.warning("vf_not_named", vf=vf, netdev=old, wanted=new, error=str(error))
        return False
    return True
