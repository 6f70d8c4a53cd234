"""An extender that restarts, whatever its pods are doing, counts exactly as the one before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from extender.world import World, cluster, extending, until
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.wire.placement_keys import PlacementKeys

pytestmark = pytest.mark.anyio

KEY = PlacementKeys.shared(b"a key that agents share")
Arrange = Callable[[World, str], Awaitable[None]]


async def not_started(_w: World, _uid: str) -> None:
    pass


async def started(w: World, uid: str) -> None:
    w.nodes["w1"].holds(**{uid: 6_000})


async def sandbox_died(w: World, uid: str) -> None:
    w.nodes["w1"].holds(**{uid: 6_000})
    assert await w.fitting("q") == []
    w.nodes["w1"].holds()


async def sandbox_made_again(w: World, uid: str) -> None:
    await sandbox_died(w, uid)
    assert await w.fitting("q") == []
    w.nodes["w1"].holds(**{uid: 6_000})


async def gone_and_still_held(w: World, uid: str) -> None:
    w.nodes["w1"].holds(**{uid: 6_000})
    await w.delete_pod("p")
    await until(lambda: _over(w, uid))


@pytest.mark.parametrize(
    "arrange", [not_started, started, sandbox_died, sandbox_made_again, gone_and_still_held]
)
@pytest.mark.parametrize("binder", ["extender", "scheduler"])
async def test_bandwidth_of_a_pod_is_not_sold_in_any_of_its_states_before_and_after_a_restart(
    arrange: Arrange, binder: str
):
    key = KEY if binder == "extender" else None
    async with cluster("w1") as c:
        p = await c.create_pod("p", 6_000)
        await c.create_pod("q", 6_000)
        uid = p["metadata"]["uid"]
        async with extending(c, key, binder=binder) as w:
            if binder == "extender":
                assert await w.bind("p", "w1") == ""
            else:
                await w.bind_by_hand("p", "w1")
                while await w.fitting("q"):  # until the watch has sent it
                    pass
            await arrange(w, uid)
            await refused(w, binder)
        async with extending(c, key, binder=binder) as w:
            await refused(w, binder)
            if arrange is not gone_and_still_held:
                await w.delete_pod("p")
                await until(lambda: _over(w, uid))
            w.nodes["w1"].holds()
            assert await w.fitting("q") == ["w1"]


async def refused(w: World, binder: str) -> None:
    assert await w.fitting("q") == []
    if binder == "extender":
        assert "enough free" in await w.bind("q", "w1")


def _over(w: World, uid: str) -> bool:
    held = w.extender.cache.state.reservation(NodeName("w1"), PodUid(uid))
    return held is None or held.ended_at is not None
