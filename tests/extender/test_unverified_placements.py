"""Placements that count before their signatures are verified: never less than the count without them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from structlog.testing import capture_logs

from extender.caches import scheduler_cache
from extender.node_server import PF0, PF1, pf, report
from extender.preemption import asked, create, place
from extender.world import until, world
from k8s_rdma.config.extender import NamespaceLimit
from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.pf_use import Used
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.types import NodeName, PciAddress, PodUid
from k8s_rdma.extender.fit_cache import FitCache
from k8s_rdma.extender.node_source import facts_of
from k8s_rdma.extender.pod_informer import PodInformer
from k8s_rdma.extender.requeue import Requeuer, UnschedulablePods
from k8s_rdma.extender.reservation import Reservation
from k8s_rdma.kube.api import PodView
from k8s_rdma.kube.informer import Changed, Deleted, Listed
from k8s_rdma.wire.annotation import ANNOTATION
from k8s_rdma.wire.ed25519_keys import PrivateKey
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, encode
from k8s_rdma.wire.placement_keys import PlacementKeys

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

W1 = NodeName("w1")
KEYS = PlacementKeys.from_keys(PrivateKey(b"a key of thirty-two octets......"))
FORGER = PlacementKeys.from_keys(PrivateKey(b"another of thirty-two octets...."))
PFS = (PciAddress(PF0), PciAddress(PF1))
ASKS = '[{"min_tx_rate": 1000}]'


class FixedKeys:
    failure = ""

    def __init__(self, keys: PlacementKeys | None) -> None:
        self._keys = keys

    def __call__(self) -> PlacementKeys | None:
        return self._keys


class NoEvents:
    def follow_pods(self) -> None:
        return None


class Starting:
    """An extender's caches while it reads its first list of pods."""

    def __init__(
        self, keys: PlacementKeys | None = KEYS, *, holds_unplaced: bool = False, **settings: Any
    ) -> None:
        source = FixedKeys(keys)
        requeuer = Requeuer(UnschedulablePods(), FitCache(), api=None, clock=lambda: 0.0)
        self.cache = scheduler_cache(lambda: 0.0, requeuer=requeuer, keys=source, **settings)
        self.state = self.cache.state
        self.pods = PodInformer(
            cache=self.cache,
            requeuer=requeuer,
            clock=lambda: 0.0,
            keys=source,
            holds_unplaced=holds_unplaced,
        )
        self.unverified = self.pods.unverified

    def observe(self, **held: int | list[int]) -> None:
        self.state.observe(W1, facts_of(report("w1", pf(PF0), pf(PF1), held=held), W1), 1.0)

    def listing(self, *pods: PodView) -> None:
        self.pods.stream(NoEvents())
        self.pods.on_event(Listed(pods))

    def used(self) -> Mapping[PciAddress, Used]:
        return self.state.snapshots[W1].used

    def verify(self) -> None:
        for uid in self.state.pods():
            self.unverified.verify(uid)


def bound(
    name: str,
    *interfaces: PlacedInterface,
    keys: PlacementKeys | None = KEYS,
    generation: int = 0,
    text: str | None = None,
) -> PodView:
    """A pod that is bound to w1, with a placement that these keys signed."""
    placement = Placement(node=W1, interfaces=interfaces or (placed(1_000),), generation=generation)
    text = text or encode(placement, PodUid(name), keys)
    return PodView(
        namespace="default",
        name=name,
        uid=PodUid(name),
        node=W1,
        finished=False,
        annotations={ANNOTATION: ASKS, PLACEMENT_ANNOTATION: text},
    )


def placed(mbps: int, at: int = 0, **more: Any) -> PlacedInterface:
    return PlacedInterface(pf=PFS[at], min_tx_rate_mbps=mbps, **more)


