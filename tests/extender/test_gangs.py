"""Gangs: all of their pods are bound, or not one, whatever bandwidth there is."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from extender.node_server import PF0, pf, report
from extender.test_near_gpus import GPU, near, with_gpus
from extender.world import World, cluster, extending, until, world
from k8s_rdma.config.extender import NamespaceLimit
from k8s_rdma.core.pod_group import PodGroup
from k8s_rdma.core.types import Gang, GangApi, PodUid
from k8s_rdma.extender.gangs import Gangs
from k8s_rdma.extender.node_cache import ClusterState
from k8s_rdma.extender.pod_store import PodStore
from k8s_rdma.wire.pod_spec import LABEL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio

GANG = ("a0", "a1", "a2", "a3")
GANG_A = Gang(api=GangApi.KUBERNETES, namespace="default", name="a")
WAIT_S = 0.05


@asynccontextmanager
async def gang_world(*nodes: str, vfs: int, count: int = 4, **settings: Any) -> AsyncIterator[World]:
    """A gang of four of which so many are to be bound together, and nodes with room for so many each."""
    async with world(*nodes, **settings) as w:
        for node in w.nodes.values():
            node.report = report(node.name, pf(PF0, vfs=vfs))
        w.extender.binder.quorum.pause_s = WAIT_S
        await w.create_pod_group("a", count)
        for name in GANG:
            await w.create_pod(name, 100, gang="a")
        await w.create_pod("other", 100)
        yield w


async def filtered(w: World, *names: str) -> list[list[str]]:
    return [await w.fitting(name) for name in names]


async def bound(w: World, *places: tuple[str, str]) -> list[str]:
    """Bind them at once, as kube-scheduler does with a gang; the errors."""
    return list(await asyncio.gather(*(w.bind(name, node) for name, node in places)))


async def test_pod_is_refused_by_the_only_node_if_its_gang_takes_the_rest():
    async with gang_world("w1", vfs=3) as w:
        assert await filtered(w, *GANG[:3]) == [["w1"]] * 3
        refused = (await w.filter("a3"))["FailedNodes"]["w1"]
        assert "held for a moment for pods on their way: default/a0, default/a1, default/a2" in refused


async def test_pod_of_a_gang_is_sent_to_one_node_and_counts_for_the_next():
    async with gang_world("w1", "w2", vfs=2) as w:
        nodes = await filtered(w, *GANG)
        assert sorted(node for fitting in nodes for node in fitting) == ["w1", "w1", "w2", "w2"]


async def test_gang_that_is_filtered_again_has_the_same_room():
    async with gang_world("w1", vfs=4) as w:
        for _ in range(3):
            assert await filtered(w, *GANG) == [["w1"]] * 4


async def test_part_of_a_gang_keeps_no_other_pod_out():
    async with gang_world("w1", vfs=3) as w:
        await filtered(w, *GANG)
        assert await w.fitting("other") == ["w1"]
        assert await w.bind("other", "w1") == ""


async def test_part_of_a_gang_keeps_no_other_gang_out():
    async with gang_world("w1", vfs=3) as w:
        await filtered(w, *GANG)
        await w.create_pod_group("b", 2)
        for name in ("b0", "b1"):
            await w.create_pod(name, 100, gang="b")
        assert await filtered(w, "b0", "b1") == [["w1"]] * 2
        assert await bound(w, ("b0", "w1"), ("b1", "w1")) == ["", ""]


async def test_whole_gang_keeps_others_out_until_its_pods_are_bound():
    async with gang_world("w1", vfs=4, assume_s=60.0) as w:
        await filtered(w, *GANG)
        assert await w.fitting("other") == []
        assert await bound(w, *((name, "w1") for name in GANG)) == [""] * 4


async def test_bind_of_another_pod_does_not_take_a_whole_gangs_place():
    async with gang_world("w1", "w2", vfs=4, assume_s=60.0) as w:
        await w.filter("other", "w2")
        for name in GANG:
            assert await w.fitting(name, "w1") == ["w1"]
        assert "room is held there for 4 pods of a gang or nominated" in await w.bind("other", "w1")
        assert await bound(w, *((name, "w1") for name in GANG)) == [""] * 4


async def test_whole_gang_keeps_others_out_for_a_bounded_time_and_those_are_woken_then():
    async with gang_world("w1", vfs=4, assume_s=0.2) as w:
        await filtered(w, *GANG)
        assert await w.fitting("other") == []
        await until(lambda: "w1" in w.api.touched)
        assert await w.fitting("other") == ["w1"]


async def test_pods_are_woken_on_all_nodes_of_a_whole_gang_when_one_bind_of_it_is_refused():
    async with gang_world("w1", "w2", vfs=2, assume_s=60.0) as w:
        [[first], *_] = await filtered(w, *GANG)
        assert await w.fitting("other") == []
        w.nodes[first].holds(other=0)
        assert await w.bind("a0", first) != ""
        await until(lambda: {"w1", "w2"} - {first} <= set(w.api.touched))


async def test_gangs_pod_is_woken_when_the_gpus_that_kubelet_may_choose_are_others():
    """It fits alone before and after: with one GPU to choose, a pod reserves room on one PF of two."""
    async with world("w1", assume_s=60.0) as w:
        w.nodes["w1"].report = with_gpus("w1")
        link = w.nodes["w1"].report.pfs[0].link_mbps
        await w.create_pod_group("a", 2)
        for name in ("a0", "a1"):
            await w.create_pod(name, annotation=near(link), topology="prefer", devices={GPU: 1}, gang="a")
        assert await filtered(w, "a0", "a1") == [["w1"], []]
        assert not w.api.touched
        w.nodes["w1"].report = with_gpus("w1", 0, generation=2)
        await until(lambda: "w1" in w.api.touched)
        assert await filtered(w, "a0", "a1") == [["w1"], ["w1"]]


async def test_gang_leaves_room_for_another_pod_on_its_way():
    async with gang_world("w1", vfs=4, assume_s=60.0) as w:
        assert await w.fitting("other") == ["w1"]
        assert await filtered(w, *GANG) == [["w1"]] * 3 + [[]]
        assert await w.bind("other", "w1") == ""


async def test_no_pod_of_a_gang_is_written_before_enough_have_a_place():
    async with gang_world("w1", vfs=4) as w:
        w.extender.binder.quorum.pause_s = 60.0
        w.extender.binder.quorum.longest_s = 60.0
        early = [asyncio.create_task(w.bind(name, "w1")) for name in GANG[:3]]
        await until(lambda: len(w.extender.cache.gangs.state.pods()) == 3)
        assert not w.api.started
        assert await w.bind("a3", "w1") == ""
        assert await asyncio.gather(*early) == [""] * 3


async def test_part_of_a_gang_is_not_bound_and_keeps_no_room_afterwards():
    """Also if the binding process does not know the filter calls, for example after a take-over."""
    async with gang_world("w1", vfs=3) as w:
        errors = await bound(w, *((name, "w1") for name in GANG))
        assert sum("pod group default/a" in error for error in errors) == 3
        assert all(errors)
        assert not w.api.started
        assert not w.extender.cache.state.pods()


async def test_pods_beyond_the_number_are_bound_once_it_is_reached():
    async with gang_world("w1", vfs=4, count=3) as w:
        assert await bound(w, *((name, "w1") for name in GANG[:3])) == [""] * 3
        assert await w.bind("a3", "w1") == ""


async def test_more_than_the_number_are_bound_though_one_has_no_place():
    async with gang_world("w1", vfs=3, count=3) as w:
        errors = await bound(w, *((name, "w1") for name in GANG))
        assert sorted(map(bool, errors)) == [False, False, False, True]


async def test_pod_of_a_gang_that_asks_for_no_interfaces_counts():
    async with gang_world("w1", vfs=3, count=4) as w:
        await w.create_pod("launcher", gang="a")
        await until(lambda: w.extender.cache.gangs.placed(GANG_A) == 1)
        assert await filtered(w, *GANG[:3]) == [["w1"]] * 3
        assert await bound(w, *((name, "w1") for name in GANG[:3])) == [""] * 3


async def test_group_whose_policy_is_no_gang_binds_its_pods_one_by_one():
    async with gang_world("w1", "w2", vfs=3, count=0) as w:
        assert len(await w.fitting("a0")) == 2
        assert await w.bind("a0", "w1") == ""


async def test_pod_is_not_bound_while_its_group_is_not_there():
    async with gang_world("w1", vfs=3) as w:
        await w.create_pod("stray", 100, gang="none")
        assert await w.fitting("stray") == ["w1"]
        assert "none" in await w.bind("stray", "w1")
        assert not w.api.started


async def test_label_of_coscheduling_makes_a_gang_if_its_group_exists():
    async with gang_world("w1", vfs=1) as w:
        await w.create_coscheduling_group("c", 2)
        for name in ("c0", "c1"):
            await w.create_pod(name, 100, labels={LABEL: "c"})
        assert await filtered(w, "c0", "c1") == [["w1"], []]
        assert all(await bound(w, ("c0", "w1"), ("c1", "w1")))


async def test_label_of_coscheduling_is_ignored_without_its_group():
    async with gang_world("w1", vfs=1) as w:
        await w.create_pod("c0", 100, labels={LABEL: "c"})
        assert await w.fitting("c0") == ["w1"]
        assert await w.bind("c0", "w1") == ""


async def test_limit_of_a_namespace_counts_the_rest_of_the_gang():
    limits = (NamespaceLimit(namespace="default", vfs=3),)
    async with gang_world("w1", vfs=4, limits=limits) as w:
        assert await filtered(w, *GANG) == [["w1"]] * 3 + [[]]


async def test_gang_is_woken_when_room_comes_free_though_each_of_its_pods_fitted_before():
    async with gang_world("w1", vfs=4) as w:
        w.nodes["w1"].holds(other=0)
        assert await filtered(w, *GANG) == [["w1"]] * 3 + [[]]
        w.nodes["w1"].holds()
        await until(lambda: "w1" in w.api.touched)
        assert await filtered(w, *GANG) == [["w1"]] * 4


async def test_pod_is_not_bound_while_the_size_of_its_gang_is_unknown():
    async with gang_world("w1", vfs=4) as w:
        w.api.pod_groups_refused = True
        assert await filtered(w, *GANG) == [["w1"]] * 4
        assert await w.fitting("other") == ["w1"]
        errors = await bound(w, *((name, "w1") for name in GANG))
        assert all("forbidden" in error for error in errors)
        assert not w.api.started


async def test_group_is_read_once_for_all_of_its_pods():
    async with gang_world("w1", vfs=4) as w:
        await filtered(w, *GANG)
        assert await bound(w, *((name, "w1") for name in GANG)) == [""] * 4
        assert w.api.pod_group_reads == 1


async def test_no_pod_of_a_gang_is_bound_when_another_extender_came_to_bind_while_it_waited():
    async with gang_world("w1", vfs=4) as w:
        answers = ["", *["", "", ""], *["another"] * 4]

        async def confirm(_since: float) -> str:
            return answers.pop(0)

        w.extender.binder.confirm = confirm
        errors = await bound(w, *((name, "w1") for name in GANG))
        assert all("binds now" in error for error in errors)
        assert not w.api.started
        assert not w.extender.cache.state.pods()


async def test_client_that_disconnects_during_its_bind_leaves_no_room_reserved():
    async with gang_world("w1", vfs=4) as w:
        w.extender.binder.quorum.pause_s = 60.0
        w.extender.binder.quorum.longest_s = 60.0
        bind = asyncio.create_task(w.bind("a0", "w1"))
        await until(lambda: len(w.extender.cache.state.pods()) == 1)
        bind.cancel()
        await asyncio.wait([bind])
        assert not w.extender.cache.state.pods()


async def test_gang_that_is_filtered_again_and_again_and_never_bound_lets_others_in():
    """As when a pod of it that asks for no interfaces finds no processor."""
    async with gang_world("w1", vfs=4, assume_s=0.02) as w:
        fitting: list[str] = []
        while not fitting:
            assert await filtered(w, *GANG) == [["w1"]] * 4
            fitting = await w.fitting("other")
        assert fitting == ["w1"]


class CountingApi:
    """PodGroups of three pods, whatever their names."""

    async def get_pod_group(self, _gang: Gang) -> PodGroup:
        return PodGroup(min_count=3)


async def test_very_many_gangs_of_a_namespace_do_not_have_those_of_others_forgotten():
    gangs = Gangs(api=CountingApi(), state=ClusterState(), pods=PodStore(), clock=lambda: 0.0)
    await gangs.read(GANG_A)
    for number in range(1_500):
        await gangs.read(Gang(api=GangApi.COSCHEDULING, namespace="other", name=f"g{number}"))
    assert gangs.member_count(GANG_A) == 3
    assert len(gangs._groups) <= 1_000


@pytest.mark.parametrize("versions", [("v1alpha2",), ("v1alpha3",), ("v1alpha3", "v1beta1")])
async def test_gang_is_held_by_the_version_that_the_api_server_has(versions: tuple[str, ...]):
    async with world("w1", group_versions=versions) as w:
        w.nodes["w1"].report = report("w1", pf(PF0, vfs=3))
        w.extender.binder.quorum.pause_s = WAIT_S
        await w.create_pod_group("a", 4, version=versions[-1])
        for name in GANG:
            await w.create_pod(name, 100, gang="a")
        assert await filtered(w, *GANG) == [["w1"]] * 3 + [[]]
        assert all("pod group default/a binds together" in error for error in await bound_or_not(w, "w1"))
        assert not w.api.started


async def bound_or_not(w: World, node: str) -> list[str]:
    return await bound(w, *((name, node) for name in GANG[:3]))


@pytest.mark.parametrize(
    ("versions", "served", "advice"),
    [
        (("v2",), "v2", "has PodGroups as scheduling.k8s.io/v2 only; this k8s-rdma knows v1beta1"),
        ((), "", "turn its feature gate GenericWorkload on"),
    ],
)
async def test_gang_is_not_split_and_the_version_is_named_if_no_version_is_known(
    versions: tuple[str, ...], served: str, advice: str
):
    async with world("w1", group_versions=versions) as w:
        await w.create_pod("a0", 100, gang="a")
        await w.create_pod("other", 100)
        assert w.metric('pod_groups_unreadable{versions=""}') == 0
        assert await w.fitting("a0") == ["w1"]
        assert advice in await w.bind("a0", "w1")
        assert not w.api.started
        assert w.metric(f'pod_groups_unreadable{{versions="{served}"}}') == 1
        assert await w.bind("other", "w1") == ""


async def test_group_of_a_tree_is_refused_by_name_and_not_bound():
    async with world("w1", group_versions=("v1beta1",)) as w:
        await w.create_pod_group("a", 1, version="v1beta1", parentCompositePodGroupName="tree")
        await w.create_pod("a0", 100, gang="a")
        refused = (await w.filter("a0"))["FailedAndUnresolvableNodes"]["w1"]
        assert "pod group default/a is part of the composite pod group tree" in refused
        assert "composite pod group tree" in await w.bind("a0", "w1")
        assert not w.api.started


@pytest.mark.parametrize("count", [3, 2])
async def test_gang_is_bound_once_it_is_scaled_to_the_available_room(count: int):
    """`minCount` may change as long as the group lives, and counts from the next cycle on."""
    now = [1_000.0]
    async with cluster("w1") as made, extending(made, clock=lambda: now[0]) as w:
        w.nodes["w1"].report = report("w1", pf(PF0, vfs=3))
        w.extender.binder.quorum.pause_s = WAIT_S
        await w.create_pod_group("a", 4)
        for name in GANG:
            await w.create_pod(name, 100, gang="a")
        assert await filtered(w, *GANG) == [["w1"]] * 3 + [[]]
        assert all(await bound_or_not(w, "w1"))
        await w.scale_pod_group("a", count)
        now[0] += 11.0
        assert await filtered(w, *GANG[:3]) == [["w1"]] * 3
        assert await bound_or_not(w, "w1") == [""] * 3


async def test_priority_of_the_group_counts_instead_of_that_of_its_pods():
    async with world("w1") as w:
        await w.create_pod_group("a", 1, priority=7)
        await w.create_pod("a0", 100, gang="a")
        await w.fitting("a0")
        waiting = w.extender.cache.requests.get(PodUid(w.pods["a0"]["metadata"]["uid"]))
        assert w.extender.cache.gangs.judge(waiting.pod).priority == 7
