from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.pf_usages import PCI, USAGE, Usage
from k8s_rdma.core.allocation import used_on_node
from k8s_rdma.core.inventory import Generation, Inventory, Pf
from k8s_rdma.core.pf_use import EVERY_DEVICE, NOTHING_USED, DeviceUse, Used, total
from k8s_rdma.core.placement import PlacedInterface, usage_of
from k8s_rdma.core.types import NodeName, PodUid
from packing_oracle import inventory, pci

POOL = "a.b/c"

PFS = inventory((100, 9), (100, 9))  # the third of PCI is not there

UIDS = st.sampled_from([PodUid(f"uid-{at}") for at in range(5)])

INTERFACES = st.lists(
    st.builds(PlacedInterface, pf=PCI, min_tx_rate_mbps=st.integers(0, 9), pool=st.sampled_from(["", POOL])),
    min_size=1,
    max_size=4,
).map(tuple)

CLAIMS = st.dictionaries(UIDS, INTERFACES)

_ByPod = dict[PodUid, tuple[PlacedInterface, ...]]


def _devices(mins: list[int]) -> tuple[DeviceUse, ...]:
    return (DeviceUse(POOL, EVERY_DEVICE, tuple(sorted(mins, reverse=True)), len(mins)),) if mins else ()


@given(CLAIMS, USAGE, CLAIMS)
def test_used_on_node_counts_every_pod_once_and_by_the_report_when_both_know_it(
    reported: _ByPod, foreign: Usage, promised: _ByPod
) -> None:
    used = used_on_node(reported=reported, foreign=foreign, promised=promised, inventory=PFS)
    for address in {pci(at) for at in range(3)}:
        vfs, mbps = foreign.get(address, NOTHING_USED).vfs, foreign.get(address, NOTHING_USED).mbps
        mins = []
        for uid in reported.keys() | promised.keys():
            for interface in reported.get(uid) or promised[uid]:
                if interface.pf == address:
                    vfs += not interface.pool
                    mins += [interface.min_tx_rate_mbps] if interface.pool else []
                    mbps += interface.min_tx_rate_mbps
        assert used.get(address, NOTHING_USED) == Used(vfs, mbps, devices=_devices(mins))


@given(CLAIMS, USAGE, UIDS, st.data())
def test_used_on_node_is_the_same_when_a_promise_becomes_an_allocation_network_by_network(
    promised: _ByPod, foreign: Usage, uid: PodUid, data: st.DataObject
) -> None:
    """While the report holds some of a pod's interfaces, in whatever order they came."""
    before = used_on_node(reported={}, foreign=foreign, promised=promised, inventory=PFS)
    mine = promised.get(uid, ())
    order = data.draw(st.permutations(range(len(mine))))
    for number in range(1, len(mine) + 1):
        here = order[:number]
        reported = {uid: tuple(mine[at] for at in here)}
        used = used_on_node(
            reported=reported, foreign=foreign, promised=promised, entries={uid: here}, inventory=PFS
        )
        assert used == before
    gone = {other: claim for other, claim in promised.items() if other != uid}
    first = {uid: mine[:1]} if mine else {}
    expected = used_on_node(reported=first, foreign=foreign, promised=gone, inventory=PFS)
    used = used_on_node(reported=first, foreign=foreign, promised=gone, entries={uid: [0]}, inventory=PFS)
    assert used == expected


@given(CLAIMS, USAGE, UIDS)
def test_used_on_node_is_the_same_when_a_promise_becomes_an_allocation(
    promised: _ByPod, foreign: Usage, uid: PodUid
) -> None:
    """Before the agent's report holds the pod, while both do, and when the pod has left the watch."""
    before = used_on_node(reported={}, foreign=foreign, promised=promised, inventory=PFS)
    moved = {uid: promised[uid]} if uid in promised else {}
    rest = {other: claim for other, claim in promised.items() if other != uid}
    assert used_on_node(reported=moved, foreign=foreign, promised=promised, inventory=PFS) == before
    assert used_on_node(reported=moved, foreign=foreign, promised=rest, inventory=PFS) == before


@given(CLAIMS, USAGE, CLAIMS, UIDS)
def test_used_on_node_leaves_out_the_interfaces_of_excluded_pods(
    reported: _ByPod, foreign: Usage, promised: _ByPod, uid: PodUid
) -> None:
    without = used_on_node(
        inventory=PFS,
        reported={other: claim for other, claim in reported.items() if other != uid},
        foreign=foreign,
        promised={other: claim for other, claim in promised.items() if other != uid},
    )
    assert (
        used_on_node(reported=reported, foreign=foreign, promised=promised, excluding=[uid], inventory=PFS)
        == without
    )


@given(CLAIMS, USAGE, CLAIMS, INTERFACES)
def test_used_on_node_never_falls_when_a_promise_is_added(
    reported: _ByPod, foreign: Usage, promised: _ByPod, more: tuple[PlacedInterface, ...]
) -> None:
    before = used_on_node(reported=reported, foreign=foreign, promised=promised, inventory=PFS)
    after = used_on_node(
        reported=reported, foreign=foreign, promised={**promised, PodUid("uid-new"): more}, inventory=PFS
    )
    for address, used in before.items():
        assert after[address].vfs >= used.vfs
        assert after[address].mbps >= used.mbps


@given(INTERFACES, INTERFACES)
def test_usage_of_is_additive(
    first: tuple[PlacedInterface, ...], second: tuple[PlacedInterface, ...]
) -> None:
    assert usage_of(first + second, PFS) == total(usage_of(first, PFS), usage_of(second, PFS))


@given(st.permutations(range(5)))
def test_inventory_is_equal_when_pfs_are_given_in_another_order(order: list[int]) -> None:
    pfs = [Pf(name=f"enp{at}s0", pci=pci(at), capacity_vfs=at, link_mbps=None) for at in range(5)]
    node = NodeName("w1")
    assert Inventory(node=node, pfs=tuple(pfs[at] for at in order)) == Inventory(node=node, pfs=tuple(pfs))


@pytest.mark.parametrize(
    ("generation", "text"), [(Generation("e1", 7), "e1.7"), (Generation("e2", 0), "e2.0")]
)
def test_generation_reads_epoch_dot_counter(generation: Generation, text: str) -> None:
    assert str(generation) == text
