"""Why there is no placement: the reason, and the words for it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from k8s_rdma.core.choosing import choose, rooms
from k8s_rdma.core.objections import objections
from k8s_rdma.core.policy import PfPolicy
from k8s_rdma.core.policy_refusal import explain_policy
from k8s_rdma.core.refusal import Free, explain, is_empty
from k8s_rdma.core.rooms import OutOfWorkError, Verdict, Work
from k8s_rdma.core.said import Said
from k8s_rdma.core.strategy import Strategy
from k8s_rdma.errors import Reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from k8s_rdma.core.choosing import Offered, Task, Usage

_TERMS = 4_000
"""Work units to know again, for the words alone, what PFs offer; most often it is known."""


def why_not(task: Task, used: Usage, verdict: Verdict, work: Work) -> tuple[Reason, Said]:
    """The reason, as `core.placement.Rejection` has it, and the sentence.

    What is refused only because of the policy is refused with that reason: its sentence tells of the policy.
    """
    if task.strategy is not Strategy.BINPACK:  # whether there is a placement is found soonest so
        task = replace(task, strategy=Strategy.BINPACK)
    reason = _reason(task, verdict, work)
    if is_empty(reason):
        used = {}
    free = list(map(Free, task.inventory.pfs, rooms(task.inventory, used)))
    against: Sequence[Said] = ()
    offered = None if task.rooms_alone else _offered(task, used)
    if offered is not None:
        against = objections(task.kinds, offered)
        if reason is not Reason.EXCEEDS_CAPACITY:  # that holds whatever the drivers say
            free = _free_for(task, offered, free)
    if reason is not Reason.UNDECIDED and _by_policy(task, used, work):
        said = explain_policy(task, used, free, work, empty=is_empty(reason))
        return reason, Said.joined([said, *against])
    return reason, explain(task.wanted, free, reason, against)


def _offered(task: Task, used: Usage) -> Offered | None:
    """None where the request and the node are too large for even that."""
    try:
        return task.offered(used, Work(_TERMS))
    except OutOfWorkError:
        return None


def _reason(task: Task, verdict: Verdict, work: Work) -> Reason:
    if not task.inventory.pfs:
        return Reason.NO_RDMA
    if verdict is not Verdict.IMPOSSIBLE:
        return Reason.UNDECIDED
    if choose(task, {}, work) is not Verdict.IMPOSSIBLE:
        return Reason.INSUFFICIENT
    if not task.rooms_alone and _plain(task, work) is not Verdict.IMPOSSIBLE:
        return Reason.NO_SUCH_PF if _by_choice(task, work) else Reason.DRIVER_REFUSES
    return Reason.EXCEEDS_CAPACITY


def _by_choice(task: Task, work: Work) -> bool:
    """Whether it may fit on the empty node but for which PFs it wants; drivers are not blamed unproved."""
    return task.choosy and choose(task.anywhere(), {}, work) is not Verdict.IMPOSSIBLE


def _plain(task: Task, work: Work) -> list[int] | Verdict:
    """On the empty node, if drivers could do everything, and nothing but rates was asked for."""
    return choose(task.plain(), {}, work)


def _by_policy(task: Task, used: Usage, work: Work) -> bool:
    """Whether it would fit but for the policy."""
    if task.policy is PfPolicy.ANY or not task.inventory.pfs:
        return False
    return choose(replace(task, policy=PfPolicy.ANY), used, work) is not Verdict.IMPOSSIBLE


def _free_for(task: Task, offered: Offered, free: Sequence[Free]) -> list[Free]:
    """What is free for these: where they need something, all of the PFs that take any of them."""
    if not task.needy:
        return [Free(offer.pf, offer.room) for offer in offered.made]
    return [each for each, offer in zip(free, offered.made, strict=True) if offer.takes_any]
