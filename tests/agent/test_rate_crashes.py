"""Rates of running pods, whatever fails and whenever the agent dies: all old or all new."""

from __future__ import annotations

import json
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from agent.crash_cluster import ANNOTATIONS
from agent.machine import call
from agent.mortal import Fate, MortalPod, World, new_world
from agent.pods import PlacingCluster
from agent.test_crashes import FATES, WAYS
from factories import PF0, PF1
from k8s_rdma.core.allocation import used_locally
from k8s_rdma.core.ledger import Phase
from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.types import Enforce, NodeName, PodUid
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, encode
from k8s_rdma.wire.placement_keys import PlacementKeys

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from k8s_rdma.core.ledger import AllocatedInterface

KEY = PlacementKeys.shared(b"a key")
NETWORKS = ("net-a", "net-b")
UNHARMED = Fate()
LINK_MBPS = 100_000


def placement(generation: int, *rates: tuple[int, int]) -> Placement:
    """Interfaces on both PFs and in both networks, the last of them capped by software."""
    interfaces = tuple(
        PlacedInterface(
            pf=(PF0, PF1, PF0)[index],
            min_tx_rate_mbps=least,
            max_tx_rate_mbps=most,
            enforce=Enforce.SOFTWARE if index == 2 else Enforce.AUTO,
            options=InterfaceOptions(network=NETWORKS[index % 2]),
        )
        for index, (least, most) in enumerate(rates)
    )
    return Placement(node=NodeName("w1"), interfaces=interfaces, generation=generation)


OLD = placement(0, (500, 800), (60_000, 0), (0, 300))
NEW = placement(1, (300, 900), (70_000, 80_000), (100, 200))


class Pod(MortalPod):
    """A pod with an attachment in each network."""

    def __init__(self, world: World, cluster: PlacingCluster, name: str = "p") -> None:
        super().__init__(world, name)
        self.cluster = cluster
        self.uid = PodUid(f"uid-{name}")

    def place(self, placement: Placement) -> None:
        self.cluster.place(placement, self.uid)

    def add(self, network: str) -> Coroutine[Any, Any, Any]:
        text = encode(self.cluster.placements()[self.uid], self.uid, KEY)
        annotations = {PLACEMENT_ANNOTATION: text, "k8s.v1.cni.cncf.io/networks": ", ".join(NETWORKS)}
        conf = {"cniVersion": "1.1.0", "name": network, "type": "k8s-rdma-cni", "ipam": {"type": "book"}}
        stdin = json.dumps(conf | {"runtimeConfig": {ANNOTATIONS: annotations}}).encode()
        env = call("ADD", self.container, self.uid, self._ifname(network), name=self.name)
        return self.world.verbs.add(env, self.netns, stdin)

    def delete(self, network: str) -> Coroutine[Any, Any, Any]:
        env = call("DEL", self.container, self.uid, self._ifname(network), name=self.name)
        return self.world.verbs.delete(env, network)

    def leave(self, network: str) -> None:
        """A DEL that finds no agent."""
        name = f"{self.container}:{self._ifname(network)}:{network}"
        (self.world.directory / "run" / "deletions" / name).touch()

    def _ifname(self, network: str) -> str:
        return f"net{NETWORKS.index(network) + 1}"


@contextmanager
def placing_world() -> Iterator[tuple[World, PlacingCluster]]:
    cluster = PlacingCluster()
    with new_world(key=KEY, cluster=cluster) as world:
        yield world, cluster


def change(world: World) -> Coroutine[Any, Any, Any]:
    live_rates = world.live_rates
    return live_rates.change_all(live_rates.cluster.placements())


RATES = {
    0: [(500, 800, 0), (60_000, 0, 0), (0, 0, 300)],
    1: [(300, 900, 0), (70_000, 80_000, 0), (100, 0, 200)],
}
RATES[2] = RATES[1]


def check(world: World, *generations: int) -> int:
    """All attachments have the rates of one of these generations, by ledger and machine; return how many."""
    attached = [each for each in world.node.ledger.receipts.values() if each.phase is Phase.ATTACHED]
    assert len({receipt.generation for receipt in attached}) <= 1
    for receipt in attached:
        assert receipt.change is None
        assert receipt.generation in generations
        for interface in receipt.interfaces:
            assert programmed(world, interface) == RATES[receipt.generation][interface.entry]
    return len(attached)


def programmed(world: World, interface: AllocatedInterface) -> tuple[int, int, int]:
    """The rates of an interface, which machine and ledger have alike."""
    function, rate = world.hardware.functions[interface.vf], interface.rate()
    now = function.min_tx_rate_mbps, function.max_tx_rate_mbps, function.device.max_tx_rate_mbps
    assert now == (rate.min_tx_rate_mbps, rate.max_tx_rate_mbps, interface.software_max_tx_rate_mbps)
    return now


def start(world: World, cluster: PlacingCluster) -> Pod:
    pod = Pod(world, cluster)
    pod.place(OLD)
    for network in NETWORKS:
        [given] = world.run(pod.add(network))
        assert not isinstance(given, K8sRdmaError), given
    assert check(world, 0) == len(NETWORKS)
    return pod


