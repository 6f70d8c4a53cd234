"""Two binders, delayed watches, paused processes, stolen Leases, late writes: no VF or bandwidth is ever sold
twice or lost. Both are seen from outside: by the API server's pods and the nodes' own allocations."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.interleaved import Cluster, Replica
from extender.node_server import PF0, PF1
from extender.virtual_loop import VirtualLoop, run
from k8s_rdma.core.types import NodeName
from k8s_rdma.wire.placement_keys import PlacementKeys

W1, W2 = NodeName("w1"), NodeName("w2")


def loop() -> VirtualLoop:
    return cast("VirtualLoop", asyncio.get_running_loop())


async def ended(cluster: Cluster) -> None:
    for replica in list(cluster.replicas):
        await cluster.crash(replica)


async def paused_in_bind(cluster: Cluster) -> tuple[Replica, Replica, str]:
    """Two replicas; the first is stopped when all of its bind but the write is done; then the other leads."""
    first = cluster.start_replica()
    await cluster.run(first)
    second = cluster.start_replica()
    await cluster.run(second)
    assert first.leads
    assert not second.leads
    name = cluster.create(6_000)
    await cluster.run(first, second)
    cluster.bind(first, name, W1)
    await loop().settle()
    while not any(call.what.startswith("bind") for call in first.wire.calls):
        assert cluster.step(first)
        await loop().settle()
    first.paused = True
    while not second.leads:
        await loop().advance(3.0)
        await cluster.run(second)
    return first, second, name


async def _paused_leader(*, versions: bool) -> None:
    cluster = Cluster({W1: {}, W2: {}}, versions=versions)
    first, second, name = await paused_in_bind(cluster)
    other = cluster.create(6_000)
    await cluster.run(second)
    bind = cluster.bind(second, other, W1)
    await cluster.run(second)
    assert bind.result() == ""
    first.paused = False
    try:
        while any(call.what.startswith("bind") for call in first.wire.calls):
            assert cluster.step(first)
            await loop().settle()
        cluster.check()
        assert cluster.node_of(name) is None
    finally:
        await ended(cluster)


def test_leader_stopped_in_a_bind_until_another_bound_promises_no_bandwidth_twice():
    run(_paused_leader(versions=True))


def test_it_would_if_its_binding_were_not_of_one_version_of_the_pod():
    with pytest.raises(AssertionError, match="reserved"):
        run(_paused_leader(versions=False))


async def _stolen_lease() -> None:
    cluster = Cluster({W1: {}})
    first, second = cluster.start_replica(), cluster.start_replica()
    await cluster.run(first)
    await cluster.run(second)
    first.paused = True
    cluster.steal_lease(None)
    await loop().advance(3.0)
    await cluster.run(second)
    bind = cluster.bind(second, cluster.create(6_000), W1)
    await cluster.run(second)
    assert bind.result() == ""
    first.paused = False
    assert first.leads  # by its clock
    bind = cluster.bind(first, cluster.create(6_000), W1)
    while not bind.done():
        await loop().settle()
        cluster.step(first)
        await loop().settle()
    assert "another RDMA scheduler extender binds now" in bind.result()
    cluster.check()
    await ended(cluster)


def test_holder_of_a_deleted_lease_learns_so_before_its_next_bind():
    run(_stolen_lease())


async def _written_to_all_the_time() -> None:
    cluster = Cluster({W1: {}})
    replica = cluster.start_replica()
    await cluster.run(replica)
    name = cluster.create(6_000)
    await cluster.run(replica)
    bind = cluster.bind(replica, name, W1)
    while not bind.done():
        await loop().settle()
        if replica.wire.calls[0].what.startswith("bind"):
            cluster.edit(name)
        cluster.step(replica)
        await loop().settle()
    assert "written to all the time" in bind.result()
    assert not replica.wire.state.pods()
    await ended(cluster)


def test_bind_gives_up_on_a_pod_that_is_written_to_all_the_time():
    run(_written_to_all_the_time())


async def _standby() -> tuple[Cluster, Replica, str]:
    """A replica that takes the Lease of one that crashed, up to its touch of a pod; and that pod.

    Its watch has not shown yet that the one before bound another pod, which leaves no room for this one.
    """
    cluster = Cluster({W1: {}})
    first, second = cluster.start_replica(), cluster.start_replica()
    await cluster.run(first)
    await cluster.run(second)
    bound, waits = cluster.create(6_000), cluster.create(5_000)
    await cluster.run(first, second)
    bind = cluster.bind(first, bound, W1)
    await cluster.run(first)
    assert bind.result() == ""
    assert not second.leads
    refused = cluster.bind(second, waits, W1)
    await cluster.settle(second)
    assert "is starting" in refused.result()
    await cluster.crash(first)
    called: list[str] = []
    while not called or "touch" not in called[-1]:
        await loop().settle()
        called += [call.what for call in second.wire.calls[:1] if not call.sent]
        if not cluster.step(second):
            await loop().advance(1.0)
    assert "list pods" not in called
    return cluster, second, waits


async def _takes_over(*, lag_s: float = 0.0, lost: bool = False, fails: bool = False) -> list[str]:
    """Return the calls after the touch until the standby binds; it must know the bind before its Lease."""
    cluster, second, waits = await _standby()
    called: list[str] = []
    if fails:
        second.wire.fail(next(call for call in second.wire.calls if "touch" in call.what))
    else:
        await cluster.settle(second)
    assert not second.leads
    assert second.wire.state.pods() == set()
    await loop().advance(lag_s)
    if lost:
        second.wire.lose_watch()
    else:
        second.wire.tell(cluster.store.revision)
    while not second.leads:
        await loop().settle()
        called += [call.what for call in second.wire.calls[:1] if not call.sent]
        if not cluster.step(second):
            await loop().advance(0.1)
    bind = cluster.bind(second, waits, W1)
    await cluster.run(second)
    assert "best PF has 4000 Mb/s" in bind.result()
    cluster.check()
    await ended(cluster)
    return [what for what in called if "lease" not in what]


@pytest.mark.parametrize(
    ("happens", "called"),
    [
        ({}, ["touch p1"]),
        ({"lag_s": 1.0}, ["touch p1"]),
        ({"lag_s": 3.0}, ["list pods", "touch p1"]),
        ({"lost": True}, ["list pods", "touch p1"]),
        ({"fails": True}, ["list pods", "touch p1"]),
    ],
    ids=["watch is there", "watch lags", "watch lags for long", "watch is lost", "touch fails"],
)
def test_standby_binds_once_its_watch_or_a_list_has_shown_the_writes_before_its_lease(
    happens: dict[str, Any], called: list[str]
):
    found: list[str] = []

    async def main() -> None:
        found.extend(await _takes_over(**happens))

    run(main())
    assert found == called


async def _lost_watch() -> None:
    cluster = Cluster({W1: {}})
    replica = cluster.start_replica()
    await cluster.run(replica)
    replica.wire.lose_watch()
    await loop().advance(1.0)
    [listing] = replica.wire.calls
    name = cluster.create(6_000)
    bind = cluster.bind(replica, name, W1)
    while not bind.done():
        await loop().settle()
        replica.wire.calls.remove(listing)
        replica.wire.calls.append(listing)
        cluster.step(replica)
        await loop().settle()
    assert bind.result() == ""
    assert replica.wire.calls == [listing]
    cluster.delete(name)
    await _nothing_is_lost(cluster)
    await ended(cluster)


def test_pod_bound_and_deleted_during_a_list_does_not_count_for_ever():
    run(_lost_watch())


RATES = ((6_000,), (5_000,), (4_000, 3_000), (9_000,), (2_000, 2_000), (7_000,), (3_000,), (5_000, 5_000))
WHAT = st.sampled_from(
    [
        *["run", "step", "bind", "schedule", "schedule halfway"] * 4,
        *["bind halfway and take over"] * 8,
        *["create", "resume", "start", "delete"] * 3,
        *["wait", "pause", "tell", "late", "stop"] * 2,
        *["take over", "fail", "crash", "steal", "delete the lease", "edit", "lose the watch"],
    ]
)
ACTS = st.lists(st.tuples(WHAT, st.integers(0, 7), st.integers(0, 7)), min_size=20, max_size=100)


@given(acts=ACTS, pfs=st.sampled_from([(PF0,), (PF0, PF1)]))
@settings(max_examples=100, deadline=None)
def test_no_node_is_ever_promised_more_than_it_has_and_no_room_is_lost(acts, pfs):
    run(_play(acts, pfs))


KEY = PlacementKeys.shared(b"a key of this test, long enough")
CHANGES = st.sampled_from(
    [
        *["rates", "start", "wait"] * 8,
        *["rates refused and superseded", "refuse", "retry"] * 6,
        *["rates halfway and take over", "rates halfway", "late"] * 4,
        *["run", "resume", "step", "fail", "tell", "schedule"] * 2,
        *["take over", "pause", "crash", "delete the lease", "edit", "lose the watch", "stop", "delete"],
    ]
)
WITH_CHANGES = st.lists(st.tuples(CHANGES, st.integers(0, 7), st.integers(0, 7)), min_size=20, max_size=100)


@given(acts=WITH_CHANGES)
@settings(max_examples=150, deadline=None)
def test_rates_of_running_pods_change_and_no_node_is_ever_promised_more_than_it_has(acts):
    run(_play_changes(acts))


async def three_pods() -> Cluster:
    """Pods that fill a node, but for a tenth of it, and two replicas of which the first binds."""
    cluster = Cluster({W1: {}, W2: {}}, keys=KEY)
    for _ in range(2):
        cluster.start_replica()
        await cluster.run(*cluster.replicas)
    for rate in (4_000, 3_000, 2_000):
        name = cluster.create(rate)
        await cluster.run(*cluster.replicas)
        bind = cluster.bind(cluster.replicas[0], name, W1)
        await cluster.run(*cluster.replicas)
        assert bind.result() == ""
        cluster.start(name)
    return cluster


async def _play_changes(acts) -> None:
    await _act_and_check(await three_pods(), acts)


async def _play(acts, pfs: tuple[str, ...]) -> None:
    cluster = Cluster({W1: {}, W2: {}}, pfs)
    for _ in range(2):
        cluster.start_replica()
        await cluster.run(*cluster.replicas)
    await _act_and_check(cluster, acts)


async def _act_and_check(cluster: Cluster, acts) -> None:
    try:
        for what, which, other in acts:
            await act(cluster, what, which, other)
            await loop().settle()
            cluster.check()
        await _nothing_is_lost(cluster)
    finally:
        await ended(cluster)


async def act(cluster: Cluster, what: str, which: int, other: int) -> None:
    """Something of a process, of the scheduler, or of the world."""
    replica = cluster.replicas[which % len(cluster.replicas)]
    if what.startswith(("bind", "schedule")):
        await _bind(cluster, what, which, other)
    elif what.startswith("rates"):
        await _change_rates(cluster, what, which, other)
    elif what in {"run", "step", "pause", "resume", "take over", "tell", "fail", "crash", "lose the watch"}:
        await _act_of(cluster, replica, what, other)
    elif what == "wait":
        await loop().advance((0.5, 4.0, 16.0, 70.0)[other % 4])
    else:
        _befall(cluster, what, which, other)


async def _bind(cluster: Cluster, what: str, which: int, other: int) -> None:
    """Of a pod that is not bound, mostly, by who says that it is ready, mostly."""
    leading = [each for each in cluster.replicas if each.leads] if which % 4 else []
    unbound = [name for name in cluster.alive() if cluster.node_of(name) is None] if other else []
    replicas, names = leading or cluster.replicas, unbound or list(cluster.pods)
    if not names:
        return
    replica, name = replicas[which % len(replicas)], names[other % len(names)]
    if what.startswith("bind"):
        cluster.bind(replica, name, (W1, W2)[which // 4])
    elif name in unbound:
        cluster.schedule(replica, name)
    for _ in range(other + 2 if "halfway" in what else 0):
        await loop().settle()
        cluster.step(replica)
    if what.endswith("take over"):
        replica.paused = True
        await _another_leads(cluster, replica)


async def _change_rates(cluster: Cluster, what: str, which: int, other: int) -> None:
    """Of a bound pod, with as many interfaces as it has; the binder decides, or stops in the middle of it."""
    bound = [name for name in cluster.alive() if cluster.node_of(name) is not None]
    if not bound:
        return
    name = bound[which % len(bound)]
    size = len(cluster.promised(name))
    cluster.ask(name, [1_000 * (1 + (other + at) % 5) for at in range(size)])
    leading = [replica for replica in cluster.replicas if replica.leads and not replica.paused]
    if "halfway" not in what:
        await cluster.run(*leading)
        await cluster.run(*leading)
        if what.endswith("superseded"):
            cluster.refuse(name)
            await loop().advance(4.0)
            cluster.ask(name, [1_000 * (1 + (other + which + at) % 5) for at in range(size)])
            await cluster.run(*leading)
        return
    for replica in leading:
        replica.wire.tell(cluster.store.revision)
        for _ in range(4 + 2 * other):
            await loop().settle()
            cluster.step(replica)
        if what.endswith("take over"):
            replica.paused = True
            await _another_leads(cluster, replica)


async def _act_of(cluster: Cluster, replica: Replica, what: str, other: int) -> None:
    calls = replica.wire.calls
    match what:
        case "run":
            await cluster.run(replica)
        case "step":
            cluster.step(replica)
        case "pause" | "resume":
            replica.paused = what == "pause"
        case "take over":
            replica.paused = True
            await _another_leads(cluster, replica)
        case "tell" if not replica.paused:
            replica.wire.tell(cluster.store.revision - other)
        case "lose the watch" if not replica.paused:
            replica.wire.lose_watch()
        case "fail" if calls and not replica.paused:
            replica.wire.fail(calls[other % len(calls)])
        case "crash":
            await cluster.crash(replica)
            cluster.start_replica()


def _befall(cluster: Cluster, what: str, which: int, other: int) -> None:
    names = cluster.alive()
    match what:
        case "create" if len(names) < 6:
            cluster.create(*RATES[other])
        case "late" if cluster.late:
            cluster.late.pop(other % len(cluster.late)).carry_out()
        case "steal":
            cluster.steal_lease("somebody")
        case "delete the lease":
            cluster.steal_lease(None)
        case "stop" if cluster.pods:
            cluster.stop(list(cluster.pods)[-1 - other % len(cluster.pods)])
        case "delete" | "edit" | "start" | "refuse" | "retry" if names:
            getattr(cluster, what)(names[which % len(names)])


async def _another_leads(cluster: Cluster, replica: Replica) -> None:
    others = [each for each in cluster.replicas if each is not replica]
    for each in others:
        each.paused = False
    for _ in range(12):
        await cluster.run(*others)
        if any(each.leads for each in others):
            return
        await loop().advance(3.0)


async def _nothing_is_lost(cluster: Cluster) -> None:
    """If every pod is gone and the nodes are empty, each node takes a pod as large as it is."""
    for replica in cluster.replicas:
        replica.paused = False
    for call in cluster.late:
        call.carry_out()
    for name in cluster.pods:
        cluster.delete(name)
        cluster.stop(name)
    for _ in range(30):  # a Lease that was stolen is waited for, doubts are settled
        await cluster.run(*cluster.replicas)
        await loop().advance(3.0)
    await cluster.run(*cluster.replicas)
    leader = next(replica for replica in cluster.replicas if replica.leads)
    for node in cluster.nodes:
        bind = cluster.bind(leader, cluster.create(*(10_000 for _ in cluster.pfs)), node)
        await cluster.run(*cluster.replicas)
        assert bind.result() == ""
    cluster.check()
