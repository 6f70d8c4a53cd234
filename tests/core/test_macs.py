"""MACs and GUIDs: one function of a node has an address at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.chosen_vfs import altered, asking, chosen_for
from core.node_claims import W1, allocated, for_claims
from factories import PF0, PF1, hardware, interface, receipt, vf
from k8s_rdma.core.allocation import choose_vfs
from k8s_rdma.core.claims import AllocatedClaim, judge
from k8s_rdma.core.expected_hardware import with_allocations as given_to_pod
from k8s_rdma.core.ledger import Ledger, LedgerClaim
from k8s_rdma.core.options import NO_OPTIONS, InterfaceOptions
from k8s_rdma.core.placement import Rejection
from k8s_rdma.core.types import Setting
from k8s_rdma.errors import Reason


def test_mac_that_another_function_has_is_refused_until_its_pod_has_ended() -> None:
    found = for_claims(hardware())
    able = frozenset({Setting.MAC})
    found = replace(found, pfs=tuple(replace(pf, supported_settings=able) for pf in found.pfs))

    def refused(mac: str, ledger: Ledger) -> tuple[Reason, str]:
        claim = allocated("c2", (PF0, 0), name="q")
        options = InterfaceOptions(mac=mac)
        [entry] = claim.interfaces
        claim = replace(
            claim, interfaces=(replace(entry, interface=replace(entry.interface, options=options)),)
        )
        judged = judge(claim, W1, found, ledger)
        assert isinstance(judged, Rejection)
        return judged.reason, judged.message

    free = found.pfs[1].vfs[2].mac
    why = f"request r0 asks for MAC {free}, which VF 2 of PF enp3s0f1 has"
    assert refused(free, Ledger()) == (Reason.CONFLICT, why)
    requested = InterfaceOptions(mac="02:00:00:00:00:77")
    attached = Ledger().with_receipt(receipt("a", replace(interface(PF1, 0), options=requested)))
    why = "request r0 asks for MAC 02:00:00:00:00:77, which interface rdma0 of pod default/p has"
    assert refused("02:00:00:00:00:77", attached) == (Reason.INSUFFICIENT, why)
    judged = judge(allocated("c1", (PF1, 0)), W1, found, Ledger())
    assert isinstance(judged, LedgerClaim)
    [prepared] = judged.interfaces
    prepared = replace(prepared, placed=replace(prepared.placed, options=requested))
    ledger = Ledger().with_claim(replace(judged, interfaces=(prepared,)))
    why = "request r0 asks for MAC 02:00:00:00:00:77, which request r0 of claim default/c1 has"
    assert refused("02:00:00:00:00:77", ledger) == (Reason.INSUFFICIENT, why)


@pytest.mark.parametrize("namespace", ["default", "other"])
def test_refusal_for_an_address_names_its_owner_to_those_of_its_namespace_alone(namespace: str) -> None:
    found = for_claims(hardware())
    able = frozenset({Setting.MAC})
    found = replace(found, pfs=tuple(replace(pf, supported_settings=able) for pf in found.pfs))
    requested = InterfaceOptions(mac="02:00:00:00:00:77")
    attached = Ledger().with_receipt(receipt("a", replace(interface(PF1, 0), options=requested)))
    claim = allocated("c2", (PF0, 0), name="q")
    [entry] = claim.interfaces
    entry = replace(entry, interface=replace(entry.interface, options=requested))
    claim = replace(claim, interfaces=(entry,))
    judged = judge(claim, W1, found, attached)
    assert isinstance(judged, Rejection)
    owner = "interface rdma0 of pod default/p" if namespace == "default" else "a pod of another namespace"
    why = f"request r0 asks for MAC 02:00:00:00:00:77, which {owner} has"
    assert judged.message_for(namespace) == why


def test_guid_that_a_pod_of_the_node_asks_for_is_refused_to_a_second_one() -> None:
    found = for_claims(hardware())
    able = frozenset({Setting.GUID})
    found = replace(found, pfs=tuple(replace(pf, supported_settings=able) for pf in found.pfs))
    requested = InterfaceOptions(guid="02:00:00:ff:fe:00:00:77")

    def asking(uid: str) -> AllocatedClaim:
        claim = allocated(uid, (PF0, 0), name=uid)
        [entry] = claim.interfaces
        entry = replace(entry, interface=replace(entry.interface, options=requested))
        return replace(claim, interfaces=(entry,))

    first = judge(asking("c1"), W1, found, Ledger())
    assert isinstance(first, LedgerClaim)
    second = judge(asking("c2"), W1, found, Ledger().with_claim(first))
    assert isinstance(second, Rejection)
    why = "asks for GUID 02:00:00:ff:fe:00:00:77, which request r0 of claim default/c1 has"
    assert (second.reason, why in second.message) == (Reason.INSUFFICIENT, True)


@pytest.mark.parametrize(
    ("admin_mac", "mac"),
    [
        ("02:00:00:00:00:99", "02:00:00:00:00:99"),
        ("00:00:00:00:00:00", vf(PF0, 0).mac),
        ("", vf(PF0, 0).mac),
        ("0a:00:00:00:00:00:00:08", vf(PF0, 0).mac),
    ],
    ids=["its PF's", "none told", "not known", "a GUID"],
)
def test_choose_vfs_gives_a_vf_the_mac_that_its_pf_has_for_it(admin_mac: str, mac: str) -> None:
    seen = altered(0, admin_mac=admin_mac)
    [made] = chosen_for(asking(NO_OPTIONS), seen)
    assert (made.mac, made.home.mac) == (mac, mac)
    assert given_to_pod(seen, [made]).pfs[0].vfs[0].mac == mac


def test_choose_vfs_refuses_a_mac_while_something_else_on_the_node_has_it() -> None:
    def refused(mac: str, ledger: Ledger | None = None) -> str:
        asked = asking(NO_OPTIONS, InterfaceOptions(mac=mac))
        seen = altered(3, admin_mac="02:00:00:00:00:99", netdev=None)
        found = choose_vfs(asked, seen, ledger or Ledger(), ("x", "y"))
        assert isinstance(found, Rejection)
        assert found.reason is Reason.CONFLICT
        return found.message

    of_pf1 = vf(PF1, 2).mac
    assert refused("02:00:00:00:00:99").endswith("which VF 3 of PF enp3s0f0 has")
    assert refused(of_pf1) == f"interface y asks for MAC {of_pf1}, which VF 2 of PF enp3s0f1 has"
    held = replace(interface(PF1, 0), options=InterfaceOptions(mac="02:00:00:00:00:77"))
    ledger = Ledger().with_receipt(receipt("a", held))
    assert refused("02:00:00:00:00:77", ledger).endswith("which interface rdma0 of pod default/p has")
    assert refused(held.home.mac, ledger).endswith("which interface rdma0 of pod default/p has")


def test_choose_vfs_refuses_the_mac_of_a_pf_because_the_pod_would_get_traffic_of_the_node() -> None:
    of_the_node = "0a:ff:00:00:00:01"
    seen = altered(0)
    seen = replace(seen, pfs=(seen.pfs[0], replace(seen.pfs[1], mac=of_the_node)))
    found = choose_vfs(asking(InterfaceOptions(mac=of_the_node)), seen, Ledger(), ("x",))
    assert isinstance(found, Rejection)
    assert found.reason is Reason.CONFLICT
    assert found.message == f"interface x asks for MAC {of_the_node}, which PF enp3s0f1 itself has"
