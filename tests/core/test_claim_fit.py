"""Whether claims fit a node, and the sentence where they do not."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k8s_rdma.core.claim_fit import (
    ClaimNode,
    ClaimPf,
    ClaimsRequest,
    Comparison,
    Constraint,
    DeviceRequest,
    DeviceTaint,
    Selector,
    Toleration,
    claims_fit,
)
from k8s_rdma.core.inventory import Used
from k8s_rdma.core.placement import Placement, Rejection
from k8s_rdma.core.types import NodeName
from k8s_rdma.errors import Reason

PF = "rdma.k8s-rdma.io/pf"
NUMA = "resource.kubernetes.io/numaNode"
DOWN = DeviceTaint("k8s-rdma.io/link-down", effect="NoSchedule")


def pf(name: str, *, used_mbps: int = 0, used_vfs: int = 0, **changes: Any) -> ClaimPf:
    attributes = {PF: name} | changes.pop("attributes", {})
    fields = {"mbps": 100_000, "vfs": 8, "used": Used(used_vfs, used_mbps), "attributes": attributes}
    return ClaimPf(**{"name": name, **fields, **changes})


def node(*pfs: ClaimPf) -> ClaimNode:
    return ClaimNode(node=NodeName("w1"), pfs=pfs)


def request(name: str = "a", mbps: int = 0, **changes: Any) -> DeviceRequest:
    return DeviceRequest(claim="net", name=name, mbps=mbps, **changes)


def claims(*requests: DeviceRequest, constraints: tuple[Constraint, ...] = ()) -> ClaimsRequest:
    alternatives = tuple((each,) for each in requests)
    return ClaimsRequest(requests=alternatives, constraints=constraints, allocated={})


def constraint(attribute: str, *requests: str, distinct: bool = False) -> Constraint:
    return Constraint(claim="net", attribute=attribute, distinct=distinct, requests=frozenset(requests))


def refused(found: Placement | Rejection) -> Rejection:
    assert isinstance(found, Rejection)
    return found


def pfs_of(found: Placement | Rejection) -> list[str]:
    assert isinstance(found, Placement), found
    return [interface.pf for interface in found.interfaces]


def test_node_says_what_it_lacks_in_mbps_and_vfs():
    three = claims(*(request(name, 90_000) for name in "abc"))
    found = refused(claims_fit(three, node(pf("f0"), pf("f1"))))
    assert found.message == (
        "needs 270000 Mb/s for 3 interfaces; 2 PFs have 200000 Mb/s and 16 VFs when empty"
    )
    assert found.reason is Reason.EXCEEDS_CAPACITY
    two = claims(request("a", 60_000), request("b", 60_000))
    found = refused(claims_fit(two, node(pf("f0", used_mbps=50_000, used_vfs=1), pf("f1"))))
    assert found.message == (
        "needs 2 interfaces of 60000 Mb/s; 2 PFs have 150000 of 200000 Mb/s unreserved and 15 of 16 VFs "
        "free, room for 1 such interface"
    )


def test_node_without_free_vfs_says_so():
    found = refused(claims_fit(claims(request()), node(pf("f0", used_vfs=8))))
    assert found.message == "needs 1 interface; 1 PF has 0 of 8 VFs free"


def test_interfaces_may_share_a_pf_unless_one_request_counts_them():
    alone = node(pf("f0"))
    assert pfs_of(claims_fit(claims(request("a"), request("b")), alone)) == ["f0", "f0"]
    found = refused(claims_fit(claims(request("a", count=2)), alone))
    assert found.message == "needs 2 interfaces; count 2 cannot be met"


def test_constraint_that_excludes_is_named():
    spread = constraint(PF, distinct=True)
    found = refused(
        claims_fit(claims(request("a", 1), request("b", 1), constraints=(spread,)), node(pf("f0")))
    )
    assert found.message.endswith("; distinctAttribute rdma.k8s-rdma.io/pf cannot be met")
    both = node(pf("f0"), pf("f1"))
    assert sorted(pfs_of(claims_fit(claims(request("a"), request("b"), constraints=(spread,)), both))) == [
        "f0",
        "f1",
    ]


def test_constraint_holds_for_its_requests_alone():
    same = constraint(NUMA, "a", "b")
    three = claims(request("a"), request("b"), request("c"), constraints=(same,))
    one = pf("f0", vfs=2, attributes={NUMA: 0})
    assert sorted(pfs_of(claims_fit(three, node(one, pf("f1", vfs=1))))) == ["f0", "f0", "f1"]
    assert refused(claims_fit(three, node(pf("f0", vfs=1, attributes={NUMA: 0}), pf("f1"))))


SPREAD = constraint(PF, distinct=True)


def test_interfaces_are_spread_over_pfs_that_have_room_for_them():
    two = claims(request("a", 50_000), request("b", 50_000), constraints=(SPREAD,))
    assert sorted(pfs_of(claims_fit(two, node(pf("f0"), pf("f1", used_mbps=50_000))))) == ["f0", "f1"]
    found = refused(claims_fit(two, node(pf("f0"), pf("f1", used_mbps=60_000))))
    assert found.message.endswith("; distinctAttribute rdma.k8s-rdma.io/pf cannot be met")


def test_interface_makes_way_for_one_that_fewer_pfs_take():
    first = Selector("pf == f0", ((Comparison(PF, "==", ("f0",)),),))
    two = claims(request("a", 2_000), request("b", 1_000, selectors=(first,)), constraints=(SPREAD,))
    assert pfs_of(claims_fit(two, node(pf("f0"), pf("f1")))) == ["f1", "f0"]


def test_interfaces_that_are_alike_but_for_constraints_take_any_order():
    near = constraint(NUMA, "a", "c")
    apart = constraint(NUMA, "b", "c", distinct=True)
    far = Selector("numaNode == 1", ((Comparison(NUMA, "==", (1,)),),))
    three = claims(request("a"), request("b"), request("c", selectors=(far,)), constraints=(near, apart))
    pfs = (pf(f"f{at}", vfs=2, attributes={NUMA: at}) for at in (0, 1))
    assert sorted(pfs_of(claims_fit(three, node(*pfs)))) == ["f0", "f1", "f1"]


def test_tainted_pf_is_left_out_and_named():
    tainted = node(pf("f0", taints=(DOWN,)))
    found = refused(claims_fit(claims(request("a", 1_000)), tainted))
    assert found.message == "needs 1 interface of 1000 Mb/s; f0: taint k8s-rdma.io/link-down"
    tolerant = request("a", tolerations=(Toleration(key=DOWN.key, operator="Exists"),))
    assert claims_fit(claims(tolerant), tainted) != found
    assert pfs_of(claims_fit(claims(tolerant), tainted)) == ["f0"]


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        (Toleration(operator="Exists"), True),
        (Toleration(key=DOWN.key), True),
        (Toleration(key=DOWN.key, value="x"), False),
        (Toleration(key=DOWN.key, effect="NoExecute"), False),
        (Toleration(key="other", operator="Exists"), False),
    ],
)
def test_tolerations_are_those_of_kubernetes(toleration: Toleration, *, tolerates: bool):
    assert toleration.tolerates(DOWN) is tolerates


def test_selector_leaves_pfs_out_and_one_that_is_not_judged_does_not():
    only = Selector("expression", ((Comparison(PF, "==", ("f1",)),),))
    both = node(pf("f0"), pf("f1", used_mbps=99_000))
    found = refused(claims_fit(claims(request("a", 2_000, selectors=(only,))), both))
    assert found.message == (
        "needs 1 interface of 2000 Mb/s; best PF has 1000 Mb/s and 8 VFs free; f0: not selected by expression"
    )
    unjudged = request("a", 2_000, selectors=(Selector("anything"),))
    assert pfs_of(claims_fit(claims(unjudged), both)) == ["f0"]


def test_lesser_alternative_counts():
    alternatives = (request("a/large", 200_000), request("a/small", 50_000))
    pod = ClaimsRequest(requests=(alternatives,), allocated={})
    assert pfs_of(claims_fit(pod, node(pf("f0")))) == ["f0"]
    found = refused(claims_fit(pod, node(pf("f0", mbps=10_000))))
    assert "needs 1 interface of 50000 Mb/s" in found.message


def test_constraint_may_name_an_alternative():
    alternatives = (request("a/large", 90_000), request("a/small", 10_000))
    same = constraint(PF, "a/large", "b")
    pod = ClaimsRequest(requests=(alternatives, (request("b", 50_000),)), constraints=(same,), allocated={})
    assert len(pfs_of(claims_fit(pod, node(pf("f0"))))) == 2
    both = pfs_of(claims_fit(pod, node(pf("f0"), pf("f1", used_mbps=60_000))))
    assert both == ["f0", "f0"]


def test_claim_that_is_allocated_binds_the_pod_to_its_node():
    pod = ClaimsRequest(requests=((request(),),), allocated={"other": frozenset({NodeName("w2")})})
    assert refused(claims_fit(pod, node(pf("f0")))).message == "claim other is allocated on node w2"


def test_search_that_takes_too_long_is_undecided():
    """Twelve interfaces on different values of two attributes; two of the one leave one of the other."""
    pairs = [*((at, at) for at in range(10)), (0, 10), (0, 11), (10, 0), (11, 0)]
    pairs += [(at, (at + 1) % 10) for at in range(10)]
    pfs = [pf(f"f{at}", attributes={NUMA: a, "x/b": b}) for at, (a, b) in enumerate(pairs)]
    both = constraint(NUMA, distinct=True), constraint("x/b", distinct=True)
    pod = claims(*(request(f"r{at}", 1_000 + at) for at in range(12)), constraints=both)
    assert refused(claims_fit(pod, node(*pfs))).reason is Reason.UNDECIDED


def test_constraints_that_exclude_each_other_are_named_together():
    near, spread = constraint(NUMA), constraint(PF, distinct=True)
    pod = claims(request("a"), request("b"), constraints=(near, spread))
    found = refused(claims_fit(pod, node(*(pf(f"f{at}", attributes={NUMA: at}) for at in (0, 1)))))
    assert found.message == (
        "needs 2 interfaces; matchAttribute resource.kubernetes.io/numaNode and distinctAttribute "
        "rdma.k8s-rdma.io/pf cannot be met together"
    )


rates = st.sampled_from([0, 1_000, 25_000, 40_000, 60_000, 100_000])
nodes = st.builds(
    lambda values: node(
        *(
            pf(f"f{index}", used_mbps=mbps, used_vfs=vfs, attributes={NUMA: numa})
            for index, (mbps, vfs, numa) in enumerate(values)
        )
    ),
    st.lists(st.tuples(rates, st.integers(0, 8), st.integers(0, 1)), max_size=4),
)
requests = st.lists(
    st.builds(lambda mbps, count: (mbps, count), rates, st.integers(1, 2)), min_size=1, max_size=5
).map(lambda values: [request(f"r{at}", mbps, count=count) for at, (mbps, count) in enumerate(values)])
constraints = st.lists(
    st.builds(
        lambda attribute, distinct, names: constraint(attribute, *names, distinct=distinct),
        st.sampled_from([PF, NUMA]),
        st.booleans(),
        st.sets(st.sampled_from(["r0", "r1", "r2"])),
    ),
    max_size=2,
)


@settings(max_examples=300)
@given(nodes, requests, constraints)
def test_what_fits_keeps_sums_and_constraints(
    on: ClaimNode, asked: list[DeviceRequest], having: list[Constraint]
):
    found = claims_fit(claims(*asked, constraints=tuple(having)), on)
    if isinstance(found, Rejection):
        assert found.message
        return
    mbps, vfs = Counter[str](), Counter[str]()
    for interface in found.interfaces:
        mbps[interface.pf] += interface.min_tx_rate_mbps
        vfs[interface.pf] += 1
    for each in on.pfs:
        assert mbps[each.name] <= each.room.mbps
        assert vfs[each.name] <= each.room.vfs
    assert sorted(Counter(mbps=sum(each.mbps * each.count for each in asked)).values()) == [
        sum(mbps.values())
    ]
    by_name = {each.name: each.attributes for each in on.pfs}
    for all_of_them in (each for each in having if not each.requests):
        values = [by_name[interface.pf][all_of_them.attribute] for interface in found.interfaces]
        assert len(set(values)) == (len(values) if all_of_them.distinct else 1)


@settings(max_examples=300)
@given(nodes, requests.filter(lambda values: len(values) <= 3), constraints)
def test_refusal_is_that_of_every_arrangement(
    on: ClaimNode, asked: list[DeviceRequest], having: list[Constraint]
):
    units = [each for each in asked for _ in range(each.count)]

    def holds(arrangement: tuple[ClaimPf, ...]) -> bool:
        placed = list(zip(units, arrangement, strict=True))
        names = [(unit.name, on_pf.name) for unit, on_pf in placed if unit.count > 1]
        return (
            len(set(names)) == len(names)
            and all(
                sum(unit.mbps for unit, on_pf in placed if on_pf is each) <= each.room.mbps
                and sum(on_pf is each for _, on_pf in placed) <= each.room.vfs
                for each in arrangement
            )
            and all(meets(each, placed) for each in having)
        )

    found = claims_fit(claims(*asked, constraints=tuple(having)), on)
    if isinstance(found, Rejection) and found.reason is Reason.UNDECIDED:
        return
    assert isinstance(found, Placement) is any(map(holds, product(on.pfs, repeat=len(units))))


def meets(rule: Constraint, placed: list[tuple[DeviceRequest, ClaimPf]]) -> bool:
    values = [
        on_pf.attributes[rule.attribute]
        for unit, on_pf in placed
        if not rule.requests or unit.name in rule.requests
    ]
    return not values or len(set(values)) == (len(values) if rule.distinct else 1)
