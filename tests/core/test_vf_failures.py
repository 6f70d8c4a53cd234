"""Which VFs are set aside after failures, which come last, and the report to an operator."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from factories import PF0, PF1, hardware, interface
from k8s_rdma.core.allocation import foreign_reason, foreign_vfs
from k8s_rdma.core.ledger import AllocatedInterface, Ledger
from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.step import VfRef
from k8s_rdma.core.types import PodUid
from k8s_rdma.core.vf_failures import (
    FIRST_RETRY_S,
    LAST_RETRY_S,
    MOST_TRIES_ON_PF,
    FailedTry,
    VfFailures,
    to_avoid,
)

if TYPE_CHECKING:
    from k8s_rdma.core.kernel import Hardware, Vf

P, Q = PodUid("uid-p"), PodUid("uid-q")


def tried(*interfaces: AllocatedInterface, why: str = "EIO") -> FailedTry:
    return FailedTry(interfaces=interfaces, why=why)


def vfs(seen: Hardware, pf: str = PF0) -> tuple[Vf, ...]:
    return next(state.vfs for state in seen.pfs if state.pci == pf)


def aside(failures: VfFailures, now_s: float) -> list[VfRef]:
    seen = failures.mark(hardware(), now_s)
    return [VfRef(pf.pci, vf.index) for pf in seen.pfs for vf in pf.vfs if vf.set_aside]


def problems(failures: VfFailures, now_s: float) -> list[str]:
    return [sentence for pf in failures.mark(hardware(), now_s).pfs for sentence in pf.failures]


def test_vf_is_set_aside_when_the_same_interface_is_given_on_another_of_its_pf() -> None:
    failures = VfFailures()
    assert failures.note([tried(interface(PF0, 0))], [interface(PF0, 1)], P, 0) == (VfRef(PF0, 0),)
    seen = failures.mark(hardware(), 0)
    assert "EIO" in foreign_reason(vfs(seen)[0])
    assert [foreign_reason(vf) for vf in vfs(seen)[1:]] == ["", "", ""]
    assert [each.vf for each in foreign_vfs(seen, Ledger())] == [VfRef(PF0, 0)]
    [problem] = problems(failures, 0)
    assert problem.startswith("VF 0 of PF enp3s0f0 is set aside")
    assert "EIO" in problem


def test_pod_whose_request_was_changed_after_it_failed_sets_no_vf_aside() -> None:
    """Its owner may change it as often as wanted, and would set a VF aside each time."""
    for changed in (
        replace(interface(PF0, 1), options=InterfaceOptions(mtu=9000)),
        replace(interface(PF0, 1), max_tx_rate_mbps=77),
    ):
        failures = VfFailures()
        assert failures.note([tried(interface(PF0, 0))], (), P, 0) == ()
        assert failures.note((), [changed], P, 1) == ()
        assert not aside(failures, 1)
        assert failures.note((), [interface(PF0, 1)], P, 2) == (VfRef(PF0, 0),)


def test_request_that_fails_on_every_vf_sets_no_vf_aside_and_reports_no_vf() -> None:
    failures = VfFailures()
    tries = [tried(interface(PF0, 0)), tried(interface(PF0, 1)), tried(interface(PF1, 0))]
    assert failures.note(tries, (), P, 0) == ()
    assert (aside(failures, 0), problems(failures, 0)) == ([], [])
    assert [vf.failures for vf in vfs(failures.mark(hardware(), 0))] == [1, 1, 0, 0]


def test_pf_that_gives_no_vf_is_a_problem_and_its_vfs_are_not_set_aside() -> None:
    failures = VfFailures()
    tries = [tried(interface(PF0, 0)), tried(interface(PF0, 1))]
    assert failures.note(tries, [interface(PF1, 0)], P, 0) == ()
    assert aside(failures, 0) == []
    [problem] = problems(failures, 0)
    assert problem.startswith("VFs 0, 1 of PF enp3s0f0 could not be given")


def test_suspicion_of_several_vfs_ends_when_their_pf_gives_one() -> None:
    failures = VfFailures()
    for pod in (P, Q):
        failures.note([tried(interface(PF0, 0)), tried(interface(PF0, 1))], (), pod, 0)
    assert problems(failures, 0)
    failures.note([], [interface(PF0, 2)], PodUid("uid-r"), 0)
    assert problems(failures, 0) == []
    assert [vf.failures for vf in vfs(failures.mark(hardware(), 0))] == [2, 2, 0, 0]


def test_only_free_vf_that_fails_for_two_pods_is_reported() -> None:
    failures = VfFailures()
    failures.note([tried(interface(PF0, 3))], (), P, 0)
    assert problems(failures, 0) == []
    failures.note([tried(interface(PF0, 3))], (), Q, 0)
    [problem] = problems(failures, 0)
    assert problem.startswith("VF 3 of PF enp3s0f0 could not be given")
    assert aside(failures, 0) == []


def test_vf_that_failed_alone_is_set_aside_when_a_later_add_of_the_pod_succeeds_beside_it() -> None:
    failures = VfFailures()
    failures.note([tried(interface(PF0, 0))], (), P, 0)
    assert failures.note([], [interface(PF0, 1)], Q, 0) == ()
    assert failures.note([], [interface(PF0, 1)], P, 0) == (VfRef(PF0, 0),)


def test_vfs_that_failed_together_are_not_distinguished() -> None:
    failures = VfFailures()
    both = tried(interface(PF0, 0), replace(interface(PF0, 1), entry=1))
    others = [interface(PF0, 2), replace(interface(PF0, 3), entry=1)]
    assert failures.note([both], others, P, 0) == ()
    assert [vf.failures for vf in vfs(failures.mark(hardware(), 0))] == [1, 1, 0, 0]


def test_interface_of_another_entry_is_no_comparison() -> None:
    failures = VfFailures()
    given = [replace(interface(PF0, 1), entry=1), interface(PF1, 0)]
    assert failures.note([tried(interface(PF0, 0))], given, P, 0) == ()


def test_vf_is_tried_again_after_a_time_that_doubles() -> None:
    failures, now_s, delays = VfFailures(), 0.0, []
    for _ in range(9):
        failures.note([tried(interface(PF0, 0))], [interface(PF0, 1)], P, now_s)
        delay_s = next(s for s in (FIRST_RETRY_S * 2**n for n in range(9)) if not aside(failures, now_s + s))
        delays.append(min(delay_s, LAST_RETRY_S))
        assert aside(failures, now_s + delays[-1] - 1) == [VfRef(PF0, 0)]
        now_s += delays[-1]
        assert aside(failures, now_s) == []
    assert delays[:3] == [FIRST_RETRY_S, 2 * FIRST_RETRY_S, 4 * FIRST_RETRY_S]
    assert delays[-1] == LAST_RETRY_S


def test_vf_that_fails_again_as_the_only_one_is_set_aside_again() -> None:
    failures = VfFailures()
    failures.note([tried(interface(PF0, 0))], [interface(PF0, 1)], P, 0)
    assert failures.note([tried(interface(PF0, 0))], (), Q, FIRST_RETRY_S) == (VfRef(PF0, 0),)
    assert aside(failures, 2 * FIRST_RETRY_S) == [VfRef(PF0, 0)]


def test_vf_that_is_given_has_no_failures_any_more() -> None:
    failures = VfFailures()
    failures.note([tried(interface(PF0, 0))], [interface(PF0, 1)], P, 0)
    failures.note([], [interface(PF0, 0)], P, FIRST_RETRY_S)
    assert not failures
    assert failures.mark(failures.mark(hardware(), 0), 0) == hardware()


def test_marks_are_current_and_keep_the_observed_state() -> None:
    failures = VfFailures()
    state = hardware().pfs[0]
    seen = hardware(replace(state, vfs=(replace(state.vfs[0], unusable="no driver"), *state.vfs[1:])))
    for _ in range(2):
        failures.note([tried(interface(PF0, 0))], [interface(PF0, 2)], P, 0)
        failures.note([tried(interface(PF0, 1))], [interface(PF0, 2)], P, 0)
    first = failures.mark(seen, 0)
    assert failures.mark(first, 0) == first
    assert [vf.unusable.partition(":")[0] for vf in vfs(first)] == ["no driver", "set aside", "", ""]
    for index in range(2):
        failures.forget(VfRef(PF0, index))
    assert failures.mark(first, 0) == seen


def test_next_try_avoids_the_vf_and_then_the_pf_if_that_leaves_another() -> None:
    zero, one = tried(interface(PF0, 0)), tried(interface(PF0, 1))
    assert list(to_avoid([zero], hardware())) == [frozenset({VfRef(PF0, 0)})]
    whole, just = to_avoid([zero, one], hardware())
    assert whole == {VfRef(PF0, index) for index in range(4)}
    assert just == {VfRef(PF0, 0), VfRef(PF0, 1)}


def test_add_gives_up_after_so_many_tries_on_a_pf() -> None:
    tries = [tried(interface(PF0, index)) for index in range(MOST_TRIES_ON_PF)]
    assert list(to_avoid(tries, hardware())) == []
    assert list(to_avoid([], hardware())) == []
