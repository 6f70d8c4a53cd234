"""What is to be done about a PF's number of VFs, from what there is and who uses it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from k8s_rdma.init.identity import MOST_VFS

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Why a PF does not get what was asked, and what to do.

    in_use: that VFs are used is all that stands against it; the PF works on with those it has.
    """

    why: str
    advice: str
    in_use: bool = False


def decide(*, asked: int | None, total: int, now: int, used: Mapping[int, str]) -> int | Refused:
    """How many VFs there shall be; equal to `now` when nothing is to be done.

    asked: None for all. total: what the PF can have (`sriov_totalvfs`). used: who uses a VF, by its index.
    Another number than now takes the removal of all there are (Linux `drivers/pci/iov.c`,
    `sriov_numvfs_store`), so that it is refused while any is used.
    """
    count = total if asked is None else asked
    if count > total:
        return Refused(
            why=f"{count} VFs asked, its sriov_totalvfs is {total}",
            advice=f"set numVfs to {total} or less, or raise the limit in the NIC's firmware "
            "(Mellanox: mlxconfig NUM_OF_VFS) and reboot",
        )
    if count > MOST_VFS:
        return Refused(why=f"{count} VFs asked", advice=f"set numVfs to {MOST_VFS} or less")
    if count != now and used:
        return Refused(
            why=f"{now} VFs cannot become {count} while some are used: {who_uses(used)}",
            advice="end what uses them (drain the node), then run init again",
            in_use=True,
        )
    return count


def who_uses(used: Mapping[int, str]) -> str:
    """`pod default/a (VF 0, 2), vfio-pci (VF 5)`."""
    by_user = sorted((user, index) for index, user in used.items())
    return ", ".join(
        f"{user} (VF {', '.join(str(index) for _, index in vfs)})"
        for user, vfs in groupby(by_user, key=itemgetter(0))
    )
