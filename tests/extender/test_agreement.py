"""The extender concludes from a report the same as the agent that wrote it would decide."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as replace_struct

from factories import PF0, PF1, hardware, interface, pf_state, receipt
from k8s_rdma.core.allocation import choose_vfs, decide, used_locally, used_on_node
from k8s_rdma.core.expected_hardware import with_allocations as given_to_pod
from k8s_rdma.core.inventory import Generation
from k8s_rdma.core.ledger import Attachment, Ledger
from k8s_rdma.core.options import NO_OPTIONS, InterfaceOptions
from k8s_rdma.core.pf_use import Used
from k8s_rdma.core.placement import PlacedInterface, Placement, place
from k8s_rdma.core.rate_ability import EVERY_RATE, NO_RATE, RateAbility, RateRange
from k8s_rdma.core.request import InterfaceRequest, PfPolicy, Request
from k8s_rdma.core.types import ContainerId, Enforce, NodeName, PciAddress, PfSelector, Setting, VfDriver
from k8s_rdma.errors import MalformedError
from k8s_rdma.extender.node_source import facts_of
from k8s_rdma.wire.report import Allocation, ReportedPod, decode_report, encode_report
from k8s_rdma.wire.report_builder import node_report

if TYPE_CHECKING:
    from k8s_rdma.core.kernel import Hardware

W1 = NodeName("w1")
COARSE = RateAbility(min=RateRange(step=50, smallest=50, largest=900), max=RateRange(), needs_link=True)
WEIGHTS = RateAbility(min=RateRange(), max=RateRange(), weights=100)
PFS = st.builds(
    lambda pci, rates, enforce, link, driver, takes, mtu, numa: pf_state(
        pci,
        vfs=6,
        rates=rates,
        enforce=enforce,
        link_mbps=link,
        driver=driver,
        supported_settings=takes,
        mtu=mtu,
        numa_node=numa,
    ),
    st.just(PF0),
    st.sampled_from([EVERY_RATE, NO_RATE, COARSE, WEIGHTS]),
    st.sampled_from(Enforce),
    st.sampled_from([None, 1000, 1000]),
    st.sampled_from(["ice", "mlx5_core"]),
    st.sampled_from([frozenset(Setting), frozenset(Setting), frozenset({Setting.VLAN}), frozenset()]),
    st.sampled_from([1500, 9000]),
    st.sampled_from([None, 0, 1]),
)
OPTIONS = st.builds(
    InterfaceOptions,
    pf=st.none() | st.just(PfSelector(drivers=frozenset({"ice"}))),
    vlan=st.none() | st.just(7),
    mtu=st.none() | st.sampled_from([1500, 9000]),
    trust=st.none() | st.booleans(),
    driver=st.sampled_from(VfDriver),
)
ASKED = st.builds(
    lambda interfaces, policy: Request(tuple(interfaces), policy),
    st.lists(
        st.builds(
            InterfaceRequest,
            min_tx_rate_mbps=st.sampled_from([0, 10, 49, 250, 499, 500]),
            max_tx_rate_mbps=st.sampled_from([0, 0, 500, 2000]),
            enforce=st.sampled_from([Enforce.AUTO, Enforce.AUTO, Enforce.HARDWARE, Enforce.SOFTWARE]),
            options=st.just(NO_OPTIONS) | OPTIONS,
        ),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from(PfPolicy),
)


def as_used(seen: Hardware, pods: list[Request]) -> tuple[Hardware, Ledger]:
    """Return the node after its VFs were given to these pods, if they fit."""
    ledger = Ledger()
    for number, request in enumerate(pods):
        found = decide(node=W1, request=request, promised=None, hardware=seen, ledger=ledger)
        if not isinstance(found, Placement):
            continue
        names = tuple(f"rdma{at}" for at in range(len(request.interfaces)))
        chosen = choose_vfs(found, seen, ledger, names)
        assert isinstance(chosen, tuple)
        held = receipt(f"c{number}", *chosen)
        ledger = ledger.with_receipt(replace(held, pod=replace(held.pod, uid=f"uid-{number}")))
        seen = given_to_pod(seen, chosen)
    return seen, ledger


@given(PFS, PFS, st.lists(ASKED, max_size=4), st.sampled_from([0, 100, 333]), ASKED)
def test_extender_decides_as_the_agent_does(first, second, pods, foreign, request):
    second = replace(second, pci=PF1, name="enp3s0f1", vfs=pf_state(PF1, vfs=6).vfs)
    first = replace(first, vfs=(*first.vfs[:5], replace(first.vfs[5], min_tx_rate_mbps=foreign)))
    seen, ledger = as_used(hardware(first, second), pods)
    told = node_report(node=W1, generation=Generation("e", 1), hardware=seen, ledger=ledger)
    facts = facts_of(decode_report(encode_report(told)), W1)
    used = used_on_node(
        reported=facts.reported, foreign=facts.foreign, promised={}, inventory=facts.inventory
    )
    assert facts.inventory == seen.inventory(W1)
    assert used == used_locally(seen, ledger)
    by_agent = decide(node=W1, request=request, promised=None, hardware=seen, ledger=ledger)
    assert place(request, facts.inventory, used) == by_agent


def test_report_without_rates_is_no_report():
    told = node_report(node=W1, generation=Generation("e", 1), hardware=hardware(), ledger=Ledger())
    with pytest.raises(MalformedError, match="rates"):
        decode_report(encode_report(told).replace(b'"rates":', b'"said":'))


def test_reservation_counts_as_programmed_if_that_is_more():
    held = replace(interface(PF0, 0, minimum=510), set_min_tx_rate_mbps=550)
    ledger = Ledger().with_receipt(receipt("c1", held))
    told = node_report(node=W1, generation=Generation("e", 1), hardware=hardware(), ledger=ledger)
    [placed] = next(iter(facts_of(told, W1).reported.values()))
    assert placed.min_tx_rate_mbps == 550


def test_report_of_an_agent_with_fewer_fields_is_read():
    """The agent gives a pod all of its interfaces at once, and supports only rates."""
    ledger = Ledger().with_receipt(receipt("c1", interface(PF0, 0, minimum=300), interface(PF1, 0)))
    document = json.loads(
        encode_report(node_report(node=W1, generation=Generation("e", 1), hardware=hardware(), ledger=ledger))
    )
    for pf in document["pfs"]:
        for added in ("mtu", "vendor", "link_type", "takes"):
            pf.pop(added, None)
    for held in document["allocations"][0]["interfaces"]:
        for added in ("entry", "pci", "driver", "options", "software_max_tx_rate"):
            del held[added]
    facts = facts_of(decode_report(json.dumps(document).encode()), W1)
    assert facts.entries == {}
    [(uid, placed)] = facts.reported.items()
    promised = {uid: (*placed, PlacedInterface(pf=PF1, min_tx_rate_mbps=5))}
    used = used_on_node(
        reported=facts.reported,
        foreign=facts.foreign,
        promised=promised,
        entries=facts.entries,
        inventory=facts.inventory,
    )
    assert used == {PF0: Used(1, 300), PF1: Used(1, 0)}
    wants = Request((InterfaceRequest(options=InterfaceOptions(vlan=1)),))
    found = place(wants, facts.inventory, used)
    assert not isinstance(found, Placement)
    assert "cannot set vlan of a VF" in found.message
    capped = Request((InterfaceRequest(max_tx_rate_mbps=5, enforce=Enforce.SOFTWARE),))
    found = place(capped, facts.inventory, used)
    assert not isinstance(found, Placement)
    assert "its node caps nothing by software: " in found.message


def test_report_of_a_newer_agent_is_read_as_far_as_it_is_understood():
    told = node_report(
        node=W1,
        generation=Generation("e", 1),
        hardware=hardware(pf_state(PF0, supported_settings=frozenset({Setting.VLAN}))),
        ledger=Ledger(),
    )
    newer = encode_report(told).replace(b'"takes":[', b'"takes":["levitation",')
    assert newer != encode_report(told)
    [pf] = facts_of(decode_report(newer), W1).inventory.pfs
    assert pf.supported_settings == {Setting.VLAN, Setting.SOFTWARE_CAPS}


def test_receipt_without_interfaces_counts_no_pod():
    """Only another plugin was called for the pod."""
    ordinary = replace(receipt("c1"), interfaces=())
    ledger = Ledger().with_receipt(ordinary)
    told = node_report(node=W1, generation=Generation("e", 1), hardware=hardware(), ledger=ledger)
    assert told.allocations == ()
    empty = Allocation(
        pod=ReportedPod(namespace="a", name="b", uid="c"), container_id="d", phase="attached", interfaces=()
    )
    facts = facts_of(replace_struct(told, allocations=(empty,)), W1)
    assert (facts.reported, facts.entries) == ({}, {})


def test_pod_that_has_one_of_its_networks_still_has_the_others_promised():
    first = replace(interface(PF0, 0, minimum=100), entry=1)
    second = replace(interface(PF1, 0, "rdma1", minimum=40), entry=2)
    ledger = Ledger().with_receipt(receipt("c1", first))
    other = replace(receipt("c1", second), attachment=Attachment("storage", ContainerId("c1"), "eth0"))
    promised = {
        receipt().pod.uid: tuple(
            PlacedInterface(pf=pf, min_tx_rate_mbps=rate) for pf, rate in ((PF1, 7), (PF0, 100), (PF1, 40))
        )
    }

    def used(ledger: Ledger) -> dict[PciAddress, Used]:
        told = node_report(node=W1, generation=Generation("e", 1), hardware=hardware(), ledger=ledger)
        facts = facts_of(decode_report(encode_report(told)), W1)
        return used_on_node(
            reported=facts.reported,
            foreign={},
            promised=promised,
            entries=facts.entries,
            inventory=facts.inventory,
        )

    assert used(ledger) == {PF0: Used(1, 100), PF1: Used(2, 47)}
    assert used(ledger.with_receipt(other)) == {PF0: Used(1, 100), PF1: Used(2, 47)}
    assert facts_of(
        node_report(
            node=W1, generation=Generation("e", 1), hardware=hardware(), ledger=ledger.with_receipt(other)
        ),
        W1,
    ).entries == {receipt().pod.uid: {1, 2}}
