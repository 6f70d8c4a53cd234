"""Allocated ResourceClaims as the agent reads them: hostile ones are refused, each error names its field."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.request import InterfaceRequest
from k8s_rdma.core.types import Enforce, NodeName, VfDriver, VlanProto
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.claims import DRIVER, MAX_RESULTS, NO_POD
from k8s_rdma.wire.resource_claim import MAX_CONFIGS, decode_prepare
from resource_claims import claim, interface, of_pod, pod, prepare, read_interface_config

if TYPE_CHECKING:
    from k8s_rdma.wire.claims import Prepare

W1 = NodeName("w1")
LONGEST = 400
"""Characters of a refusal, of which an event has some 1,000."""
ROUNDS = 3


def read(*interfaces: dict[str, Any], **changes: Any) -> tuple[InterfaceRequest, ...]:
    decoded = decode_prepare(prepare(claim(*interfaces, **changes)), W1)
    return tuple(entry.interface for entry in decoded.claim.interfaces)


def refusal(question: Prepare) -> MalformedError:
    with pytest.raises(MalformedError) as raised:
        decode_prepare(question, W1)
    return raised.value


def test_reservation_is_the_consumed_capacity_and_the_rest_comes_from_parameters() -> None:
    found = read(
        interface(
            "a",
            bandwidth="25G",
            consumed="23842Mi",
            maxTxRate="40G",
            name="rdma5",
            vlan=10,
            vlanProto="802.1ad",
        ),
        interface("b", "f1", enforce="hardware", trust=True),
    )
    options = InterfaceOptions(name="rdma5", vlan=10, vlan_proto=VlanProto.DOT1AD)
    assert found == (
        InterfaceRequest(min_tx_rate_mbps=25_001, max_tx_rate_mbps=40_000, options=options),
        InterfaceRequest(enforce=Enforce.HARDWARE, options=InterfaceOptions(trust=True)),
    )


def test_claim_knows_its_pod_and_the_pods_name_for_it() -> None:
    document = claim(interface())
    decoded = decode_prepare(prepare(document, pod("p", "uid-p", "c")), W1)
    assert (decoded.claim.pod.namespace, decoded.claim.pod.name, decoded.claim.pod.uid) == (
        "default",
        "p",
        "uid-p",
    )
    assert decoded.claim.pod_claim == "net-c"


def test_claim_that_kube_scheduler_made_for_extended_resources_has_a_name_that_programs_know() -> None:
    made = claim(interface("container-0-request-1"), name="p-extended-resources-7fzx2")
    of = pod("p", "uid-p") | {"spec": {"nodeName": "w1"}}
    status = {"resourceClaimName": "p-extended-resources-7fzx2", "requestMappings": []}
    decoded = decode_prepare(prepare(made, of | {"status": {"extendedResourceClaimStatus": status}}), W1)
    assert decoded.claim.pod_claim == "extended-resources"
    assert not decoded.claim.from_template


def test_parameters_of_the_class_are_defaults() -> None:
    document = claim(interface("a", vlan=7))
    head = {"apiVersion": "k8s-rdma.io/v1", "kind": "InterfaceConfig", "vlan": 5, "mtu": 9000}
    of_class = {
        "source": "FromClass",
        "requests": [],
        "opaque": {"driver": "rdma.k8s-rdma.io", "parameters": head},
    }
    other = {"opaque": {"driver": "gpu.example.com", "parameters": {"x": 1}}}
    document["status"]["allocation"]["devices"]["config"][:0] = [of_class, other]
    [entry] = decode_prepare(prepare(document), W1).claim.interfaces
    assert (entry.interface.options.vlan, entry.interface.options.mtu) == (7, 9000)


def capped_by_class(cap: str, **of_claim: object) -> dict[str, Any]:
    document = claim(interface("a", **of_claim))
    head = {"apiVersion": "k8s-rdma.io/v1", "kind": "InterfaceConfig", "maxTxRate": cap}
    of_class = {"source": "FromClass", "opaque": {"driver": "rdma.k8s-rdma.io", "parameters": head}}
    document["status"]["allocation"]["devices"]["config"][:0] = [of_class]
    return document


@pytest.mark.parametrize(("cap", "why"), [("0", "0 (no cap)"), (0, "0 (no cap)"), ("40G", "40000 Mb/s")])
def test_cap_of_the_class_is_neither_removed_nor_raised_by_a_claim(cap: object, why: str) -> None:
    with pytest.raises(MalformedError) as raised:
        decode_prepare(prepare(capped_by_class("10G", maxTxRate=cap)), W1)
    assert raised.value.message == (
        f"claim default/c: request a.maxTxRate: {why} is beyond the cap of the DeviceClass, 10000 Mb/s"
    )


@pytest.mark.parametrize(("of_claim", "expected"), [({}, 10_000), ({"maxTxRate": "5G"}, 5_000)])
def test_cap_of_the_class_is_the_default_and_may_be_lowered(of_claim: dict[str, Any], expected: int) -> None:
    [entry] = decode_prepare(prepare(capped_by_class("10G", **of_claim)), W1).claim.interfaces
    assert (entry.interface.max_tx_rate_mbps, entry.class_cap_mbps) == (expected, 10_000)


def test_results_of_other_drivers_are_left_to_these() -> None:
    document = claim(interface("a"))
    document["status"]["allocation"]["devices"]["results"].append(
        {"request": "gpu", "driver": "gpu.example.com", "pool": "w1", "device": "gpu-0"}
    )
    assert len(decode_prepare(prepare(document), W1).claim.interfaces) == 1


@pytest.mark.parametrize(
    ("bandwidth", "consumed", "why"),
    [
        ("-100G", "-100G", "consumedCapacity.bandwidth: -100G; wanted a whole number that is not negative"),
        (
            "9223372036854775807",
            "-9223372036854775808",
            "consumedCapacity.bandwidth: -9223372036854775808; wanted",
        ),
        (
            "9300000000000000000",
            "0",
            "consumedCapacity.bandwidth: 0 is less than the 9300000000000000000 that the request",
        ),
        ("1500m", "1500m", "consumedCapacity.bandwidth: 1500m; wanted a whole number that is not negative"),
        ("25G", "24G", "consumedCapacity.bandwidth: 24G is less than the 25G that the request asks for"),
        ("1", "10E", "consumedCapacity.bandwidth: 10E is no rate"),
        ("1e400", "0", "consumedCapacity.bandwidth: 0 is less than the 1e400 that the request asks for"),
        ("1", "much", "consumedCapacity.bandwidth: much is no quantity"),
        ("1", "9" * 100_000, "9... is no quantity"),
        ("1", "1e999999999", "consumedCapacity.bandwidth: 1e999999999 is no quantity"),
        ("1", "\u0661\u0662", "consumedCapacity.bandwidth: '\\u0661\\u0662' is no quantity"),
    ],
)
def test_forged_quantities_are_refused(bandwidth: str, consumed: str, why: str) -> None:
    error = refusal(prepare(claim(interface("a", bandwidth=bandwidth, consumed=consumed))))
    assert why in error.message
    assert "results[0]" in error.message


@pytest.mark.parametrize("vfs", ["0", "2", "-1", None])
def test_interface_is_one_vf(vfs: str | None) -> None:
    document = claim(interface())
    consumed = document["status"]["allocation"]["devices"]["results"][0]["consumedCapacity"]
    consumed.pop("vfs")
    if vfs is not None:
        consumed["vfs"] = vfs
    assert "consumedCapacity.vfs" in refusal(prepare(document)).message


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"metadata": {"name": "c", "namespace": "default", "uid": "other"}}, None),
        ({"status": {}}, "is reserved for 0 consumers; an RDMA interface is of one pod"),
    ],
)
def test_claim_that_is_another_by_now_is_refused(changes: dict[str, Any], why: str | None) -> None:
    question = prepare(claim(interface()))
    document = claim(interface(), **changes)
    error = refusal(msgspec.structs.replace(question, resource=msgspec.Raw(msgspec.json.encode(document))))
    assert error.reason is Reason.CONFLICT
    assert (why or "has UID other, kubelet prepares claim-1") in error.message


def test_claim_of_two_pods_is_refused() -> None:
    document = claim(interface())
    document["status"]["reservedFor"].append({"resource": "pods", "name": "q", "uid": "uid-q"})
    message = refusal(prepare(document, pod())).message
    assert (
        "is reserved for 2 consumers; an RDMA interface is of one pod: use a resourceClaimTemplateName"
        in message
    )


def test_claim_of_a_pod_group_is_refused_with_an_alternative() -> None:
    document = claim(interface())
    group = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "uid-g"}
    document["status"]["reservedFor"] = [group]
    message = refusal(prepare(document, pod())).message
    assert "is reserved for PodGroup g; an RDMA interface is of one pod" in message
    assert "write no resourceClaims in PodGroups, and a resourceClaimTemplateName in pods" in message


def test_claim_of_a_template_belongs_to_its_owner_although_another_pod_names_it() -> None:
    document = claim(interface())
    document["metadata"]["ownerReferences"] = [{"kind": "Pod", "name": "p", "uid": "uid-p"}]
    document["status"]["reservedFor"].insert(0, {"resource": "pods", "name": "q", "uid": "uid-q"})
    assert decode_prepare(prepare(document, pod()), NodeName("w1")).claim.pod.uid == "uid-p"
    stolen = of_pod(document, "q")
    assert "is reserved for pods that it was not made for" in refusal(prepare(stolen)).message


@pytest.mark.parametrize(
    ("of", "why"),
    [
        (pod("p", "uid-q"), "is reserved for pod p of another UID"),
        (pod(nodeName="w2"), "is of a pod on node w2, not on w1"),
        (pod(hostNetwork=True), "pod p: spec.hostNetwork: a pod in its node's network gets no interfaces"),
    ],
)
def test_pod_has_to_be_the_one_on_this_node_with_a_network(of: dict[str, Any], why: str) -> None:
    assert why in refusal(prepare(claim(interface()), of)).message


def test_pod_that_is_gone_is_refused() -> None:
    question = msgspec.structs.replace(prepare(claim(interface())), pod=NO_POD)
    assert "is reserved for pod p, which does not exist" in refusal(question).message


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"maxTxRat": "1G"}, "maxTxRat: unknown key; did you mean maxTxRate?"),
        ({"vlan": 4095}, "vlan: 4095 is no whole number from 0 to 4094"),
        ({"maxTxRate": "1G"}, "maxTxRate: 1000 Mb/s is below the bandwidth of its request, 2000 Mb/s"),
        ({"maxTxRate": "1"}, "maxTxRate: 1 is no whole number of Mb/s"),
        ({"maxTxRate": True}, "maxTxRate: is a truth value; wanted bits per second, such as 40G"),
        ({"vlanProto": "802.1ad"}, "vlanProto: is of a VLAN, and there is no vlan"),
        ({"pf": "eth0"}, "pf: unknown key"),
        ({"driver": "vfio-pci", "enforce": "software"}, "enforce: software caps network devices"),
        ({"kind": "Interface"}, "kind: wanted InterfaceConfig"),
    ],
)
def test_parameters_are_read_strictly(config: dict[str, Any], why: str) -> None:
    assert why in refusal(prepare(claim(interface("a", bandwidth="2G", **config)))).message


def with_parameters(*parameters: bytes, interfaces: int = 1) -> dict[str, Any]:
    """Return a claim with opaque parameters for all of its interfaces."""
    document = claim(*(interface(f"r{index}") for index in range(interfaces)))
    opaque = [{"driver": DRIVER, "parameters": msgspec.Raw(each)} for each in parameters]
    document["status"]["allocation"]["devices"]["config"] = [{"opaque": each} for each in opaque]
    return document


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        (b"[" * 50_000 + b"]" * 50_000, "claim default/c: nested deeper than 64 levels"),
        (b'{"vlan":' * 12_500 + b"1" + b"}" * 12_500, "claim default/c: nested deeper than 64 levels"),
        (b'{"' + b"x" * 100_000 + b'": 1}', "config[0].opaque.parameters.xxx"),
        (b'{"vlan": ' + b"9" * 100_000 + b"}", "config[0].opaque.parameters.apiVersion: wanted"),
        (b'"' + b"x" * 200_000 + b'"', "config[0].opaque.parameters: is 200002 characters long; at most"),
    ],
)
def test_parameters_of_any_size_and_depth_are_refused_in_a_line(parameters: bytes, why: str) -> None:
    message = refusal(prepare(with_parameters(parameters))).message
    assert why in message
    assert len(message) < LONGEST


def test_parameters_of_the_largest_claim_are_read_once_for_all_interfaces() -> None:
    parameters = b'{"apiVersion": "k8s-rdma.io/v1", "kind": "InterfaceConfig", "vlan": 7%s}' % (b" " * 10_000)
    took_s = []
    for interfaces in (1, MAX_RESULTS):
        question = prepare(with_parameters(*[parameters] * MAX_CONFIGS, interfaces=interfaces))
        began_s = time.process_time()
        for _ in range(ROUNDS):
            assert len(decode_prepare(question, W1).claim.interfaces) == interfaces
        took_s.append(time.process_time() - began_s)
    assert took_s[1] < MAX_RESULTS / 4 * took_s[0]


@pytest.mark.parametrize(
    ("part", "length", "why"),
    [
        ("results", 10_000, "length <= 32 - at `$.status.allocation.devices.results`"),
        ("config", 10_000, "length <= 64 - at `$.status.allocation.devices.config`"),
    ],
)
def test_claim_larger_than_the_api_server_takes_is_refused(part: str, length: int, why: str) -> None:
    document = claim(interface(vlan=7))
    document["status"]["allocation"]["devices"][part] *= length
    assert why in refusal(prepare(document)).message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("request", name) for name in ("", "x" * 254, "../a", "a/b/c", "a\0", "a\n", "a-", "a-/b", "a/b-")),
        *(("device", name) for name in ("", "x" * 254)),
        ("shareID", "x" * 254),
    ],
)
def test_names_that_could_not_be_answered_are_refused(field: str, value: str) -> None:
    document = claim(interface())
    document["status"]["allocation"]["devices"]["results"][0][field] = value
    if field == "request":
        document["spec"]["devices"]["requests"][0]["name"] = value
    assert f"at `$.status.allocation.devices.results[0].{field}`" in refusal(prepare(document)).message


@pytest.mark.parametrize("uid", ["../../etc", "a/b", ".", "", "x" * 70, "a\0b", "a\n"])
def test_pod_whose_uid_names_no_file_is_refused(uid: str) -> None:
    document = claim(interface())
    document["status"]["reservedFor"][0]["uid"] = uid
    assert "status.reservedFor[0].uid: " in refusal(prepare(document)).message


@pytest.mark.parametrize(("cap", "expected"), [("400M", 400), ("3G", 1_000)])
def test_reservation_ends_at_a_cap_below_the_least_that_a_pf_grants(cap: str, expected: int) -> None:
    [found] = read(interface("a", bandwidth="200M", consumed="1G", maxTxRate=cap))
    assert found.min_tx_rate_mbps == expected


def test_names_are_of_one_interface_even_of_one_request() -> None:
    document = claim(interface("a", "f0", name="x"), interface("a", "f1", name="x"))
    assert "request a.name: x is that of a, too" in refusal(prepare(document)).message


def test_request_and_its_alternative_have_no_results_together() -> None:
    why = "results[1].request: a/1 is an alternative of a, which has a result"
    assert why in refusal(prepare(claim(interface("a"), interface("a/1")))).message


def test_admin_access_is_refused() -> None:
    document = claim(interface())
    document["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    assert "adminAccess reserves nothing" in refusal(prepare(document)).message


def test_interface_config_is_read_alone() -> None:
    head = b'"apiVersion": "k8s-rdma.io/v1", "kind": "InterfaceConfig"'
    text = b'{%s, "driver": "vfio-pci", "maxTxRate": 3000000}' % head
    found = read_interface_config(text, min_mbps=2)
    assert (found.min_tx_rate_mbps, found.max_tx_rate_mbps) == (2, 3)
    assert found.options.driver is VfDriver.VFIO_PCI


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_no_bytes_do_more_than_be_refused(resource: bytes, of: bytes) -> None:
    question = msgspec.structs.replace(
        prepare(claim(interface())), resource=msgspec.Raw(resource), pod=msgspec.Raw(of)
    )
    assert refusal(question)
