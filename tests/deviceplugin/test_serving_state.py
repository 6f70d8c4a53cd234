from __future__ import annotations

import pytest

from k8s_rdma.deviceplugin.plugin_server import FIRST_CALL_GRACE_S, SETTLE_S, Action, ServingState
from k8s_rdma.deviceplugin.resource import SocketFile

KUBELET, NEXT = SocketFile(1, 2, 3), SocketFile(1, 2, 4)


def standing(**changes: object) -> ServingState:
    """Followed by the kubelet that is there."""
    well = {
        "is_served_here": True,
        "kubelet": KUBELET,
        "registered": KUBELET,
        "followed": True,
        "was_followed": True,
    }
    return ServingState(**{**well, **changes})


@pytest.mark.parametrize(
    ("changes", "due"),
    [
        ({}, Action.NOTHING),
        ({"is_served_here": False}, Action.SERVE),
        ({"is_served_here": False, "kubelet": None}, Action.SERVE),
        ({"is_served_here": False, "has_successor": True}, Action.NOTHING),
        ({"kubelet": None}, Action.NOTHING),
        ({"registered": None}, Action.REGISTER),
        ({"kubelet": NEXT}, Action.REGISTER),
        ({"kubelet": NEXT, "followed": False}, Action.REGISTER),
        ({"followed": False, "since_s": SETTLE_S / 2}, Action.NOTHING),
        ({"followed": False, "since_s": SETTLE_S}, Action.REGISTER),
        ({"followed": False, "was_followed": False, "since_s": SETTLE_S}, Action.NOTHING),
        ({"followed": False, "was_followed": False, "since_s": FIRST_CALL_GRACE_S}, Action.REGISTER),
    ],
)
def test_due_steps_follow_from_the_present_state(changes: dict[str, object], due: Action) -> None:
    assert standing(**changes).next_action() is due


def test_time_left_is_that_of_the_next_registration() -> None:
    assert standing().grace_left_s() == 0
    assert standing(followed=False, since_s=SETTLE_S / 4).grace_left_s() == pytest.approx(SETTLE_S * 3 / 4)
    assert standing(kubelet=NEXT, followed=False).grace_left_s() == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"kubelet": None, "registered": None, "followed": False, "was_followed": False},
        {"is_served_here": False, "has_successor": True, "followed": False},
    ],
    ids=["no kubelet", "a successor serves"],
)
def test_no_grace_is_left_if_no_action_follows(changes: dict[str, object]) -> None:
    beyond = standing(since_s=2 * FIRST_CALL_GRACE_S, **changes)
    assert beyond.next_action() is Action.NOTHING
    assert beyond.grace_left_s() == 0
