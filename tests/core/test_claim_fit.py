"""Whether claims fit a node, and the sentence if they do not."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k8s_rdma.core.claim_fit import ClaimNode, ClaimPf, ClaimsRequest, claims_fit, judge
from k8s_rdma.core.devices.requests import (
    AttributeComparison,
    CelSelector,
    Constraint,
    DeviceRequest,
    DeviceTaint,
    Toleration,
)
from k8s_rdma.core.packing import Work
from k8s_rdma.core.pf_use import Used
from k8s_rdma.core.placement import DEFAULT_BUDGET, Placement, Rejection
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


def test_node_reports_the_mbps_and_vfs_that_it_lacks():
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


def only(attribute: str, value: str | int) -> tuple[CelSelector, ...]:
    return (CelSelector(f"{attribute} == {value}", ((AttributeComparison(attribute, "==", (value,)),),)),)


def test_match_attribute_keeps_interfaces_on_pfs_of_one_value():
    """Each PF has room for one of them, and both together have room for both."""
    same = claims(request("a", 60_000), request("b", 60_000), constraints=(constraint(NUMA),))
    alike = [pf(name, attributes={NUMA: 0}) for name in ("f0", "f1")]
    assert sorted(pfs_of(claims_fit(same, node(*alike)))) == ["f0", "f1"]
    found = refused(claims_fit(same, node(alike[0], pf("f1", attributes={NUMA: 1}))))
    assert found.message.endswith("; matchAttribute resource.kubernetes.io/numaNode cannot be met")


@pytest.mark.parametrize("distinct", [False, True])
def test_constraint_leaves_out_pfs_without_the_attribute(*, distinct: bool):
    two = claims(request("a"), request("b"), constraints=(constraint(NUMA, distinct=distinct),))
    assert refused(claims_fit(two, node(pf("f0"), pf("f1"))))
    assert refused(claims_fit(two, node(pf("f0", vfs=1, attributes={NUMA: 0}), pf("f1"))))


def test_constraints_together_leave_out_pfs_without_the_attribute():
    two = claims(request("a"), request("b"), constraints=(constraint(NUMA), SPREAD))
    assert refused(claims_fit(two, node(pf("f0", attributes={NUMA: 0}), pf("f1"), pf("f2"))))


@pytest.mark.parametrize("work", range(0, 2_000, 20))
def test_search_that_ends_at_its_work_is_undecided_not_a_refusal(work: int):
    """These fit on both PFs, and on no fewer; the attribute is the same."""
    rates = [*range(9_001, 9_007), *range(10_001, 10_007), *range(14_001, 14_006)]
    pfs = [pf(name, mbps=92_060, vfs=9, attributes={NUMA: 0}) for name in ("f0", "f1")]
    pod = claims(*(request(f"r{mbps}", mbps) for mbps in rates), constraints=(constraint(NUMA),))
    found = claims_fit(pod, node(*pfs), Work(work))
    assert isinstance(found, Placement) or found.reason is Reason.UNDECIDED


def test_constraint_is_on_requests_of_its_own_claim():
    other = replace(request("b"), claim="other")
    pod = claims(request("a"), request("b"), other, constraints=(constraint(PF, "b", distinct=True),))
    assert len(pfs_of(claims_fit(pod, node(pf("f0"))))) == 3


def test_claims_do_not_spread_to_a_pf_without_a_free_vf():
    two = claims(request("a"), request("b"), constraints=(SPREAD,))
    assert refused(claims_fit(two, node(pf("f0"), pf("f1", used_vfs=8))))


def test_interfaces_that_are_alike_but_for_their_pfs_take_any_order():
    two = claims(request("a"), request("b", selectors=only(PF, "f0")), constraints=(SPREAD, constraint(NUMA)))
    pfs = (pf(name, attributes={NUMA: 0}) for name in ("f0", "f1"))
    assert pfs_of(claims_fit(two, node(*pfs))) == ["f1", "f0"]


def test_interfaces_are_spread_over_pfs_that_have_room_for_them():
    two = claims(request("a", 50_000), request("b", 50_000), constraints=(SPREAD,))
    assert sorted(pfs_of(claims_fit(two, node(pf("f0"), pf("f1", used_mbps=50_000))))) == ["f0", "f1"]
    found = refused(claims_fit(two, node(pf("f0"), pf("f1", used_mbps=60_000))))
    assert found.message.endswith("; distinctAttribute rdma.k8s-rdma.io/pf cannot be met")


def test_interface_makes_way_for_one_that_fewer_pfs_take():
    first = CelSelector("pf == f0", ((AttributeComparison(PF, "==", ("f0",)),),))
    two = claims(request("a", 2_000), request("b", 1_000, selectors=(first,)), constraints=(SPREAD,))
    assert pfs_of(claims_fit(two, node(pf("f0"), pf("f1")))) == ["f1", "f0"]


def test_interfaces_that_are_alike_but_for_constraints_take_any_order():
    near = constraint(NUMA, "a", "c")
    apart = constraint(NUMA, "b", "c", distinct=True)
    far = CelSelector("numaNode == 1", ((AttributeComparison(NUMA, "==", (1,)),),))
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


def test_selector_leaves_pfs_out_and_one_that_is_not_judged_does_not():
    only = CelSelector("expression", ((AttributeComparison(PF, "==", ("f1",)),),))
    both = node(pf("f0"), pf("f1", used_mbps=99_000))
    found = refused(claims_fit(claims(request("a", 2_000, selectors=(only,))), both))
    assert found.message == (
        "needs 1 interface of 2000 Mb/s; best PF has 1000 Mb/s and 8 VFs free; f0: not selected by expression"
    )
    unjudged = request("a", 2_000, selectors=(CelSelector("anything"),))
    assert pfs_of(claims_fit(claims(unjudged), both)) == ["f0"]


def test_lesser_alternative_counts():
    alternatives = (request("a/large", 200_000), request("a/small", 50_000))
    pod = ClaimsRequest(requests=(alternatives,), allocated={})
    assert pfs_of(claims_fit(pod, node(pf("f0")))) == ["f0"]
    found = refused(claims_fit(pod, node(pf("f0", mbps=10_000))))
    assert "needs 1 interface of 50000 Mb/s" in found.message


def alternatives(*requests: DeviceRequest, constraints: tuple[Constraint, ...] = ()) -> ClaimsRequest:
    """Three requests, each of these alternatives."""
    asked = tuple(
        tuple(replace(each, name=f"{name}/{each.name}") for each in requests) for name in ("a", "b", "c")
    )
    return ClaimsRequest(requests=asked, constraints=constraints, allocated={})


def test_preferred_alternatives_are_placed_as_far_as_the_others_leave_room():
    found = claims_fit(alternatives(request("l", 60_000), request("s", 20_000)), node(pf("f0")))
    assert isinstance(found, Placement)
    assert [interface.min_tx_rate_mbps for interface in found.interfaces] == [60_000, 20_000, 20_000]


def of_names(number: int, *requests: DeviceRequest) -> ClaimsRequest:
    """So many requests, each of these alternatives."""
    asked = tuple(
        tuple(replace(each, name=f"r{index}/{each.name}") for each in requests) for index in range(number)
    )
    return ClaimsRequest(requests=asked, allocated={})


def test_preferred_alternatives_are_found_among_any_number_of_combinations():
    pod = of_names(32, request("l", 30_000), request("s", 300))
    found = claims_fit(pod, node(pf("f0", vfs=32)))
    assert isinstance(found, Placement)
    assert Counter(each.min_tx_rate_mbps for each in found.interfaces) == {30_000: 3, 300: 29}


def test_combinations_that_all_fail_are_not_tried_for_ever():
    """As below, and too many of them."""
    pod = of_names(32, request("l", 60_000, selectors=only(PF, "f0")), request("s", selectors=only(PF, "f1")))
    found = refused(claims_fit(pod, node(pf("f0", vfs=32), pf("f1", vfs=1))))
    assert found.reason is Reason.UNDECIDED


def test_constraint_on_the_last_alternative_does_not_bind_the_first_ones():
    large_or_small = (request("a/large", 50_000), request("a/small", 10_000))
    pod = ClaimsRequest(
        requests=(large_or_small, (request("b"),)),
        constraints=(constraint(PF, "a/small", "b", distinct=True),),
        allocated={},
    )
    assert pfs_of(claims_fit(pod, node(pf("f0")))) == ["f0", "f0"]


def test_refusal_with_alternatives_is_of_the_smallest_and_names_pfs_that_take_none():
    near = CelSelector("numaNode == 0", ((AttributeComparison(NUMA, "==", (0,)),),))
    pod = alternatives(request("l", 60_000, selectors=(near,)), request("s", 20_000))
    full = node(pf("f0", used_mbps=50_000), pf("f1", used_mbps=110_000))
    found = refused(claims_fit(pod, full))
    assert found.message == (
        "with the least alternatives of firstAvailable: needs 60000 Mb/s for 3 interfaces; 1 PF has 50000 of "
        "100000 Mb/s unreserved and 8 of 8 VFs free; f1: claims have more than it has now"
    )


def test_constraint_that_no_alternative_meets_is_named():
    pod = alternatives(request("l", 60_000), request("s"), constraints=(SPREAD,))
    found = refused(claims_fit(pod, node(pf("f0"), pf("f1"))))
    assert found.message == (
        "with the least alternatives of firstAvailable: needs 3 interfaces; distinctAttribute "
        "rdma.k8s-rdma.io/pf cannot be met"
    )


def test_alternatives_that_exclude_each_other_are_refused_together():
    """Each request may have the little bandwidth, and each PF is taken; not both at once."""
    only = [CelSelector(name, ((AttributeComparison(PF, "==", (name,)),),)) for name in ("f0", "f1")]
    pod = alternatives(request("l", 60_000, selectors=(only[0],)), request("s", 10_000, selectors=(only[1],)))
    found = refused(claims_fit(pod, node(pf("f0"), pf("f1", mbps=15_000))))
    assert found.message == "no combination of the alternatives of firstAvailable fits"


def test_all_last_alternatives_are_tried_however_many_combinations_there_are():
    pod = of_names(32, *(request(f"r{index}", 99_000 - index) for index in range(7)), request("last", 3_000))
    assert len(pfs_of(claims_fit(pod, node(pf("f0", vfs=32))))) == 32
    assert refused(claims_fit(pod, node(pf("f0", vfs=31)))).reason is Reason.EXCEEDS_CAPACITY


def test_pf_that_has_less_than_its_claims_takes_no_more():
    """Source: `CmpRequestOverCapacity` of kube-scheduler counts consumed capacity (Kubernetes 1.36)."""
    found = refused(claims_fit(claims(request()), node(pf("f0", used_mbps=120_000, used_vfs=1))))
    assert found.message == "needs 1 interface; f0: claims have more than it has now"
    assert pfs_of(claims_fit(claims(request()), node(pf("f0", used_mbps=100_000)))) == ["f0"]


def test_interface_consumes_at_least_the_smallest_grant_of_its_pf():
    full = node(pf("f0", used_mbps=99_500, least_mbps=1_000), pf("f1", used_mbps=99_500, least_mbps=500))
    assert pfs_of(claims_fit(claims(request()), node(*full.pfs[1:]))) == ["f1"]
    found = refused(claims_fit(claims(request()), node(*full.pfs[:1])))
    assert found.message == "needs 1 interface of 1000 Mb/s; best PF has 500 Mb/s and 8 VFs free"


def nodes_of(number: int, *pfs: ClaimPf) -> list[ClaimNode]:
    return [ClaimNode(node=NodeName(f"w{index}"), pfs=pfs) for index in range(number)]


def test_nodes_that_are_alike_are_judged_alike_by_their_own_names():
    judged = list(judge(claims(request("a", 1_000)), nodes_of(3, pf("f0"))))
    assert [(on.node, found.node, pfs_of(found)) for on, found in judged] == [
        (name, name, ["f0"]) for name in ("w0", "w1", "w2")
    ]


def test_nodes_differ_in_attributes_that_the_request_compares():
    first = CelSelector("vendor == 1", ((AttributeComparison("x/vendor", "==", (1,)),),))
    both = [
        ClaimNode(node=NodeName(f"w{at}"), pfs=(pf("f0", attributes={"x/vendor": at, NUMA: at}),))
        for at in (0, 1)
    ]
    pod = claims(request("a", selectors=(first,)))
    assert [isinstance(found, Placement) for _, found in judge(pod, both)] == [False, True]
    pairs = [
        ClaimNode(
            node=NodeName(f"w{at}"),
            pfs=(pf("f0", attributes={NUMA: 0}), pf("f1", attributes={NUMA: at})),
        )
        for at in (0, 1)
    ]
    same = claims(request("a", 60_000), request("b", 60_000), constraints=(constraint(NUMA),))
    assert [isinstance(found, Placement) for _, found in judge(same, pairs)] == [True, False]


def test_nodes_differ_if_another_claim_is_allocated_on_one_of_them():
    pod = ClaimsRequest(requests=((request(),),), allocated={"other": frozenset({NodeName("w1")})})
    judged = judge(pod, nodes_of(3, pf("f0")))
    assert [isinstance(found, Placement) for _, found in judged] == [False, True, False]


def test_nodes_that_the_work_does_not_suffice_for_are_undecided():
    nodes = [nodes_of(1, pf("f0", used_mbps=index))[0] for index in range(50)]
    judged = [found for _, found in judge(claims(request("a", 1_000)), nodes, max_work=1_000)]
    searched = sum(isinstance(found, Placement) for found in judged)
    assert 1 < searched < 50
    assert {(refused(found).reason, refused(found).message) for found in judged[searched:]} == {
        (Reason.UNDECIDED, "the work for this answer was used up before it")
    }


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


def hard() -> tuple[ClaimsRequest, ClaimNode]:
    """Twelve interfaces on different values of two attributes; two of the one leave one of the other."""
    pairs = [*((at, at) for at in range(10)), (0, 10), (0, 11), (10, 0), (11, 0)]
    pairs += [(at, (at + 1) % 10) for at in range(10)]
    pfs = [pf(f"f{at}", attributes={NUMA: a, "x/b": b}) for at, (a, b) in enumerate(pairs)]
    both = constraint(NUMA, distinct=True), constraint("x/b", distinct=True)
    return claims(*(request(f"r{at}", 1_000 + at) for at in range(12)), constraints=both), node(*pfs)


def test_search_that_takes_too_long_is_undecided():
    assert refused(claims_fit(*hard())).reason is Reason.UNDECIDED


def test_search_for_alternatives_that_takes_too_long_is_undecided():
    pod, on = hard()
    lesser = tuple((only, replace(only, mbps=only.mbps // 2)) for [only] in pod.requests)
    found = refused(claims_fit(replace(pod, requests=lesser), on))
    assert (found.reason, found.message) == (
        Reason.UNDECIDED,
        "the search for alternatives of firstAvailable that fit together ended",
    )


def test_constraints_that_exclude_each_other_are_named_together():
    near, spread = constraint(NUMA), constraint(PF, distinct=True)
    pod = claims(request("a"), request("b"), constraints=(near, spread))
    found = refused(claims_fit(pod, node(*(pf(f"f{at}", attributes={NUMA: at}) for at in (0, 1)))))
    assert found.message == (
        "needs 2 interfaces; matchAttribute resource.kubernetes.io/numaNode and distinctAttribute "
        "rdma.k8s-rdma.io/pf cannot be met together"
    )


NUMA_NODES = [0, 1, None, frozenset({0, 1}), frozenset({1, 2}), frozenset({3})]
"""As a number or a list, or unset if the machine does not say."""


def listed(value: Any) -> frozenset[Any]:
    return value if isinstance(value, frozenset) else frozenset({value})


def test_lists_of_numa_nodes_match_if_they_share_a_node():
    near = constraint(NUMA)
    both = claims(request("a", 60_000), request("b", 60_000), constraints=(near,))
    first, second, far = frozenset({0, 1}), frozenset({1, 0}), frozenset({2, 3})
    pfs = [pf(f"f{at}", attributes={NUMA: nodes}) for at, nodes in enumerate((first, second, far))]
    assert sorted(pfs_of(claims_fit(both, node(*pfs)))) == ["f0", "f1"]
    assert refused(claims_fit(both, node(pfs[0], pfs[2]))).message.endswith(
        f"matchAttribute {NUMA} cannot be met"
    )
    chain = [pf(f"f{at}", attributes={NUMA: frozenset({at, at + 1})}) for at in range(3)]
    three = claims(*(request(name, 60_000) for name in "abc"), constraints=(near,))
    assert refused(claims_fit(three, node(*chain)))  # each two of them share one, all three do not


def test_lists_of_numa_nodes_are_distinct_if_they_share_no_node():
    apart = constraint(NUMA, distinct=True)
    both = claims(request("a"), request("b"), constraints=(apart,))
    lists = frozenset({0, 1}), frozenset({1, 2}), frozenset({2, 3})
    pfs = [pf(f"f{at}", attributes={NUMA: nodes}) for at, nodes in enumerate(lists)]
    assert sorted(pfs_of(claims_fit(both, node(*pfs)))) == ["f0", "f2"]
    assert refused(claims_fit(both, node(*pfs[:2])))


rates = st.sampled_from([0, 1_000, 25_000, 40_000, 60_000, 100_000])
nodes = st.builds(
    lambda values: node(
        *(
            pf(
                f"f{index}",
                used_mbps=mbps,
                used_vfs=vfs,
                attributes={} if numa is None else {NUMA: numa},
            )
            for index, (mbps, vfs, numa) in enumerate(values)
        )
    ),
    st.lists(
        st.tuples(st.one_of(rates, st.just(110_000)), st.integers(0, 8), st.sampled_from(NUMA_NODES)),
        max_size=4,
    ),
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
def test_placed_claims_keep_sums_and_constraints(
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
        assert agree_on(list(map(listed, values)), distinct=all_of_them.distinct)


def holds(
    placed: list[tuple[DeviceRequest, ClaimPf]], pfs: tuple[ClaimPf, ...], having: list[Constraint]
) -> bool:
    """Whether these interfaces may be on these PFs."""
    names = [(unit.name, on_pf.name) for unit, on_pf in placed if unit.count > 1]
    return (
        len(set(names)) == len(names)
        and all(
            sum(unit.mbps for unit, on_pf in placed if on_pf is each) <= each.room.mbps
            and sum(on_pf is each for _, on_pf in placed) <= each.room.vfs
            for each in pfs
        )
        and not any(on_pf.used.mbps > on_pf.mbps for _, on_pf in placed)
        and all(selector.accepts(on_pf.attributes) for unit, on_pf in placed for selector in unit.selectors)
        and all(meets(each, placed) for each in having)
    )


def meets(rule: Constraint, placed: list[tuple[DeviceRequest, ClaimPf]]) -> bool:
    values = [
        on_pf.attributes.get(rule.attribute)
        for unit, on_pf in placed
        if not rule.requests or rule.requests & {unit.name, unit.name.partition("/")[0]}
    ]
    return not values or (None not in values and agree_on(list(map(listed, values)), distinct=rule.distinct))


def agree_on(sets: list[frozenset[Any]], *, distinct: bool) -> bool:
    if distinct:
        return len(frozenset().union(*sets)) == sum(map(len, sets))
    return bool(frozenset.intersection(*sets))


def agree(pod: ClaimsRequest, on: ClaimNode, work: int) -> None:
    """The answer is that of all arrangements of all combinations of alternatives, if there is one."""
    found = claims_fit(pod, on, Work(work))
    if isinstance(found, Rejection) and found.reason is Reason.UNDECIDED:
        return
    combinations = [
        [each for each in combination for _ in range(each.count)] for combination in product(*pod.requests)
    ]
    fitting = [
        units
        for units in combinations
        if any(
            holds(list(zip(units, arrangement, strict=True)), on.pfs, list(pod.constraints))
            for arrangement in product(on.pfs, repeat=len(units))
        )
    ]
    assert isinstance(found, Placement) is bool(fitting)
    if isinstance(found, Placement):
        placed = sorted(interface.min_tx_rate_mbps for interface in found.interfaces)
        assert placed in [sorted(unit.mbps for unit in units) for units in fitting]


budgets = st.one_of(st.just(DEFAULT_BUDGET), st.integers(0, 1_000))


@settings(max_examples=300)
@given(nodes, requests.filter(lambda values: len(values) <= 3), constraints, budgets)
def test_refusal_is_that_of_every_arrangement(
    on: ClaimNode, asked: list[DeviceRequest], having: list[Constraint], work: int
):
    agree(claims(*asked, constraints=tuple(having)), on, work)


selections = st.sampled_from([(), (CelSelector("0", ((AttributeComparison(NUMA, "==", (0,)),),)),)])
alternative_lists = st.lists(st.tuples(rates, st.integers(1, 2), selections), min_size=1, max_size=3)


@settings(max_examples=300)
@given(
    nodes.filter(lambda on: len(on.pfs) <= 3),
    st.lists(alternative_lists, min_size=1, max_size=2),
    st.lists(
        st.builds(
            lambda attribute, distinct, names: constraint(attribute, *names, distinct=distinct),
            st.sampled_from([PF, NUMA]),
            st.booleans(),
            st.sets(st.sampled_from(["r0", "r0/0", "r1", "r1/1"])),
        ),
        max_size=2,
    ),
    budgets,
)
def test_alternatives_fit_if_any_combination_does(
    on: ClaimNode,
    asked: list[list[tuple[int, int, tuple[CelSelector, ...]]]],
    having: list[Constraint],
    work: int,
):
    requested = tuple(
        tuple(
            request(f"r{at}/{index}", mbps, count=count, selectors=selectors)
            for index, (mbps, count, selectors) in enumerate(alternatives)
        )
        for at, alternatives in enumerate(asked)
    )
    agree(ClaimsRequest(requests=requested, constraints=tuple(having), allocated={}), on, work)