def finish(world: World, *pods: Pod) -> None:
    for pod in pods:
        for network in NETWORKS:
            assert world.run(pod.delete(network)) == [None]
    world.run(world.verbs.reconcile())
    assert not world.node.ledger.receipts
    assert world.is_pristine()


def changed(fate: Fate, how: dict[str, bool], at: int, ending: str) -> bool:
    """One change in which one act goes wrong, beside a DEL if wanted; whether there was such an act."""
    with placing_world() as (world, cluster):
        pod = start(world, cluster)
        pod.place(NEW)
        calls = [change(world)]
        if ending:
            calls.insert(ending == "after", pod.delete(NETWORKS[0]))
        world.run(*calls, fate=fate)
        reached = world.life.acts > at
        if world.life.dead:
            world.restart(**how)
        if ending:
            world.run(pod.delete(NETWORKS[0]))  # the runtime repeats it
        if len(fate.fails_at) <= 1:
            check(world, 0, 1)
        pod.place(replace(NEW, generation=2))
        world.run(world.verbs.reconcile())
        world.run(change(world))
        check(world, 2)
        finish(world, pod)
        return reached


@pytest.mark.parametrize("ending", ["", "before", "after"])
@pytest.mark.parametrize(("fate", "how"), WAYS.values(), ids=WAYS)
def test_rates_are_all_old_or_all_new_whatever_fails_and_whenever(
    fate: Callable[[int], Fate], how: dict[str, bool], ending: str
) -> None:
    at = 0
    while changed(fate(at), how, at, ending):
        at += 1
    assert at > 3


class Interleaving(RuleBasedStateMachine):
    """Changes, ADDs, DELs and deaths of the agent in any order."""

    def __init__(self) -> None:
        super().__init__()
        self._open = ExitStack()
        self.world, self.cluster = self._open.enter_context(placing_world())
        self.pods = [Pod(self.world, self.cluster, name) for name in ("p", "q")]
        for pod in self.pods:
            pod.place(OLD if pod.name == "p" else replace(OLD, interfaces=placement(0, (9, 9)).interfaces))

    which, network = st.integers(0, 1), st.sampled_from(NETWORKS)
    mbps = st.sampled_from([0, 1, 500, 30_000, 60_000, 100_000])

    @rule(which=which, least=st.lists(mbps, min_size=3, max_size=3), fate=FATES, capped=st.booleans())
    def change(self, which: int, least: list[int], fate: Fate, capped: bool) -> None:
        self._place(which, least, capped=capped)
        self._run(change(self.world), fate=fate)

    @rule(which=which, least=st.lists(mbps, min_size=3, max_size=3), network=network, fate=FATES)
    def change_and_end_at_once(self, which: int, least: list[int], network: str, fate: Fate) -> None:
        self._place(which, least, capped=True)
        self._run(change(self.world), self.pods[which].delete(network), fate=fate)

    @rule(which=which, network=network, fate=FATES)
    def add(self, which: int, network: str, fate: Fate) -> None:
        self._run(self.pods[which].add(network), fate=fate)

    @rule(which=which, network=network, fate=FATES)
    def delete(self, which: int, network: str, fate: Fate) -> None:
        self._run(self.pods[which].delete(network), fate=fate)

    @rule(which=which, network=network)
    def leave_deletion(self, which: int, network: str) -> None:
        self.pods[which].leave(network)

    @rule(which=which)
    def make_sandbox(self, which: int) -> None:
        self.world.hardware.destroy_namespace(self.pods[which].netns)
        self.pods[which].make_sandbox()
        self._run(self.world.verbs.reconcile(), fate=UNHARMED)

    @rule(reboot=st.booleans())
    def die_at_rest(self, reboot: bool) -> None:
        self._die(reboot=reboot, forget_unsynced=False)

    @invariant()
    def holds(self) -> None:
        node = self.world.node
        for receipt in node.ledger.receipts.values():
            placed = self.cluster.placements()[receipt.pod.uid]
            assert receipt.generation <= placed.generation
            if receipt.change is None and not node.is_unfinished(receipt):
                for interface in receipt.interfaces:
                    programmed(self.world, interface)
        for used in used_locally(node.hardware, node.ledger).values():
            assert used.mbps <= LINK_MBPS

    def _place(self, which: int, least: list[int], *, capped: bool) -> None:
        pod = self.pods[which]
        current = self.cluster.placements()[pod.uid]
        target = placement(current.generation + 1, *((rate, max(rate, 7) if capped else 0) for rate in least))
        pod.place(replace(target, interfaces=target.interfaces[: len(current.interfaces)]))

    def _run(self, *calls: Coroutine[Any, Any, Any], fate: Fate) -> None:
        self.world.run(*calls, fate=fate)
        if self.world.life.dead:
            self._die(reboot=False, forget_unsynced=False)

    def _die(self, *, reboot: bool, forget_unsynced: bool) -> None:
        self.world.restart(reboot=reboot, forget_unsynced=forget_unsynced)
        if reboot:
            for pod in self.pods:
                pod.make_sandbox()

    def teardown(self) -> None:
        with self._open:
            self.world.run(self.world.verbs.reconcile())
            finish(self.world, *self.pods)


Interleaving.TestCase.settings = settings(max_examples=60, stateful_step_count=20)
TestInterleaving = Interleaving.TestCase
