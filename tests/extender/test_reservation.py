"""The table of a reservation's stages: it is whole, and no order of events frees an interface in use."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8s_rdma.extender.reservation import OPEN, TRANSITIONS, Reservation, ReservationEvent, Stage

EVENTS = st.lists(st.sampled_from(ReservationEvent), max_size=8)


def reservation(stage: Stage = Stage.DECIDED) -> Reservation:
    ended_at = 1.0 if stage is Stage.ENDED else None
    return Reservation(interfaces=(), pod="default/p", created_at=0.0, stage=stage, ended_at=ended_at)


@pytest.mark.parametrize("event", ReservationEvent, ids=lambda event: event.name)
@pytest.mark.parametrize("stage", Stage, ids=lambda stage: stage.name)
def test_transition_is_in_the_table_for_each_event_and_stage(event: ReservationEvent, stage: Stage) -> None:
    after = reservation(stage).after(event)
    assert (after and after.stage) == TRANSITIONS[event][stage]


@given(EVENTS)
def test_reservation_is_over_only_when_no_write_can_bind_its_pod(events: list[ReservationEvent]) -> None:
    held: Reservation | None = reservation()
    for number, event in enumerate(events):
        assert held is not None
        held = held.after(event)
        if held is None:
            assert ReservationEvent.FOUND_BOUND not in events[:number]
            assert ReservationEvent.POD_ENDED not in events[:number]
            unanswered = ReservationEvent.UNANSWERED in events[:number]
            assert event is ReservationEvent.SURELY_UNBOUND or not unanswered
            return


@given(EVENTS)
def test_bound_reservation_stays_until_its_pod_ends(events: list[ReservationEvent]) -> None:
    held: Reservation | None = reservation(Stage.BOUND)
    for number, event in enumerate(events):
        held = held and held.after(event)
        assert held is not None
        ended = ReservationEvent.POD_ENDED in events[: number + 1]
        assert held.stage is (Stage.ENDED if ended else Stage.BOUND)
        assert held.bound


@pytest.mark.parametrize("stage", Stage, ids=lambda stage: stage.name)
def test_reservation_is_open_bound_or_ended(stage: Stage) -> None:
    held = reservation(stage)
    assert held.bound is not (held.stage in OPEN)
    assert held.in_doubt is (stage is Stage.IN_DOUBT)


def test_first_end_stands() -> None:
    ended = reservation(Stage.IN_DOUBT).ended(5.0)
    assert (ended.stage, ended.ended_at) == (Stage.ENDED, 5.0)
    assert ended.ended(7.0) is ended