def test_placement_of_the_first_list_counts_before_its_signature_is_verified():
    s = Starting()
    s.observe()
    s.listing(bound("p"))
    assert s.pods.listed
    assert s.used() == {PFS[0]: Used(1, 1_000)}
    assert PodUid("p") in s.unverified
    assert not s.cache.pods.has_signature(PodUid("p"))
    s.verify()
    assert s.used() == {PFS[0]: Used(1, 1_000)}
    assert s.cache.pods.has_signature(PodUid("p"))
    assert len(s.unverified) == 0


def test_forged_placement_is_withdrawn_once_it_is_verified():
    s = Starting()
    s.observe()
    s.listing(bound("p", placed(9_000), keys=FORGER), bound("q"))
    assert s.used() == {PFS[0]: Used(2, 10_000)}
    with capture_logs() as logs:
        s.verify()
    assert s.used() == {PFS[0]: Used(1, 1_000)}
    assert [(line["event"], line["pod"]) for line in logs] == [("placement_ignored", "default/p")]
    assert s.cache.pods.signature_counts()["", "", "none"] == 1
    s.listing(bound("p", placed(9_000), keys=FORGER), bound("q"))
    assert s.used() == {PFS[0]: Used(1, 1_000)}, "a later list counts it again"


RATES = st.integers(0, 9_000)
HELD = st.lists(RATES, max_size=2).map(lambda rates: rates or None)
FORGED = st.lists(
    st.builds(
        placed,
        RATES,
        st.integers(0, 1),
        options=st.sampled_from([InterfaceOptions(), InterfaceOptions(mac="02:00:00:00:00:01")]),
    ),
    min_size=1,
    max_size=3,
).map(tuple)


@given(held=st.fixed_dictionaries({}, optional={"p": RATES, "q": RATES}), forged=FORGED, others=FORGED)
def test_forged_placement_never_makes_room(
    held: dict[str, int], forged: tuple[PlacedInterface, ...], others: tuple[PlacedInterface, ...]
):
    s = Starting()
    s.observe(**held)
    s.listing(bound("p", *forged, keys=FORGER), bound("q", *others))
    before = s.used()
    s.verify()
    for at, after in s.used().items():
        assert before[at].mbps >= after.mbps
        assert before[at].vfs >= after.vfs


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        pytest.param(bound("p", generation=3, keys=FORGER), "a later generation", id="later-generation"),
        pytest.param(bound("p", keys=None), "no signature", id="unsigned"),
        pytest.param(
            bound("p", placed(10, pool="example.com/vf"), keys=FORGER), "pools of devices", id="devices"
        ),
        pytest.param(bound("p", placed(10, entry=0), placed(10, 1, entry=0), keys=FORGER), "GPUs", id="gpus"),
        pytest.param(bound("p", *[placed(10)] * 200, keys=FORGER), "its length", id="long"),
        pytest.param(bound("p", text="{}"), "no placement", id="malformed"),
        pytest.param(structs.replace(bound("p"), uid=PodUid("q")), "another pod's", id="of-another-pod"),
    ],
)
def test_placement_that_may_do_more_than_take_room_is_verified_first(pod: PodView, why: str):
    s = Starting()
    s.observe(p=4_000)
    s.listing(pod)
    assert len(s.unverified) == 0, why
    assert not s.state.pods(), why


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"holds_unplaced": True}, id="pods-without-placements-have-room"),
        pytest.param({"limits": (NamespaceLimit(namespace="default", vfs=1),)}, id="quotas"),
    ],
)
def test_signatures_are_verified_first_if_more_than_room_depends_on_them(settings: dict[str, Any]):
    s = Starting(**settings)
    s.listing(bound("p"), bound("q", keys=FORGER))
    assert len(s.unverified) == 0
    assert s.state.pods() == {"p"}


def test_texts_beyond_the_limit_are_verified_at_once():
    s = Starting()
    s.unverified.max_characters = 600
    s.listing(bound("p"), bound("q"), bound("r"), bound("s"))
    assert len(s.unverified) == 2
    assert s.state.pods() == {"p", "q", "r", "s"}
    assert [s.cache.pods.has_signature(PodUid(name)) for name in "pqrs"] == [False, False, True, True]


