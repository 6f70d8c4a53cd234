"""VFs of exclusive resources: they take bandwidth of a PF, but no VF that is for requests."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from factories import PF0, PF1, hardware, interface, pf_state, receipt
from k8s_rdma.core.allocation import choose_vfs, decide, foreign_usage, foreign_vfs, used_locally
from k8s_rdma.core.ledger import Ledger
from k8s_rdma.core.pf_use import DeviceUse, Used
from k8s_rdma.core.placement import Placement, Rejection, fits
from k8s_rdma.core.rate_ability import RateAbility, RateRange
from k8s_rdma.core.request import InterfaceRequest, Request
from k8s_rdma.core.round_robin import RoundRobin
from k8s_rdma.core.types import NodeName
from k8s_rdma.errors import Reason

if TYPE_CHECKING:
    from k8s_rdma.core.kernel import PfState

W1 = NodeName("w1")
RDMA = "tencent.com/rdma"
WEIGHTS = RateAbility(min=RateRange(), max=RateRange(), weights=100)


def pooled(pf: PfState, *indices: int, **changes: object) -> PfState:
    """The PF with these of its VFs in the pool, and changed."""
    vfs = (replace(vf, pool=RDMA, **changes) if vf.index in indices else vf for vf in pf.vfs)
    return replace(pf, vfs=tuple(vfs))


def held(*indices: int, minimum: int = 0) -> Ledger:
    interfaces = (replace(interface(PF0, index, minimum=minimum), pool=RDMA) for index in indices)
    return Ledger().with_receipt(receipt("a", *interfaces))


def request(*rates: int) -> Request:
    return Request(tuple(InterfaceRequest(min_tx_rate_mbps=rate) for rate in rates))


def test_capacity_is_without_the_vfs_of_pools_which_are_counted_by_resource() -> None:
    pf = hardware(pooled(pf_state(PF0), 1, 3), pf_state(PF1)).inventory(W1).pf(PF0)
    assert pf is not None
    assert (pf.capacity_vfs, pf.pools) == (2, {RDMA: 2})


def test_interface_of_a_pool_takes_bandwidth_and_no_shared_vf() -> None:
    there = hardware(pooled(pf_state(PF0), 1, 3))
    assert used_locally(there, held(1, 3, minimum=300)) == {
        PF0: Used(0, 600, devices=(DeviceUse(RDMA, 2, (300, 300), 2),))
    }


def test_foreign_vf_of_a_pool_takes_bandwidth_and_no_shared_vf() -> None:
    """Such as one that another CNI plugin attached to the pod that holds it."""
    there = hardware(pooled(pf_state(PF0), 1, netdev=None, min_tx_rate_mbps=200))
    assert foreign_usage(there, Ledger()) == {PF0: Used(0, 200, devices=(DeviceUse(RDMA, 1, (200,), 1),))}
    assert [each.pool for each in foreign_vfs(there, Ledger())] == [RDMA]


def test_vf_of_a_pool_is_never_chosen_for_a_request() -> None:
    there = hardware(pooled(pf_state(PF0), 0, 2))
    decided = decide(node=W1, request=request(0, 0), promised=None, hardware=there, ledger=Ledger())
    assert isinstance(decided, Placement)
    chosen = choose_vfs(decided, there, Ledger(), ("rdma0", "rdma1"))
    assert not isinstance(chosen, Rejection)
    assert [(each.vf.index, each.pool) for each in chosen] == [(1, ""), (3, "")]
    refused = decide(node=W1, request=request(0, 0, 0), promised=None, hardware=there, ledger=Ledger())
    assert isinstance(refused, Rejection)
    assert refused.reason is Reason.EXCEEDS_CAPACITY


def test_vfs_that_pods_may_have_are_as_many_while_a_pool_is_in_use() -> None:
    there = hardware(pooled(pf_state(PF0), 0, 2))
    decided = decide(node=W1, request=request(100, 100), promised=None, hardware=there, ledger=held(0, 2))
    assert isinstance(decided, Placement)
    crowded = held(0, 2, minimum=450)
    refused = decide(node=W1, request=request(100, 100), promised=None, hardware=there, ledger=crowded)
    assert isinstance(refused, Rejection)
    assert refused.reason is Reason.INSUFFICIENT


def test_placement_in_a_pool_fits_whatever_vfs_are_taken_and_as_long_as_there_is_bandwidth() -> None:
    """Pods may have had more VFs by annotation than there are now: the pools were made since."""
    inventory = hardware(pooled(pf_state(PF0), 0, 1, 2, 3)).inventory(W1)
    (placed,) = (each.placed() for each in held(0, minimum=400).receipts[receipt("a").attachment].interfaces)
    assert fits((placed,), inventory, {PF0: Used(2, 600)})
    assert not fits((placed,), inventory, {PF0: Used(2, 601)})


def test_vf_of_a_pool_has_its_share_if_minima_are_weights() -> None:
    there = hardware(pooled(pf_state(PF0, rates=WEIGHTS), 0, 1))
    used, pf = used_locally(there, held(0, minimum=400)), there.inventory(W1).pf(PF0)
    assert pf is not None
    round_robin = RoundRobin.for_pf(pf, used[PF0] + Used(2, 0, devices=(DeviceUse(RDMA, 2, (0,)),)))
    assert round_robin is not None
    assert (round_robin.mins, round_robin.unreserved_vfs) == ((400,), 3)
