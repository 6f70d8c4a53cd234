"""Events of kube-scheduler in large clusters, which other people could not read or did not get."""

from __future__ import annotations

from collections import Counter

import pytest

from extender.node_server import PF0, PF1, pf, report
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


@pytest.mark.anyio
async def test_event_about_interfaces_of_unlike_sizes_has_room_for_the_refusals_of_many_nodes():
    """The nodes lack bandwidth together, which sums over their PFs decide without a search.

    Source: https://github.com/koordinator-sh/koordinator/pull/3191 (a condition of 120 KB, with the free
    slots of each of thousands of nodes; mended by their number and the largest figure).
    """
    names = [f"w{number}" for number in range(1, 13)]
    async with world(*names) as w:
        for number, name in enumerate(names, 1):
            w.nodes[name].report = report(name, pf(PF0), pf(PF1), held={"other": 4_000 + 100 * number})
        await w.create_pod("p", 9_000, 8_000)
        message = fit_error([*(await w.filter("p"))["FailedNodes"].values()])
    assert message == (
        "0/12 nodes are available: "
        "12 RDMA Scheduler Extension: Node did not have enough free RDMA resources. "
        "(needs 2 interfaces of 8000 to 9000 Mb/s; too little bandwidth free, at most 15900 Mb/s on a node)."
    )


@pytest.mark.anyio
@pytest.mark.parametrize("rates", [(8_000, 8_000), (9_000, 8_000)], ids=["alike", "unlike"])
async def test_nodes_with_room_are_found_between_full_ones(rates: tuple[int, int]):
    """In any order: a node's verdict is not that of the nodes before it.

    Sources: https://github.com/kubernetes/kubernetes/issues/37232 (pods that stay pending although nodes have
    enough), https://github.com/kubernetes/kubernetes/issues/68036 (nodes that differ in their free devices).
    """
    names = [f"w{number}" for number in range(1, 13)]
    free = names[::3]
    async with world(*names) as w:
        for number, name in enumerate(names, 1):
            held = number if name in free else 4_000 + number
            w.nodes[name].report = report(name, pf(PF0), pf(PF1), held={"other": held})
        orders = (names, names[::-1], [*free, *(name for name in names if name not in free)])
        for number, order in enumerate(orders):
            pod = f"p{number}"
            await w.create_pod(pod, *(rate - number for rate in rates))  # a request not seen before
            answer = await w.filter(pod, *order)
            assert sorted(answer["NodeNames"]) == sorted(free)
            assert set(answer["FailedNodes"]) == set(names) - set(free)