def test_pod_that_appears_after_the_list_is_verified_at_once():
    s = Starting()
    s.listing()
    s.pods.on_event(Changed(bound("p")))
    assert s.cache.pods.has_signature(PodUid("p"))
    s.pods.on_event(Changed(bound("q", keys=FORGER)))
    assert s.state.pods() == {"p"}


def test_listed_placement_is_verified_and_not_later_edits_of_the_owner():
    s = Starting()
    s.listing(bound("p", placed(5_000)), bound("q", placed(5_000), keys=FORGER))
    s.pods.on_event(Changed(bound("p", placed(1), keys=FORGER)))
    s.pods.on_event(Changed(bound("q", placed(1))))
    s.verify()
    assert s.state.reservation(W1, PodUid("p")).interfaces == (placed(5_000),)
    assert s.state.pods() == {"p"}


def test_later_generation_replaces_one_that_waits_only_if_it_is_signed():
    s = Starting()
    s.listing(bound("p", placed(5_000)), bound("q", placed(5_000)))
    s.pods.on_event(Changed(bound("p", placed(1), generation=1, keys=FORGER)))
    s.pods.on_event(Changed(bound("q", placed(6_000), generation=1)))
    assert s.state.reservation(W1, PodUid("p")).generation == 0
    assert s.state.reservation(W1, PodUid("q")).generation == 1
    assert PodUid("p") in s.unverified
    assert PodUid("q") not in s.unverified


def test_forged_placement_of_a_pod_that_ends_counts_no_longer():
    """A genuine one counts until its node says that the pod holds no more interfaces."""
    s = Starting()
    s.observe()
    s.listing(bound("p"), bound("q", placed(5_000), keys=FORGER))
    for name in "pq":
        s.pods.on_event(Deleted(bound(name)))
    assert s.used() == {PFS[0]: Used(1, 1_000)}
    assert len(s.unverified) == 0
    assert not s.cache.pods.has_signature(PodUid("p")), "a record of a pod that is gone"


@pytest.mark.anyio
async def test_all_placements_are_verified_in_the_background_and_waiters_are_called_once():
    s, called = Starting(), []
    warm = asyncio.Event()
    s.listing(*(bound(f"p{index}", keys=FORGER if index % 2 else KEYS) for index in range(20)))
    assert not s.unverified.is_empty()
    running = asyncio.create_task(
        # Somebody else asks at any time, also between the last one and the call.
        s.unverified.run(warm.is_set, s.unverified.is_empty, lambda: called.append(len(s.unverified)))
    )
    await asyncio.sleep(0)
    assert len(s.unverified) == 20
    warm.set()
    await until(lambda: bool(called))
    assert s.state.pods() == {f"p{index}" for index in range(0, 20, 2)}
    assert s.unverified.is_empty()
    s.unverified.put(PodUid("late"), "{}", KEYS)
    await until(lambda: not len(s.unverified))
    assert called == [0]
    running.cancel()


@pytest.mark.anyio
async def test_no_pod_is_evicted_before_all_placements_are_verified():
    async with world("w1", key=KEYS) as w:
        await place(w, "victim", "w1", 9_000)
        await create(w, "vip", 9_000, priority=5)
        assert await w.fitting("vip", "w1") == []
        await until(lambda: w.extender.preempting.budgets.synced)
        unverified = w.extender.leadership.pods.unverified
        w.extender.cache.state.reserve(
            W1, PodUid("forged"), Reservation(interfaces=(placed(1),), pod="d/forged", created_at=0.0)
        )
        forged = encode(Placement(node=W1, interfaces=(placed(1),)), PodUid("forged"), FORGER)
        unverified.put(PodUid("forged"), forged, KEYS)
        assert not w.extender.readiness.verified()
        assert w.extender.readiness.ready()
        assert await asked(w, "vip", w1=["victim"]) == {}
        await until(w.extender.readiness.verified)
        assert await asked(w, "vip", w1=["victim"]) == {"w1": (["victim"], 0)}
