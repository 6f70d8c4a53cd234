"""Conclusions about a PF from figures of trials, by a site with chosen figures."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.core.types import pci_address
from k8s_rdma.core.verification import (
    MAX_ATTEMPTS,
    Check,
    Flow,
    InterfaceRates,
    PfFacts,
    Result,
    TrafficKind,
    Trial,
    TrialOutcome,
    UnmeasuredError,
    exit_status,
    verify_pf,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PF = PfFacts(
    name="eth0",
    pci=pci_address("0000:01:00.0"),
    driver="ice",
    link_mbps=1000,
    free_mbps=1000,
)
ENFORCED = {"min_by": "hardware", "max_by": "hardware"}
FAIR = (567.0, 267.0, 166.0)


class ChosenSite:
    """Sends at the rates of the answer to a trial; remembers the trials."""

    def __init__(self, answer: Callable[[Trial], Sequence[float]], **claims: object) -> None:
        self._answer, self._claims = answer, ENFORCED | claims
        self.trials: list[Trial] = []

    def run(self, trial: Trial) -> tuple[Flow, ...]:
        self.trials.append(trial)
        return tuple(Flow(mbps=mbps, **self._claims) for mbps in self._answer(trial))


def card(*, competing: Sequence[float] = FAIR, capped: float = 100.0, carried: float = 950.0):
    """The answers of a card."""

    def answer(trial: Trial) -> Sequence[float]:
        if len(trial.senders) > 1:
            return competing
        return [carried if trial.reverse else capped]

    return answer


def outcomes(site: ChosenSite, pf: PfFacts = PF, cap_mbps: int = 0) -> dict[Check, list[TrialOutcome]]:
    found: dict[Check, list[TrialOutcome]] = {}
    for outcome in verify_pf(site, pf, cap_mbps=cap_mbps):
        found.setdefault(outcome.check, []).append(outcome)
    return found


def result_of(site: ChosenSite, check: Check, **options: object) -> list[Result]:
    return [outcome.result for outcome in outcomes(site, **options)[check]]


def test_card_that_keeps_its_rates_passes():
    site = ChosenSite(card())
    found = outcomes(site)
    assert [outcome.rate_mbps for outcome in found[Check.RESERVATION]] == [500, 200, 100]
    assert [outcome.rate_mbps for outcome in found[Check.CAP]] == [100]
    every = [outcome for part in found.values() for outcome in part]
    assert {outcome.result for outcome in every} == {Result.PASS, Result.UNENFORCED}
    assert exit_status(every) == 0
    assert len(site.trials) == 3


def test_reservations_of_trials_are_of_the_bandwidth_that_pods_leave():
    site = ChosenSite(card(competing=(220, 90, 50)))
    found = outcomes(site, replace(PF, free_mbps=400))
    assert [outcome.rate_mbps for outcome in found[Check.RESERVATION]] == [200, 80, 40]


def test_interface_below_its_reservation_on_a_full_link_fails():
    site = ChosenSite(card(competing=(440.0, 300.0, 260.0)))
    assert result_of(site, Check.RESERVATION) == [Result.FAIL, Result.PASS, Result.PASS]
    assert sum(len(trial.senders) == 3 for trial in site.trials) == MAX_ATTEMPTS


def test_link_that_is_not_full_leaves_reservations_unmeasured():
    site = ChosenSite(card(competing=(200.0, 200.0, 200.0)))
    assert result_of(site, Check.RESERVATION) == [Result.UNMEASURED] * 3


@pytest.mark.parametrize("claim", ["accounted", None])
def test_accounted_rate_is_unenforced_in_the_verdict(claim):
    site = ChosenSite(card(competing=(5.0, 900.0, 95.0), capped=950.0), min_by=claim, max_by=claim)
    assert result_of(site, Check.RESERVATION) == [Result.UNENFORCED] * 3
    assert result_of(site, Check.CAP) == [Result.UNENFORCED]


def test_cap_that_does_not_cover_the_traffic_is_unenforced_in_the_verdict():
    [cap] = outcomes(ChosenSite(card(capped=900.0), max_by=None))[Check.CAP]
    assert (cap.result, cap.why) == (Result.UNENFORCED, "a cap by software does not cover a card's verbs")


@pytest.mark.parametrize(
    ("capped", "result"),
    [(89.0, Result.UNMEASURED), (91.0, Result.PASS), (109.0, Result.PASS), (111.0, Result.FAIL)],
)
def test_cap_holds_within_a_tenth(capped, result):
    assert result_of(ChosenSite(card(capped=capped)), Check.CAP) == [result]


def test_too_little_below_a_cap_is_measured_again_and_too_much_is_not():
    figures = iter([40.0, 100.0])
    site = ChosenSite(
        lambda trial: FAIR if len(trial.senders) > 1 else [950.0 if trial.reverse else next(figures)]
    )
    assert result_of(site, Check.CAP) == [Result.PASS]
    fast = ChosenSite(card(capped=500.0))
    assert result_of(fast, Check.CAP) == [Result.FAIL]
    assert (
        sum(trial.senders == (InterfaceRates(max_mbps=100),) and not trial.reverse for trial in fast.trials)
        == 1
    )


def test_slow_machine_leaves_a_cap_unmeasured():
    site = ChosenSite(card(competing=(30, 30, 30), capped=80.0, carried=120.0))
    assert result_of(site, Check.CAP) == [Result.UNMEASURED]


def test_programmed_cap_is_compared_if_a_driver_rounds_it():
    site = ChosenSite(card(capped=150.0), cap_mbps=150)
    [cap] = outcomes(site, cap_mbps=170)[Check.CAP]
    assert (cap.rate_mbps, cap.result) == (150, Result.PASS)


def test_refused_trial_is_not_measured_and_the_others_are():
    def answer(trial: Trial) -> Sequence[float]:
        if len(trial.senders) > 1:
            raise UnmeasuredError("needs 4 VFs; 2 are free")
        return [950.0 if trial.reverse else 100.0]

    found = outcomes(ChosenSite(answer))
    assert {(outcome.result, outcome.why) for outcome in found[Check.RESERVATION]} == {
        (Result.UNMEASURED, "needs 4 VFs; 2 are free")
    }
    assert [outcome.result for outcome in found[Check.CAP]] == [Result.PASS]


def test_pf_without_a_link_is_not_measured():
    down = replace(PF, link_mbps=None, free_mbps=0)
    site = ChosenSite(card())
    found = outcomes(site, down)
    assert all("is it up?" in part[0].why for part in found.values())
    assert site.trials == []


def test_pf_that_is_almost_full_is_not_measured():
    found = outcomes(ChosenSite(card()), replace(PF, free_mbps=90))
    assert "too few for three reservations" in found[Check.RESERVATION][0].why


def test_verbs_are_measured_if_there_are_rdma_devices():
    caps = outcomes(ChosenSite(card()), replace(PF, rdma=True))[Check.CAP]
    assert [outcome.traffic for outcome in caps] == [TrafficKind.TCP, TrafficKind.VERBS]


@pytest.mark.parametrize(
    ("results", "status"),
    [
        ([], 2),
        ([Result.PASS, Result.UNENFORCED], 0),
        ([Result.PASS, Result.UNMEASURED], 2),
        ([Result.UNMEASURED, Result.FAIL], 1),
    ],
)
def test_exit_status_says_the_worst(results, status):
    made = [
        TrialOutcome(check=Check.CAP, traffic=TrafficKind.TCP, rate_mbps=1, result=result)
        for result in results
    ]
    assert exit_status(made) == status
