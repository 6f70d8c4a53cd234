"""Keeping up with the cluster: lists, watches, and the conclusions if one was lost."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from extender.caches import scheduler_cache
from extender.node_server import pf, report
from k8s_rdma.config.faults import fit
from k8s_rdma.config.namespace_policies import PoliciesFile
from k8s_rdma.core.inventory import Inventory, Pf
from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.request import Request
from k8s_rdma.core.types import NodeName, PciAddress, PodUid
from k8s_rdma.extender.fit_cache import FitCache
from k8s_rdma.extender.node_source import facts_of
from k8s_rdma.extender.pod_informer import PodInformer
from k8s_rdma.extender.pod_requests import PodRequestCache
from k8s_rdma.extender.requeue import Requeuer, UnschedulablePods
from k8s_rdma.extender.reservation import Reservation
from k8s_rdma.extender.wanted_rates import WantedRates
from k8s_rdma.kube.api import PodView
from k8s_rdma.kube.errors import ApiUncertainError
from k8s_rdma.kube.informer import Changed, Deleted, Listed, ListPage, follow
from k8s_rdma.wire.annotation import ANNOTATION
from k8s_rdma.wire.extender import PodMetadata, PodToSchedule
from k8s_rdma.wire.node_facts import NodeFacts
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, encode
from k8s_rdma.wire.placement_keys import PlacementKeys, SharedKey

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from k8s_rdma.extender.node_cache import ClusterState


W1 = NodeName("w1")
PLACED = (PlacedInterface(pf=PciAddress("0000:03:00.0"), min_tx_rate_mbps=1_000),)


class Lists:
    """An API that sends the events of one stream after another, each of which is then lost."""

    def __init__(self, *streams: list) -> None:
        self.streams = list(streams)
        self.nothing_left = asyncio.Event()

    async def follow_pods(self) -> AsyncIterator:
        if not self.streams:
            self.nothing_left.set()
            await asyncio.Event().wait()
        for event in self.streams.pop(0):
            yield event
        raise ApiUncertainError("watch pods: connection lost")


class CurrentKeys:
    """The keys that a test says are in force."""

    failure = ""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched

    def __call__(self) -> PlacementKeys | None:
        return self._watched.keys


class Watched:
    """Trackers and their state."""

    def __init__(self, policies: dict | None = None) -> None:
        self.now = 0.0
        found = fit(PoliciesFile, policies or {}).to_core()
        self.requests = PodRequestCache(policies=lambda: found)
        self.waiting = UnschedulablePods()
        clock = lambda: self.now  # noqa: E731  a clock is a function
        requeuer = Requeuer(self.waiting, FitCache(), api=None, clock=clock)
        self.keys: PlacementKeys | None = None
        keys = CurrentKeys(self)
        cache = scheduler_cache(clock, requests=self.requests, requeuer=requeuer, keys=keys)
        self.state = cache.state
        self.pods = PodInformer(cache=cache, requeuer=requeuer, clock=clock, keys=keys)

    def reserve(self, name: str) -> None:
        held = Reservation(interfaces=PLACED, pod=name, created_at=self.now)
        self.state.reserve(W1, PodUid(name), held)

    def listing(self, *pods: PodView) -> None:
        self.pods.stream(Lists())
        self.pods.on_event(Listed(pods))

    def verify(self) -> None:
        """Verify placements that count unverified, as the process does once it is ready."""
        for uid in self.state.pods():
            self.pods.unverified.verify(uid)

    def ended(self, name: str) -> bool:
        return self.state.reservation(W1, PodUid(name)).ended_at is not None


def pod(
    name: str,
    node: str | None = None,
    *,
    finished: bool = False,
    uid: str = "",
    asks: str = '[{"min_tx_rate": 1000}]',
) -> PodView:
    annotations = {ANNOTATION: asks}
    if node:
        placement = Placement(node=NodeName(node), interfaces=PLACED)
        annotations[PLACEMENT_ANNOTATION] = encode(placement, PodUid(uid or name), None)
    return PodView(
        namespace="default",
        name=name,
        uid=PodUid(name),
        node=NodeName(node) if node else None,
        finished=finished,
        annotations=annotations,
    )


def test_placement_at_the_bind_counts_and_not_later_edits_of_the_owner():
    w = Watched()
    for text in ("[", "", '[{"min_tx_rate": 1000}]'):
        w.pods.on_event(Changed(pod("p", "w1", asks=text)))
        assert not w.state.pods()
    w.listing(pod("q", "w1", asks="["))
    w.pods.on_event(Deleted(pod("q")))
    w.listing()
    w.listing(pod("p", "w1"), pod("q", "w1"))
    assert w.state.pods() == {"p", "q"}


def test_listed_bound_pods_have_their_promises():
    w = Watched()
    w.listing(pod("p", "w1"), pod("q"), pod("done", "w1", finished=True), pod("copy", "w1", uid="other"))
    assert w.pods.listed
    assert w.state.pods() == {"p"}
    assert w.state.reservation(W1, PodUid("p")).bound


def test_changes_of_nodes_take_effect_at_the_end_of_the_first_list_and_later_with_each_page():
    w = Watched()
    pf = Pf(name="pf0", pci=PLACED[0].pf, capacity_vfs=8, link_mbps=100_000)
    facts = NodeFacts(
        generation="1", inventory=Inventory(node=W1, pfs=(pf,)), reported={}, foreign={}, entries={}
    )
    for attempt in range(2):  # the first list is lost half way
        w.pods.stream(Lists())
        w.state.observe(W1, facts, float(attempt))
        w.pods.on_event(ListPage((pod("p", "w1"),)))
        assert not w.state.snapshots
    w.pods.on_event(Listed((pod("q", "w1"),)))
    assert w.state.snapshots[W1].used[pf.pci].vfs == 2
    w.pods.stream(Lists())
    w.pods.on_event(ListPage((pod("r", "w1"),)))
    assert w.state.snapshots[W1].used[pf.pci].vfs == 3


def test_pod_is_gone_when_a_list_that_began_anew_does_not_hold_it():
    w = Watched()
    w.listing(pod("p", "w1"), pod("q", "w1"))
    w.now += 1
    w.pods.stream(Lists())
    w.pods.on_event(ListPage((pod("p", "w1"),)))
    w.pods.on_event(ListPage((pod("q", "w1"),), is_anew=True))
    w.pods.on_event(Listed((pod("r", "w1"),)))
    assert [w.ended(name) for name in "pqr"] == [True, False, False]
    w.now += 1
    w.pods.stream(Lists())
    w.pods.on_event(ListPage((pod("q", "w1"),)))
    w.pods.on_event(Listed((pod("r", "w1"),), is_anew=True))
    assert [w.ended(name) for name in "pqr"] == [True, True, False]


@pytest.mark.parametrize(
    ("asks", "counts"),
    [
        ('[{"min_tx_rate": 1000}]', True),
        ('[{"Min_TX_rate": 1000, "colour": "red"}]', True),
        ("", False),
        ('[{"min_tx_rate": 999}]', False),
        ('[{"min_tx_rate": 1000, "max_tx_rate": 2000}]', False),
        ('[{"min_tx_rate": 1000}, {}]', False),
        ("[", False),
    ],
)
def test_placement_that_is_not_signed_counts_only_when_the_pod_asks_for_just_that(asks, counts):
    w = Watched()
    w.listing(pod("p", "w1", asks=asks))
    assert bool(w.state.pods()) == counts


def test_placement_written_to_a_pod_that_was_bound_without_one_is_no_promise():
    """Anybody may write it if no key is used, and a Binding writes it before the pod is seen bound."""
    w = Watched()
    bare = structs.replace(pod("p", "w1"), annotations={})
    w.pods.on_event(Changed(bare))
    w.pods.on_event(Changed(pod("p", "w1")))
    w.listing(pod("p", "w1"))
    assert not w.state.pods()
    w.pods.on_event(Deleted(bare))
    w.listing()
    assert not w.pods._unpromised


class Seen(WantedRates):
    """Notes the pods that it gets."""

    def __init__(self, state: ClusterState) -> None:
        super().__init__(state)
        self.promised: list[tuple[PodUid, tuple[PlacedInterface, ...]]] = []

    def on_update(self, pod: PodView, reservation: Reservation) -> None:
        self.promised.append((pod.uid, reservation.interfaces))


def test_reservation_of_a_pod_bound_without_a_placement_is_handed_on_with_its_first_event():
    """As one that a placement says: its owner may ask for other rates from then on."""
    w = Watched()
    w.pods.holds_unplaced = True
    w.pods.wanted_rates = seen = Seen(w.state)
    w.state.observe(W1, facts_of(report("w1", pf(PLACED[0].pf)), W1), 1.0)
    w.pods.on_event(Changed(structs.replace(pod("p"), node=W1)))
    assert seen.promised == [("p", PLACED)]


def unsigned(asks: list[dict], interfaces: tuple[PlacedInterface, ...]) -> PodView:
    text = encode(Placement(node=W1, interfaces=interfaces), PodUid("p"), None)
    return structs.replace(
        pod("p", "w1"), annotations={ANNOTATION: json.dumps(asks), PLACEMENT_ANNOTATION: text}
    )


@pytest.mark.parametrize(
    ("policy", "counted"),
    [
        ({"allow": ["mac"]}, [(9_000, "02:00:00:00:00:05"), (100, None)]),
        ({"allow": ["mac"], "macs": ["02:00:00:00:01"]}, [(9_000, None), (100, None)]),
        ({}, [(9_000, None), (100, None)]),
        ({"maxReservedMbps": 500}, [(500, None), (100, None)]),
        ({"maxInterfaces": 1}, [(9_000, None)]),
    ],
)
def test_placement_that_is_not_signed_takes_no_more_than_its_namespace_may_have(policy, counted):
    w = Watched({"policies": [{"name": "a", "namespaces": ["default"], **policy}]})
    mac = InterfaceOptions(mac="02:00:00:00:00:05")
    large = replace(PLACED[0], min_tx_rate_mbps=9_000, options=mac)
    small = replace(PLACED[0], min_tx_rate_mbps=100)
    asks = [{"min_tx_rate": 9_000, "mac": mac.mac}, {"min_tx_rate": 100}]
    w.listing(unsigned(asks, (large, small)))
    held = w.state.reservation(W1, PodUid("p")).interfaces
    assert [(each.min_tx_rate_mbps, each.options.mac) for each in held] == counted


OLD, NEW = SharedKey(b"the key of before"), SharedKey(b"the key of now")


def signed(name: str, keys: PlacementKeys, **more: str) -> PodView:
    """A pod that is bound to w1, with a placement that these keys signed."""
    text = encode(Placement(node=W1, interfaces=PLACED), PodUid(name), keys)
    bound = pod(name, "w1", **more)
    return structs.replace(bound, annotations={**bound.annotations, PLACEMENT_ANNOTATION: text})


def test_signed_placement_counts_whatever_the_pod_asks_for_later():
    w = Watched()
    w.keys = PlacementKeys.shared(b"key")
    w.listing(signed("p", w.keys, asks="[{}]"))
    assert w.state.pods() == {"p"}


def test_placement_that_no_key_accepted_counts_once_one_does():
    w = Watched()
    w.keys, new = PlacementKeys.from_keys(OLD), PlacementKeys.from_keys(NEW)
    w.listing(signed("p", new))
    w.verify()
    assert w.state.pods() == set()
    assert w.pods.cache.pods.signature_counts() == {(OLD.id, "hmac-sha256", "signs"): 0, ("", "", "none"): 1}
    w.keys = PlacementKeys.from_keys(OLD, [NEW])
    w.listing(signed("p", new))
    assert w.state.pods() == {"p"}


@pytest.mark.anyio
async def test_pods_are_listed_anew_when_the_keys_change():
    w = Watched()
    w.keys = PlacementKeys.from_keys(OLD)
    seen = signed("p", PlacementKeys.from_keys(NEW))
    cluster = Lists([Listed((seen,)), Changed(seen), Changed(seen)], [Listed((seen,))])
    async for event in w.pods.stream(cluster):
        w.pods.on_event(event)
        w.verify()
        if isinstance(event, Changed):
            w.keys = PlacementKeys.from_keys(OLD, [NEW])
    assert w.state.pods() == set()
    assert len(cluster.streams) == 1
    following = asyncio.create_task(follow("pods", lambda: w.pods.stream(cluster), w.pods.on_event))
    await cluster.nothing_left.wait()
    following.cancel()
    assert w.state.pods() == {"p"}


def test_list_judged_partly_by_earlier_keys_is_incomplete():
    """For example, keys are rotated while another extender takes over: no VF must be promised twice."""
    w = Watched()
    w.keys = PlacementKeys.from_keys(OLD)
    seen = signed("p", PlacementKeys.from_keys(NEW))
    w.pods.stream(Lists())
    w.pods.on_event(ListPage((seen,)))
    w.keys = PlacementKeys.from_keys(OLD, [NEW])
    w.pods.on_event(Listed(()))
    assert not w.pods.listed
    w.listing(seen)
    assert w.pods.listed
    assert w.state.pods() == {"p"}


def test_pods_are_counted_by_the_key_that_signed_them_until_they_end():
    w = Watched()
    w.keys = PlacementKeys.from_keys(OLD)
    w.listing(signed("p", w.keys), signed("q", w.keys))
    w.verify()
    w.keys = PlacementKeys.from_keys(NEW, [OLD])
    w.reserve("r")
    w.pods.on_event(Changed(signed("r", w.keys)))
    assert w.pods.cache.pods.signature_counts() == {
        (NEW.id, "hmac-sha256", "signs"): 1,
        (OLD.id, "hmac-sha256", "verifies"): 2,
    }
    w.pods.on_event(Deleted(signed("p", w.keys)))
    w.keys = PlacementKeys.from_keys(NEW)
    assert w.pods.cache.pods.signature_counts() == {
        (NEW.id, "hmac-sha256", "signs"): 1,
        (OLD.id, "", "removed"): 1,
    }
    w.listing(signed("r", w.keys))
    assert w.pods.cache.pods.signature_counts() == {(NEW.id, "hmac-sha256", "signs"): 1}


def test_pod_that_a_later_list_misses_has_ended():
    w = Watched()
    w.listing(pod("p", "w1"), pod("q", "w1"))
    w.now = 1.0
    w.listing(pod("q", "w1"))
    assert w.ended("p")
    assert not w.ended("q")


def test_pod_bound_while_a_list_was_under_way_has_not_ended_for_missing_on_it():
    w = Watched()
    w.now = 1.0
    w.pods.stream(Lists())
    w.now = 2.0
    w.reserve("p")
    w.pods.on_event(Listed(()))
    assert not w.ended("p")


def test_waiting_pod_that_a_later_list_misses_waits_no_more():
    w = Watched()
    for name, at in (("p", 0.0), ("q", 0.0), ("r", 2.0)):
        w.waiting.refuse(PodUid(name), Request(), [W1], at, "default")
    w.now = 1.0
    w.listing(pod("q"))
    w.waiting.on_delete(PodUid("q"))
    assert w.waiting.pods_before(3.0) == ["r"]


def test_pod_in_flight_is_kept_while_it_is_listed_unbound():
    w = Watched()
    w.reserve("p")
    w.now = 1.0
    w.listing(pod("p"))
    assert not w.ended("p")
    assert not w.state.reservation(W1, PodUid("p")).bound


@pytest.mark.parametrize("event", [Deleted(pod("p", "w1")), Changed(pod("p", "w1", finished=True))])
def test_pod_that_is_gone_or_finished_has_ended_and_is_forgotten(event):
    w = Watched()
    w.listing(pod("p", "w1"))
    w.requests.put(PodToSchedule(metadata=PodMetadata(name="p", namespace="default", uid="p")), 0.0)
    w.pods.on_event(event)
    assert w.ended("p")
    assert w.requests.get(PodUid("p")) is None


@pytest.mark.anyio
async def test_follow_starts_again_after_every_loss():
    api = Lists([Listed(()), Changed(1)], [], [Listed((2,))])
    taken = []
    following = asyncio.create_task(follow("pods", api.follow_pods, taken.append, first_retry_s=0.001))
    async with asyncio.timeout(120):
        await api.nothing_left.wait()
    following.cancel()
    assert taken == [Listed(()), Changed(1), Listed((2,))]


@pytest.mark.anyio
async def test_follow_does_not_hide_a_defect():
    api = Lists([Listed(())])

    def take(_event):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await follow("pods", api.follow_pods, take)
