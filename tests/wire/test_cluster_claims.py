"""Claims and PFs of the API server, read as kube-scheduler does."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from cel_expr_python import cel
from hypothesis import given
from hypothesis import strategies as st

from k8s_rdma.core.pf_use import Used
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.claims import DRIVER
from k8s_rdma.wire.cluster_claims import (
    Consumption,
    claim_nodes,
    class_names,
    consumption,
    our_classes,
    pod_claims,
    read_claims,
)
from k8s_rdma.wire.json_faults import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.core.claim_fit import ClaimNode

Json = dict[str, Any]
RDMA = {"spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]}}
GPU = {"spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}]}}
CLASSES = our_classes({"rdma": RDMA, "gpu": GPU, "gone": None})


def request(name: str = "a", bandwidth: str | None = None, **exact: Any) -> Json:
    capacity = {"capacity": {"requests": {"bandwidth": bandwidth}}} if bandwidth is not None else {}
    return {"name": name, "exactly": {"deviceClassName": "rdma", **capacity, **exact}}


def claim(*requests: Json, **devices: Any) -> Json:
    return {
        "metadata": {"name": "c", "namespace": "default"},
        "spec": {"devices": {"requests": list(requests), **devices}},
    }


def allocated(*results: Json, name: str = "c", pod: str = "p") -> Json:
    consumers = [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"}]
    status = {"allocation": {"devices": {"results": list(results)}}, "reservedFor": consumers}
    return {"metadata": {"name": name, "namespace": "default"}, "status": status}


def result(device: str = "f0", bandwidth: str = "0", vfs: str = "1", **more: Any) -> Json:
    consumed = {"bandwidth": bandwidth, "vfs": vfs}
    return {"driver": DRIVER, "pool": "w1", "device": device, "consumedCapacity": consumed, **more}


def slice_(*devices: Json, generation: int = 1, count: int = 1, node: str = "w1") -> Json:
    pool = {"name": node, "generation": generation, "resourceSliceCount": count}
    return {"spec": {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": list(devices)}}


def device(name: str = "f0", **changes: Any) -> Json:
    capacity = {"bandwidth": {"value": "100G"}, "vfs": {"value": "8"}}
    return {"name": name, "capacity": capacity, "attributes": {"pf": {"string": name}}} | changes


def nodes_of(*slices: Json, used: Mapping[tuple[str, str], Used] | None = None) -> tuple[ClaimNode, ...]:
    return claim_nodes(slices, Consumption(used or {}, {"w1": 2}))


def test_consumption_is_the_sum_of_all_claims_by_pool_and_device():
    found = consumption(
        [
            allocated(result(bandwidth="97656250Ki"), result("f1")),
            allocated(result(bandwidth="1500M"), {**result(), "driver": "gpu.example.com"}),
            allocated(result("f1"), pod="other"),
            claim(request()),
            {"metadata": {}, "status": None},
        ]
    )
    assert found.pods == {"w1": 2}
    assert found.used == {("w1", "f0"): Used(2, 101_500), ("w1", "f1"): Used(2, 0)}
    assert not found.unread


@pytest.mark.parametrize("bandwidth", ["-100G", "fast"])
def test_claim_that_cannot_be_counted_is_named(bandwidth: str):
    found = consumption([allocated(result(bandwidth=bandwidth)), allocated(result())])
    [why] = found.unread
    path = "resourceclaim default/c: status.allocation.devices.results[0].consumedCapacity.bandwidth"
    assert why.startswith(f"{path}: {bandwidth} is ")
    assert found.used == {("w1", "f0"): Used(1, 0)}


def test_pf_is_read_with_its_capacities_attributes_and_taints():
    taint = {"key": "k8s-rdma.io/link-down", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}
    bus = {"resource.kubernetes.io/pciBusID": {"string": "0000:3b:00.0"}, "rdma": {"bool": True}}
    [node] = nodes_of(slice_(device(taints=[taint], attributes=bus)), used={("w1", "f0"): Used(1, 25_000)})
    [pf] = node.pfs
    assert node.pods == 2
    assert (pf.mbps, pf.vfs, pf.room) == (100_000, 8, (75_000, 7))
    assert pf.attributes == {
        "driver": DRIVER,
        "resource.kubernetes.io/pciBusID": "0000:3b:00.0",
        "rdma.k8s-rdma.io/rdma": True,
    }
    assert [each.key for each in pf.taints] == ["k8s-rdma.io/link-down"]


def test_only_complete_pools_of_the_latest_generation_are_used():
    old, new = slice_(device("old"), generation=1), slice_(device("new"), generation=2)
    [node] = nodes_of(old, new)
    assert [pf.name for pf in node.pfs] == ["new"]
    [_, partial] = nodes_of(old, new, slice_(device(), node="w2", count=2))
    assert (partial.pfs, partial.problem) == ((), "1 of its 2 ResourceSlices exist")


@pytest.mark.parametrize(
    "changes", [{"capacity": {"bandwidth": {"value": "x"}}}, {"capacity": 1}, {"attributes": {"pf": "f0"}}]
)
def test_slice_that_cannot_be_read_is_the_problem_of_its_node(changes: Json):
    [node] = nodes_of(slice_(device(**changes)), {"spec": {"driver": "gpu.example.com"}})
    assert node.node == "w1"
    assert not node.pfs
    assert node.problem.startswith("its ResourceSlice: ")


def test_claims_of_a_pod_are_found_by_name_or_by_the_name_generated_from_their_template():
    pod = {
        "spec": {
            "resourceClaims": [
                {"name": "a", "resourceClaimName": "shared"},
                {"name": "b", "resourceClaimTemplateName": "t"},
                {"name": "c", "resourceClaimTemplateName": "t"},
                {"name": "d", "resourceClaimTemplateName": "not-needed"},
            ]
        },
        "status": {"resourceClaimStatuses": [{"name": "b", "resourceClaimName": "p-b-x7k2p"}, {"name": "d"}]},
    }
    assert [(each.name, each.claim, each.template) for each in pod_claims(pod)] == [
        ("a", "shared", ""),
        ("b", "p-b-x7k2p", "t"),
        ("c", "", "t"),
    ]


def test_requests_of_our_classes_are_read_and_others_named():
    document = claim(
        request("a", "24999999999", count=2, tolerations=[{"key": "k", "operator": "Exists"}]),
        {"name": "g", "exactly": {"deviceClassName": "gpu"}},
        {"name": "f", "firstAvailable": [{"name": "x", "deviceClassName": "rdma"}]},
        constraints=[{"requests": ["a", "f"], "matchAttribute": "resource.kubernetes.io/numaNode"}],
    )
    assert class_names([document]) == {"rdma", "gpu"}
    found = read_claims({"net": document}, CLASSES)
    [[a], [f]] = found.request.requests
    assert (a.claim, a.name, a.mbps, a.count) == ("net", "a", 25_000, 2)
    assert [each.operator for each in a.tolerations] == ["Exists"]
    assert f.name == "f/x"
    [constraint] = found.request.constraints
    assert str(constraint) == "matchAttribute resource.kubernetes.io/numaNode of requests a, f"
    assert found.foreign == ("net/g",)


def test_claim_of_more_devices_than_an_allocation_has_is_refused():
    with pytest.raises(MalformedError, match="claim net: asks for 33 devices; a claim has at most 32"):
        read_claims({"net": claim(request("a", count=32), request("b"))}, CLASSES)


def test_allocated_claim_has_its_node_pfs_and_pods():
    document = allocated(result(bandwidth="25G"), result(), result("f1", "10G"), pod="other")
    found = read_claims({"net": document}, CLASSES, "uid-p")
    assert (found.request.requests, found.request.allocated) == ((), {"net": {"w1"}})
    pfs = [(pf.name, pf.interfaces, pf.reserved_mbps) for pf in found.allocated["net"].pfs]
    assert pfs == [("f0", 2, 25_000), ("f1", 1, 10_000)]
    assert found.allocated["net"].other_pods == ("other",)
    assert read_claims({"net": document}, CLASSES, "uid-other").allocated["net"].other_pods == ()


def test_selector_of_any_length_is_clipped_and_escaped():
    expression = "device.driver == '\x1b[2J' || " + "true && " * 1_000 + "true"
    document = claim(request(selectors=[{"cel": {"expression": expression}}]))
    [found] = read_claims({"net": document}, CLASSES).unjudged
    assert found.isprintable()
    assert len(found) < 80


def test_class_is_ours_however_late_its_selector_names_the_driver():
    spaces = " " * 100
    ours = {"spec": {"selectors": [{"cel": {"expression": f"{spaces}device.driver == '{DRIVER}'"}}]}}
    assert our_classes({"rdma": ours}).selectors["rdma"] is not None


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (request(bandwidth="-1"), "claim net: request a: bandwidth: -1 is negative"),
        (request(bandwidth="fast"), "claim net: request a: bandwidth: fast is no quantity"),
        (request(bandwidth="9300000000000000000"), "bandwidth: 9300000000000000000 is no rate"),
        (request(capacity={"requests": {"bandwith": "1G"}}), "capacity: no PF has bandwith; write bandwidth"),
        (request(capacity={"requests": {"vfs": "2"}}), "vfs: 2; an interface is one VF"),
        (request(count=1_000_000_000), "count: 1000000000; a claim has 1 to 32 devices"),
        (request(allocationMode="All"), "allocationMode: All; an interface takes ExactCount"),
        (request(adminAccess=True), "adminAccess: reserves nothing"),
        (request(deviceClassName="gone"), "claim net: request a: there is no DeviceClass gone"),
        (request(count="x"), "claim net: Expected `int`, got `str` - at `$.spec.devices.requests[0].exactly"),
    ],
)
def test_request_that_no_pf_can_satisfy_is_named(wrong: Json, why: str):
    with pytest.raises(MalformedError) as error:
        read_claims({"net": claim(wrong)}, CLASSES)
    assert why in error.value.message


ENVIRONMENT = cel.NewEnv(variables={"device": cel.Type.DYN})
ATTRIBUTES = {"pf": "f0", "vendor": "15b3:1017", "mtu": 9000, "rdma": True}
OUR_ATTRIBUTES = f"device.attributes['{DRIVER}']"


def selected(expression: str, attributes: Json) -> bool | None:
    """Return whether a selector of a request accepts a PF, if it is judged."""
    kinds = {str: "string", int: "int", bool: "bool"}
    pf = device(attributes={key: {kinds[type(value)]: value} for key, value in attributes.items()})
    [node] = nodes_of(slice_(pf))
    document = claim(request(selectors=[{"cel": {"expression": expression}}]))
    found = read_claims({"net": document}, CLASSES)
    [[only]] = found.request.requests
    if found.unjudged:
        assert found.unjudged == (shown(expression),)
        return None
    return not node.pfs[0].objection(only)


def by_cel(expression: str, attributes: Json) -> bool:
    """The same by the CEL project's library; an error selects no PF."""
    found = ENVIRONMENT.compile(expression).eval(
        data={"device": {"driver": DRIVER, "attributes": {DRIVER: attributes}}}
    )
    return found.type() != cel.Type.ERROR and found.plain_value() is True


