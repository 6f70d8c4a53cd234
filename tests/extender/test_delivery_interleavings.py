"""Placements delivered to agents without credentials: lost, late, repeated, forged, to agents that restart.

The extenders' calls are those of `interleaved`; the agent's judgement is the real one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

from extender.test_interleavings import KEY, W1, W2, act, ended, loop, three_pods
from extender.virtual_loop import run
from k8s_rdma.wire.placement_annotation import decode_promise, encode
from k8s_rdma.wire.placement_keys import PlacementKeys

if TYPE_CHECKING:
    from collections.abc import Mapping

    from extender.interleaved import Cluster
    from k8s_rdma.agent.cluster.no_cluster import NoCluster

_Key = TypeVar("_Key")
OTHER_KEY = PlacementKeys.shared(b"another key of this test, long")
ACTS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *["rates", "program", "wait", "run"] * 6,
                *["rates halfway", "replay", "late", "fail", "step"] * 4,
                *["program and fail", "restart", "rates halfway and take over", "forge"] * 3,
                *["stop", "start", "crash", "resume", "pause", "tell", "take over"],
                *["lose the watch", "delete"],
            ]
        ),
        st.integers(0, 7),
        st.integers(0, 7),
    ),
    min_size=20,
    max_size=80,
)


@given(acts=ACTS)
@settings(max_examples=150, deadline=None)
def test_delivered_rates_never_exceed_a_link_nor_go_back_and_are_programmed_in_the_end(acts):
    run(_play(acts))


async def _play(acts) -> None:
    cluster = await three_pods()
    for node in (W1, W2):
        cluster.start_agent(node)
    try:
        for what, which, other in acts:
            programmed, delivered = _generations(cluster), _delivered(cluster)
            await _act(cluster, what, which, other)
            await loop().settle()
            cluster.check()
            _never_back(programmed, _generations(cluster))
            _never_back(delivered, _delivered(cluster))
        await _rest(cluster)
    finally:
        await ended(cluster)


def _generations(cluster: Cluster) -> dict[str, int]:
    """Return the programmed generations by pod that has interfaces."""
    return {uid: cluster.generations[uid] for held in cluster.nodes.values() for uid in held}


def _delivered(cluster: Cluster) -> dict[tuple[NoCluster, str], int]:
    """Return the generations that count for agents, of pods that have interfaces."""
    return {
        (agent, uid): placement.generation
        for agent in cluster.agents.values()
        for uid, placement in agent.placements().items()
    }


def _never_back(before: Mapping[_Key, int], after: Mapping[_Key, int]) -> None:
    for key in before.keys() & after.keys():
        assert after[key] >= before[key], key


async def _act(cluster: Cluster, what: str, which: int, other: int) -> None:
    names = cluster.alive()
    name = names[which % len(names)] if names else None
    match what:
        case "program" | "program and fail" if name:
            cluster.program(name, fails=what != "program")
        case "start" if name and cluster.pods[name] not in _generations(cluster):
            cluster.start(name)
        case "restart":
            cluster.start_agent((W1, W2)[which % 2])
        case "replay" if cluster.delivered:
            text = cluster.delivered[-1 - which % len(cluster.delivered)]
            cluster.deliver((W1, W2)[other % 2], text)
        case "forge" if cluster.delivered:
            _forge(cluster, cluster.delivered[-1 - which % len(cluster.delivered)])
        case "program" | "program and fail" | "start" | "replay" | "forge":
            pass
        case _:
            await act(cluster, what, which, other)


def _forge(cluster: Cluster, text: str) -> None:
    """Alter a placement, or sign it with another key, or not at all: such a placement does not count."""
    promise = decode_promise(text, keys=KEY)
    unsigned = encode(promise.placement, promise.uid, None)
    generation = f'"generation":{promise.placement.generation}'
    later = text.replace(generation, f'"generation":{promise.placement.generation + 1}')
    for forged in (unsigned, encode(promise.placement, promise.uid, OTHER_KEY), later):
        before = cluster.agents[W1].placements()
        cluster.delivered.append(forged)
        assert cluster.deliver(W1, forged), forged
        assert cluster.agents[W1].placements() == before
        del cluster.delivered[-2:]


async def _rest(cluster: Cluster) -> None:
    """Wait until each pod has its last promise on its node, without further failures."""
    for replica in cluster.replicas:
        replica.paused = False
    for call in cluster.late:
        call.carry_out()
    for _ in range(300):
        await cluster.run(*cluster.replicas)
        for name in cluster.alive():
            cluster.program(name)
        cluster.check()
        if all(_is_programmed(cluster, name) for name in cluster.alive()):
            break
        await loop().advance(3.0)
    for name in cluster.alive():
        assert _is_programmed(cluster, name), name


def _is_programmed(cluster: Cluster, name: str) -> bool:
    uid = cluster.pods[name]
    held = {pod: rates for node in cluster.nodes.values() for pod, rates in node.items()}
    if uid not in held:
        return True
    return cluster.generations[uid] == cluster.generation(name) and held[uid] == cluster.promised(name)
