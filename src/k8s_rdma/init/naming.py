"""Names of VF netdevs that tell their PF and index, where nobody else gives them any."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from k8s_rdma.errors import KernelError
from k8s_rdma.linux.vf.creation import NetdevsOf

if TYPE_CHECKING:
    from collections.abc import Iterable

    from k8s_rdma.init.job import Job
    from k8s_rdma.linux.netlink.rtnl import Link
    from k8s_rdma.linux.vf.creation import VfFunction

_LONGEST = 15
"""IFNAMSIZ without its NUL (Linux `include/uapi/linux/if.h`)."""

_BY_KERNEL = re.compile(r"(eth|ib)\d+")
_RENAMED = "4"
"""NET_NAME_RENAMED of `name_assign_type` (Linux `Documentation/ABI/testing/sysfs-class-net`)."""


def name_netdevs(job: Job, vfs: Iterable[VfFunction]) -> int:
    """Name those that the kernel numbered as udev would on a host of its own; how many were.

    A name that is taken, too long, or refused, as that of a netdev which is up, stays away and is no failure.
    """
    links = NetdevsOf(job.links.links())
    return sum(_name(job, vf.index, *links.of(vf)) for vf in vfs if len(links.of(vf)) == 1)


def _name(job: Job, vf: int, link: Link) -> bool:
    new = f"{job.target.name}v{vf}"
    if link.up or not _BY_KERNEL.fullmatch(link.name) or len(new) > _LONGEST or job.links.link(new):
        return False
    if job.sysfs.value_if_any(f"class/net/{link.name}/name_assign_type") == _RENAMED:
        return False
    try:
        job.links.rename(link, new)
    except KernelError as error:
        job.log.warning("vf_not_named", vf=vf, netdev=link.name, wanted=new, error=str(error))
        return False
    return True