LITERALS = ["'f0'", '"15b3"', "'15b3:1017'", "9000", "-1", "true", "false", r"'a\'b'"]
OPERATORS = ["==", "!=", ">=", "<=", "<", ">"]
NAMES = [*ATTRIBUTES, "absent"]


@pytest.mark.parametrize("name", NAMES)
def test_comparisons_are_judged_as_by_cel(name: str):
    for operator, literal in product(OPERATORS, LITERALS):
        expression = f"{OUR_ATTRIBUTES}.{name} {operator} {literal}"
        assert (expression, selected(expression, ATTRIBUTES)) == (expression, by_cel(expression, ATTRIBUTES))


literals = st.sampled_from(LITERALS)
names = st.sampled_from(NAMES)
terms = st.one_of(
    st.builds(
        lambda name, operator, literal: f"{OUR_ATTRIBUTES}.{name} {operator} {literal}",
        names,
        st.sampled_from(OPERATORS),
        literals,
    ),
    st.builds(
        lambda name, values: f"{OUR_ATTRIBUTES}.{name} in [{', '.join(values)}]",
        names,
        st.lists(literals, min_size=1, max_size=3),
    ),
    st.builds(lambda name: f"{OUR_ATTRIBUTES}.{name}.startsWith('15b3')", names),
    st.just(f"device.driver == '{DRIVER}'"),
)


@given(terms, st.lists(st.tuples(st.sampled_from([" && ", " || "]), terms), max_size=3))
def test_selectors_are_judged_as_by_cel(first: str, more: list[tuple[str, str]]):
    expression = first + "".join(joint + term for joint, term in more)
    assert selected(expression, ATTRIBUTES) is by_cel(expression, ATTRIBUTES)


@pytest.mark.parametrize(
    "expression",
    [
        f"!({OUR_ATTRIBUTES}.rdma)",
        f"{OUR_ATTRIBUTES}.pf == 'f0' ||",
        f"({OUR_ATTRIBUTES}.pf == 'f0' || {OUR_ATTRIBUTES}.pf == 'f1') && {OUR_ATTRIBUTES}.mtu > 1",
        f"{OUR_ATTRIBUTES}.pf == 'a\\n'",
        f"{OUR_ATTRIBUTES}.mtu + 1 == 9001",
        f"'pf' in {OUR_ATTRIBUTES}",
        "",
    ],
)
def test_other_selectors_are_not_judged(expression: str):
    assert selected(expression, ATTRIBUTES) is None
