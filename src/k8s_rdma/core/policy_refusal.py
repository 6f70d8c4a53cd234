"""Why the policy keeps a request from fitting that would fit without it, with the node's numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.choosing import matched
from k8s_rdma.core.matching import TooFew
from k8s_rdma.core.policy import PfPolicy
from k8s_rdma.core.refusal import Scene, count, needed
from k8s_rdma.core.rooms import OutOfWorkError
from k8s_rdma.core.said import Said

if TYPE_CHECKING:
    from collections.abc import Sequence

    from k8s_rdma.core.choosing import Task, Usage
    from k8s_rdma.core.inventory import Pf
    from k8s_rdma.core.refusal import Free
    from k8s_rdma.core.rooms import Work

_TOGETHER = {PfPolicy.SAME_PF: "PF", PfPolicy.SAME_NUMA: "NUMA node"}


def explain_policy(task: Task, used: Usage, free: Sequence[Free], work: Work, *, empty: bool) -> Said:
    """The sentence for a task that fits nowhere, but would without its policy.

    free: of the node as it is used, or of the empty node.
    """
    if task.policy is PfPolicy.SPREAD_PFS:
        said = _apart(task, used, work, empty=empty)
    else:
        said = _together(task, free, empty=empty)
    return Said(*(f"policy {task.policy}: {text}" for text in said))


def _apart(task: Task, used: Usage, work: Work, *, empty: bool) -> Said:
    """The interfaces that too few PFs take, and how many these are."""
    [pfs] = task.groups()
    interfaces = task.wanted
    number, takers = len(interfaces), len(pfs)
    try:
        short = matched(task, used, work) if number <= len(pfs) else None
    except OutOfWorkError:
        short = None
    other = "other " if task.beside else ""
    there = f"the node has {count(len(pfs), f'{other}PF')}"
    if isinstance(short, TooFew):
        interfaces = [interfaces[at] for at in sorted(short.interfaces)]
        number, takers = len(interfaces), len(short.offers)
        reserving = any(each.min_tx_rate_mbps for each in interfaces)
        what = f"{'a VF' if empty else 'a free VF'}{' and enough bandwidth' if reserving else ''}"
        have = "has" if takers == 1 else "have"
        there = f"{takers} of {len(pfs)} {other}PFs {have} {what}{' when empty' if empty else ''}"
    verb = "needs" if number == 1 else "need"
    even = " even when empty" if empty else ""
    return Said.nameless(
        f"{needed(interfaces)} {verb} {count(number, 'PF')}; {there}",
        f"needs {needed(task.wanted)}; too few PFs have room for one{even}",
    )


def _together(task: Task, free: Sequence[Free], *, empty: bool) -> Said:
    """What the best of the groups lacks."""
    what = _TOGETHER[task.policy]
    needs = f"needs {needed(task.wanted)}"
    even = " even when empty" if empty else ""
    cause = f"{needs}; no {what} has room for all{even}"
    found = task.groups()
    if not found:
        return Said.nameless(f"{needs}; no {what} has all of its other interfaces", cause)
    by_pci = {each.pf.pci: each for each in free}
    there = [[by_pci[pf.pci] for pf in group if pf.pci in by_pci] for group in found]
    number, mbps = len(task.of), sum(task.rates)
    best = Scene(task.wanted, max(there, key=lambda some: _roominess(some, number, mbps)), empty=empty)
    which = "where its other interfaces are" if task.beside else f"best of {_counted(task.policy, found)}"
    return Said.nameless(f"{best.impossible().numbers} ({which})", cause)


def _counted(policy: PfPolicy, found: Sequence[Sequence[Pf]]) -> str:
    """`4 PFs`, `2 NUMA nodes and 1 PF without one`."""
    lone = 0
    if policy is PfPolicy.SAME_NUMA:
        lone = sum(group[0].numa_node is None for group in found)
    together = [count(len(found) - lone, _TOGETHER[policy])] if lone < len(found) else []
    alone = [f"{count(lone, 'PF')} without {'one' if together else 'a NUMA node'}"] if lone else []
    return " and ".join([*together, *alone])


def _roominess(some: Sequence[Free], number: int, needed_mbps: int) -> tuple[bool, bool, int, int]:
    mbps, vfs = sum(each.room.mbps for each in some), sum(each.room.vfs for each in some)
    return vfs >= number and mbps >= needed_mbps, vfs >= number, mbps, vfs
