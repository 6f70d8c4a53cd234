"""The kernel is queried until it can keep caps; if it cannot, PFs that leave caps to software report it."""

from __future__ import annotations

import errno

import pytest

from factories import PF0, PF1, hardware, pf_state
from k8s_rdma.core.rate_ability import EVERY_RATE, NO_RATE
from k8s_rdma.core.types import Enforce, Setting
from k8s_rdma.linux.netlink.socket import NetlinkSocket
from k8s_rdma.linux.pod_interface import CapAbility
from linux.recorded import Replay, refusal

SEEN = hardware(pf_state(PF0, rates=EVERY_RATE), pf_state(PF1, rates=NO_RATE))


class InTurn:
    """A connection that refuses each request with another errno."""

    def __init__(self, *numbers):
        self._answers = [Replay(refusal(number)) for number in numbers]

    def send(self, request):
        self._now = self._answers.pop(0)
        return self._now.send(request)

    def recvmsg(self, size):
        return self._now.recvmsg(size)


def ability(*numbers):
    return CapAbility(NetlinkSocket(InTurn(*numbers)))


@pytest.mark.parametrize("answer", [errno.EINVAL, errno.EPERM], ids=["known", "not told"])
def test_pfs_have_no_problem_if_the_kernel_can_cap_or_does_not_say(answer):
    assert ability(answer).shown_in(SEEN) == SEEN


@pytest.mark.parametrize("answer", [errno.ENOENT, errno.EOPNOTSUPP])
def test_no_pf_takes_caps_of_software_when_the_kernel_cannot(answer):
    shown = ability(answer).shown_in(SEEN)
    assert [Setting.SOFTWARE_CAPS in pf.requestable_settings for pf in shown.pfs] == [False, False]


@pytest.mark.parametrize(
    ("rates", "enforce", "is_problem"),
    [
        (EVERY_RATE, Enforce.AUTO, False),
        (NO_RATE, Enforce.AUTO, True),
        (EVERY_RATE, Enforce.SOFTWARE, True),
        (NO_RATE, Enforce.HARDWARE, False),
    ],
)
def test_it_is_a_problem_of_pfs_that_leave_caps_to_software(rates, enforce, is_problem):
    seen = hardware(pf_state(PF0, rates=rates, enforce=enforce, problems=("other",)))
    [pf] = ability(errno.ENOENT).shown_in(seen).pfs
    assert pf.problems[:1] == ("other",)
    assert ["load its module sch_tbf" in problem for problem in pf.problems[1:]] == [True] * is_problem


def test_kernel_is_queried_at_every_scan_until_it_can():
    asked = ability(errno.ENOENT, errno.ENOENT, errno.EINVAL)
    assert [asked.shown_in(SEEN) == SEEN for _ in range(5)] == [False, False, True, True, True]
