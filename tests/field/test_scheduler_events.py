"""Events of kube-scheduler in large clusters, which other people could not read or did not get."""

from __future__ import annotations

from collections import Counter

import pytest

from extender.node_server import report
from extender.world import world

NOTE_LENGTH_LIMIT = 1024
"""Of an event's note (`NoteLengthLimit`, pkg/apis/core/validation/events.go): kube-scheduler cuts it off."""


def fit_error(texts: list[str]) -> str:
    """The message of kube-scheduler (`FitError.Error`, pkg/scheduler/framework/types.go)."""
    counted = sorted(f"{number} {text}" for text, number in Counter(texts).items())
    return f"0/{len(texts)} nodes are available: {', '.join(counted)}."


@pytest.mark.anyio
async def test_event_has_room_for_the_refusals_of_many_nodes_of_which_no_two_are_alike():
    """A text for each node makes an event that is cut off, and a condition of the pod that has no limit.

    Sources: https://github.com/kubernetes/kubernetes/issues/98175 (an event with a reason for each taint is
    not stored), https://github.com/kubernetes/kubernetes/issues/27189 and
    https://github.com/volcano-sh/volcano/issues/3049 (messages with a line for each node),
    https://github.com/Project-HAMi/HAMi/issues/1332 (wanted: reasons by type, with counts).
    """
    names = [f"w{number}" for number in range(1, 13)]
    async with world(*names) as w:
        for number, name in enumerate(names, 1):
            w.nodes[name].report = report(name, held={"other": 100 * number})
        await w.create_pod("p", 9_950)
        told = fit_error([*(await w.filter("p"))["FailedNodes"].values()])
    assert len(told) <= NOTE_LENGTH_LIMIT
    assert told == (
        "0/12 nodes are available: "
        "12 RDMA Scheduler Extension: Node did not have enough free RDMA resources. "
        "(needs 1 interface of 9950 Mb/s; no PF has 9950 Mb/s free, at most 9900 Mb/s on a PF)."
    )
