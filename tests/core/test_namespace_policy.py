"""Options that namespaces may ask for, and how a refusal names them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from k8s_rdma.config.faults import fit
from k8s_rdma.config.namespace_policies import PoliciesFile
from k8s_rdma.core.devices.pod_devices import MEMLOCK_UNLIMITED
from k8s_rdma.core.namespace_policy import NO_POLICIES, NamespacePolicies, intersection
from k8s_rdma.core.types import PciAddress, PfSelector
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.annotation import parse_request
from policies import EVERYTHING

REACHES_OTHERS = {
    "mac": '{"mac": "02:00:00:00:00:01"}',
    "guid": '{"guid": "02:00:00:ff:fe:00:00:01"}',
    "trust": '{"trust": true}',
    "spoof_check": '{"spoof_check": false}',
    "vlan": '{"vlan": 100}',
    "pkey": '{"pkey": "0x8001"}',
    "driver": '{"driver": "vfio-pci"}',
}
HARMLESS = (
    '{"min_tx_rate": 500, "max_tx_rate": 1000, "enforce": "hardware"}',
    '{"name": "data0", "mtu": 9000, "link_type": "ethernet", "link_state": "enable"}',
    '{"trust": false, "spoof_check": true}',
    '{"network": "storage"}',
    '{"pf": "enp1s0f0", "driver": "kernel"}',
)


def policies(*each: dict[str, object]) -> NamespacePolicies:
    named = [{"name": f"p{at}", "namespaces": ["team-*"], **policy} for at, policy in enumerate(each)]
    return fit(PoliciesFile, {"policies": named}).to_core()


def refusal(found: NamespacePolicies, interface: str, namespace: str = "team-a") -> str:
    try:
        found.permit(namespace, parse_request(f"[{interface}]"))
    except MalformedError as error:
        return error.message if error.reason is Reason.NOT_ALLOWED else repr(error)
    return ""


@pytest.mark.parametrize("key", REACHES_OTHERS)
def test_option_that_reaches_other_pods_is_refused_without_a_policy_by_key_and_namespace(key: str):
    said = refusal(NO_POLICIES, REACHES_OTHERS[key])
    assert said.startswith(f"namespace team-a may not have {key} ")
    assert said.endswith("(interface 0): no policy is for it")


@pytest.mark.parametrize("interface", HARMLESS)
def test_harmless_option_needs_no_policy(interface: str):
    assert refusal(NO_POLICIES, interface) == ""


@pytest.mark.parametrize("vlan", ['{"vlan": 0}', '{"vlan": 0, "qos": 7}'])
def test_vlan_0_needs_a_policy_since_it_leaves_the_vlan_of_the_network(vlan: str):
    assert "may not have vlan 0" in refusal(NO_POLICIES, vlan)


@pytest.mark.parametrize("key", REACHES_OTHERS)
def test_policy_for_everything_allows_all_that_the_annotation_has(key: str):
    assert refusal(EVERYTHING, REACHES_OTHERS[key], "any") == ""


@pytest.mark.parametrize("key", REACHES_OTHERS)
def test_policy_allows_its_keys_and_no_others(key: str):
    found = policies({"allow": [key]})
    refused = [other for other, text in REACHES_OTHERS.items() if refusal(found, text)]
    assert refused == [other for other in REACHES_OTHERS if other != key]


def test_first_policy_for_the_namespace_decides():
    found = policies({"namespaces": ["team-a"]}, {"namespaces": ["team-*"], "allow": ["vlan"]})
    assert refusal(found, '{"vlan": 1}') == (
        "namespace team-a may not have vlan 1 (interface 0): policy p0 does not allow that"
    )
    assert refusal(found, '{"vlan": 1}', "team-b") == ""
    assert refusal(found, '{"vlan": 1}', "my-team-b")
    assert refusal(found, '{"vlan": 1}', "")


def test_qos_and_outer_tags_are_allowed_by_themselves():
    assert "may not have qos 7" in refusal(policies({"allow": ["vlan"]}), '{"vlan": 1, "qos": 7}')
    tagged = '{"vlan": 1, "vlan_proto": "802.1ad"}'
    assert "may not have vlan_proto 802.1ad" in refusal(policies({"allow": ["vlan"]}), tagged)
    assert refusal(policies({"allow": ["vlan"]}), '{"vlan": 1, "vlan_proto": "802.1Q"}') == ""


@pytest.mark.parametrize(
    ("policy", "inside", "outside", "said"),
    [
        (
            {"allow": ["vlan"], "vlans": ["100-199", 300]},
            {"vlan": 199},
            {"vlan": 200},
            "p0 allows 100-199, 300",
        ),
        ({"allow": ["*"], "vlans": []}, {"trust": True}, {"vlan": 1}, "p0 allows no vlan"),
        (
            {"allow": ["mac"], "macs": ["02:AA"]},
            {"mac": "02:aa:ff:ff:ff:ff"},
            {"mac": "02:ab:00:00:00:00"},
            "allows 02:AA",
        ),
        (
            {"allow": ["mac"], "macs": ["02:00:00:00:00:10-02:00:00:00:00:1f"]},
            {"mac": "02:00:00:00:00:1f"},
            {"mac": "02:00:00:00:00:20"},
            "allows 02:00:00:00:00:10-02:00:00:00:00:1f",
        ),
        (
            {"allow": ["guid"], "guids": ["02:00"]},
            {"guid": "02:00:00:ff:fe:00:00:01"},
            {"guid": "02:01:00:ff:fe:00:00:01"},
            "allows 02:00",
        ),
        ({"networks": ["a", "b-*"]}, {"network": "b-1"}, {"network": "c"}, "allows networks a, b-*"),
        ({"deny": ["network"]}, {"mtu": 9000}, {"network": "c"}, "p0 does not allow that"),
        ({"deny": ["link_state"]}, {"mtu": 9000}, {"link_state": "enable"}, "p0 does not allow that"),
        ({"deny": ["pf"]}, {}, {"pf": "a"}, "p0 does not allow that"),
        (
            {"maxReservedMbps": 100},
            {"min_tx_rate": 100},
            {"min_tx_rate": 101},
            "at most 100 Mb/s for an interface",
        ),
        ({"maxCapMbps": 100}, {"max_tx_rate": 100}, {"max_tx_rate": 101}, "allows caps of at most 100 Mb/s"),
        ({"maxCapMbps": 100}, {"max_tx_rate": 1}, {}, "max_tx_rate 0 (no cap)"),
        (
            {"maxInterfaces": 2},
            {"count": 2},
            {"count": 3},
            "3 interfaces: policy p0 allows at most 2 for a pod",
        ),
    ],
)
def test_policy_limits_the_values_that_it_allows(
    policy: dict[str, object], inside: dict[str, object], outside: dict[str, object], said: str
):
    found = policies(policy)
    assert refusal(found, json.dumps(inside)) == ""
    assert said in refusal(found, json.dumps(outside))


@pytest.mark.parametrize(
    ("most", "inside", "outside", "named"),
    [
        ("1Gi", 1 << 30, (1 << 30) + 1, "memlock 1073741825: policy p0 allows at most 1073741824 bytes"),
        ("1Gi", None, MEMLOCK_UNLIMITED, "memlock unlimited: policy p0 allows at most 1073741824 bytes"),
        ("0", 0, 1, "memlock 1: policy p0 allows at most 0 bytes"),
        ("unlimited", MEMLOCK_UNLIMITED, None, ""),
    ],
)
def test_policy_bounds_locked_memory(most: str, inside: int | None, outside: int | None, named: str):
    found = policies({"maxMemlock": most})
    asks = parse_request("[{}]")
    assert found.permit("team-a", replace(asks, memlock=inside))
    if named:
        with pytest.raises(MalformedError, match=named):
            found.permit("team-a", replace(asks, memlock=outside))


def test_message_names_the_interface_that_is_refused():
    assert "trust true (interface 2)" in refusal(NO_POLICIES, '{"count": 2}, {"trust": true}')


def test_pfs_of_a_policy_apply_to_interfaces_without_pfs_and_narrow_those_with():
    found = policies({"pfs": {"name": ["a", "b"], "vendor": "15b3"}})
    request = found.permit(
        "team-a", parse_request('[{}, {"pf": {"name": ["b", "c"], "vendor": "15b3:1017"}}]')
    )
    assert [each.needs.pf for each in request.interfaces] == [
        PfSelector(names=frozenset("ab"), vendors=frozenset({"15b3"})),
        PfSelector(names=frozenset("b"), vendors=frozenset({"15b3:1017"})),
    ]
    assert "may not have pf (interface 0): policy p0 allows other PFs alone" in refusal(found, '{"pf": "c"}')
    assert found.permit("team-a", parse_request("[]")) == parse_request("[]")


def test_intersection_of_selectors_is_empty_if_no_pf_matches_both():
    pcis = PfSelector(pcis=frozenset({PciAddress("0000:01:00.0")}))
    named = PfSelector(names=frozenset("a"))
    assert intersection(pcis, None) == pcis
    assert intersection(pcis, named) == PfSelector(names=named.names, pcis=pcis.pcis)
    assert intersection(named, PfSelector(names=frozenset("b"))) is None
    assert (
        intersection(PfSelector(vendors=frozenset({"15b3"})), PfSelector(vendors=frozenset({"15b"}))) is None
    )
