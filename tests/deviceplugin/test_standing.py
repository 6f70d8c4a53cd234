from __future__ import annotations

import pytest

from k8s_rdma.deviceplugin.endpoint import SocketFile
from k8s_rdma.deviceplugin.plugin_server import PATIENCE_S, SETTLE_S, Due, ServingState

KUBELET, NEXT = SocketFile(1, 2, 3), SocketFile(1, 2, 4)


def standing(**changes: object) -> ServingState:
    """Followed by the kubelet that is there."""
    well = {"ours": True, "kubelet": KUBELET, "registered": KUBELET, "followed": True, "was_followed": True}
    return ServingState(**{**well, **changes})


@pytest.mark.parametrize(
    ("changes", "due"),
    [
        ({}, Due.NOTHING),
        ({"ours": False}, Due.SERVE),
        ({"ours": False, "kubelet": None}, Due.SERVE),
        ({"ours": False, "has_rivals": True}, Due.NOTHING),
        ({"kubelet": None}, Due.NOTHING),
        ({"registered": None}, Due.REGISTER),
        ({"kubelet": NEXT}, Due.REGISTER),
        ({"kubelet": NEXT, "followed": False}, Due.REGISTER),
        ({"followed": False, "since_s": SETTLE_S / 2}, Due.NOTHING),
        ({"followed": False, "since_s": SETTLE_S}, Due.REGISTER),
        ({"followed": False, "was_followed": False, "since_s": SETTLE_S}, Due.NOTHING),
        ({"followed": False, "was_followed": False, "since_s": PATIENCE_S}, Due.REGISTER),
    ],
)
def test_what_is_due_follows_from_what_is_there(changes: dict[str, object], due: Due) -> None:
    assert standing(**changes).due() is due


def test_time_left_is_that_of_the_next_registration() -> None:
    assert standing().waits_s() == 0
    assert standing(followed=False, since_s=SETTLE_S / 4).waits_s() == pytest.approx(SETTLE_S * 3 / 4)
    assert standing(kubelet=NEXT, followed=False).waits_s() == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"kubelet": None, "registered": None, "followed": False, "was_followed": False},
        {"ours": False, "has_rivals": True, "followed": False},
    ],
    ids=["no kubelet", "a successor serves"],
)
def test_no_time_is_left_where_nothing_follows_it(changes: dict[str, object]) -> None:
    beyond = standing(since_s=2 * PATIENCE_S, **changes)
    assert beyond.due() is Due.NOTHING
    assert beyond.waits_s() == 0
