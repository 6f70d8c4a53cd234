"""deploy/policies/claims.yaml, claims-order.yaml, one-pod.yaml and slices.yaml, without an API server."""

from __future__ import annotations

import copy
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission import document, policy
from asked_annotations import VALUES
from claim_cases import BAD, GOOD, HEAD, Json, claim, devices, request, template
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.claims import DRIVER
from k8s_rdma.wire.resource_claim import CONFIG_KEYS
from k8s_rdma.wire.resource_slice import slice_name
from resource_claims import read_interface_config

DEVICE_PLUGIN = "system:serviceaccount:k8s-rdma:k8s-rdma-device-plugin"


def refusals(found: Json) -> list[str]:
    return policy("claims").refusals(template(found))


def read(parameters: Json) -> None:
    """Read parameters as the agent does, with its errors."""
    read_interface_config(msgspec.json.encode(parameters))


@pytest.mark.parametrize("found", GOOD, ids=str)
def test_claim_that_agents_accept_is_taken(found: Json):
    assert refusals(found) == policy("claims").refusals(claim(found)) == []
    for each in found.get("config", ()):
        if each["opaque"]["driver"] == DRIVER:
            read(each["opaque"]["parameters"])


@pytest.mark.parametrize(("found", "told"), BAD, ids=str)
def test_claim_that_agents_would_refuse_is_refused_with_advice(found: Json, told: str):
    assert refusals(found) == policy("claims").refusals(claim(found))
    assert told in refusals(found)[0]


WRONG_PARAMETERS = [found for found, _ in BAD if "config" in found and "capacity" not in str(found)]


@pytest.mark.parametrize("found", WRONG_PARAMETERS, ids=str)
def test_parameters_that_are_refused_are_such_that_agents_refuse(found: Json):
    wrong = found["config"][-1]["opaque"]["parameters"]
    with pytest.raises(MalformedError):
        read(wrong)


_SPELLED = {key: name for name, key in CONFIG_KEYS.items()}


@st.composite
def parameters(draw: st.DrawFn) -> Json:
    keys = draw(st.lists(st.sampled_from(sorted(_SPELLED)), max_size=4, unique=True))
    found = {_SPELLED[key]: draw(st.sampled_from(VALUES[key][0] * 3 + VALUES[key][1])) for key in keys}
    if draw(st.booleans()):
        found["maxTxRate"] = draw(st.sampled_from(["40G", "1", "-1G", 10**9, 5, None]))
    if draw(st.booleans()):
        found["enforce"] = draw(st.sampled_from([*VALUES["enforce"][0], *VALUES["enforce"][1]]))
    return {**HEAD, **found}


@given(parameters())
def test_policy_and_agents_agree_on_parameters(found: Json):
    refused = bool(refusals(devices(configs=({"opaque": {"driver": DRIVER, "parameters": found}},))))
    try:
        read(found)
    except MalformedError:
        assert refused
    else:
        assert not refused


def test_other_classes_of_this_driver_are_checked_if_configured():
    wrong = template(devices(request(bandwidth="-1", deviceClassName="rdma-fast")))
    assert policy("claims").refusals(wrong) == []
    named = policy("claims", (("deviceClasses", "['rdma', 'rdma-fast']"),))
    assert named.refusals(wrong)


@pytest.mark.parametrize("name", ["claims", "claims-order"])
def test_claims_of_other_versions_are_judged_in_the_shape_that_the_expressions_read(name: str):
    """A request of v1beta1 has no `exactly`: matched as it is, no request of the claim would be seen.

    The API server converts objects that match as equivalent (ValidatingAdmissionPolicy v1, `matchPolicy`).
    """
    constraints = document(name)["spec"]["matchConstraints"]
    assert constraints["matchPolicy"] == "Equivalent"
    [rule] = constraints["resourceRules"]
    assert rule["apiVersions"] == ["v1"]


# Order


def warnings(*bandwidths: str | None) -> list[str]:
    requests = [request(f"r{index}", amount) for index, amount in enumerate(bandwidths)]
    return policy("claims-order").refusals(template(devices(*requests)))


@pytest.mark.parametrize(
    "bandwidths", [(), ("1M",), ("25G", "25G", "1500M", "0", None), ("1G",) * 16, ("2G", "1500M")]
)
def test_requests_that_are_found_fast_cause_no_warning(bandwidths: tuple[str | None, ...]):
    assert warnings(*bandwidths) == []


@pytest.mark.parametrize("bandwidths", [("1500M", "2G"), (None, "1M"), ("3G", "1G", "2G")])
def test_small_requests_before_large_ones_cause_a_warning(bandwidths: tuple[str | None, ...]):
    [told] = warnings(*bandwidths)
    assert told.startswith("requests are not in the order of their bandwidth")


def test_many_requests_cause_a_warning():
    [told] = warnings(*["1G"] * 17)
    assert told.startswith("17 requests: kube-scheduler may need seconds")


# One pod


def of_pods(count: int, driver: str = DRIVER) -> Json:
    result = {"request": "a", "driver": driver, "pool": "w1", "device": "f0"}
    reserved = [{"resource": "pods", "name": f"p{index}", "uid": f"u{index}"} for index in range(count)]
    status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": reserved}
    return {**claim(devices()), "status": status}


OF_GROUP = (
    "an RDMA interface is of one pod, and a PodGroup shares its claims: write no resourceClaims in the "
    "PodGroup, and a resourceClaimTemplateName in its pods"
)


def of_group() -> Json:
    """A claim that its PodGroup's pods share (Kubernetes' KEP 5729)."""
    found = of_pods(1)
    consumer = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "u"}
    return {**found, "status": {**found["status"], "reservedFor": [consumer]}}


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (of_group(), [OF_GROUP]),
        (of_pods(0), []),
        (of_pods(1), []),
        (of_pods(2), ["an RDMA interface is of one pod: use a resourceClaimTemplateName"]),
        (of_pods(2, "gpu.example.com"), []),
        (claim(devices()), []),
        ({**claim(devices()), "status": {"reservedFor": of_pods(2)["status"]["reservedFor"]}}, []),
    ],
)
def test_claim_is_reserved_for_one_pod(found: Json, told: list[str]):
    assert policy("one-pod").refusals(found) == told


# Slices

DNS_SUBDOMAIN = re.compile(r"(?:[a-z0-9](?:[-a-z0-9]*[a-z0-9])?\.)*[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")
SLICE: Json = {
    "metadata": {"name": slice_name("w1", 0)},
    "spec": {"driver": DRIVER, "nodeName": "w1", "pool": {"name": "w1"}, "devices": []},
}


def slice_refusals(
    operation: str, new: Json | None, old: Json | None, user: str = DEVICE_PLUGIN, node: str | None = "w1"
) -> list[str]:
    extra = {} if node is None else {"extra": {"authentication.kubernetes.io/node-name": [node]}}
    name = (new or old or {})["metadata"]["name"]
    asked = {"operation": operation, "name": name, "userInfo": {"username": user, **extra}}
    return policy("slices").refusals(new, oldObject=old, request=asked)  # type: ignore[arg-type]


def changed(key: str, value: Any) -> Json:
    """Return the slice with another value in its spec; None: without it."""
    found = copy.deepcopy(SLICE)
    found["spec"].pop(key)
    return found if value is None else {**found, "spec": {**found["spec"], key: value}}


OF_NODE = "is not of node w1, whose device plugin asks: wanted nodeName and pool.name w1"
WRONG = [
    (changed("nodeName", "w2"), OF_NODE),
    (changed("nodeName", None), OF_NODE),
    ({**SLICE, "spec": {**changed("nodeName", None)["spec"], "allNodes": True}}, OF_NODE),
    (changed("pool", {"name": "w2"}), OF_NODE),
    (changed("driver", "gpu.example.com"), "is not of driver rdma.k8s-rdma.io, whose device plugin asks"),
    ({**SLICE, "metadata": {"name": slice_name("w2", 0)}}, "begins with w1-rdma.k8s-rdma.io-"),
]


@pytest.mark.parametrize(
    ("operation", "new", "old"), [("CREATE", SLICE, None), ("UPDATE", SLICE, SLICE), ("DELETE", None, SLICE)]
)
def test_device_plugin_writes_slices_of_its_node(operation: str, new: Json | None, old: Json | None):
    assert slice_refusals(operation, new, old) == []
    assert "its token names no node" in slice_refusals(operation, new, old, node=None)[0]
    assert slice_refusals(operation, new, old, node="w2")
    assert slice_refusals(operation, new, old, user="system:node:w2", node=None) == []


@pytest.mark.parametrize(("wrong", "told"), WRONG)
def test_device_plugin_writes_no_other_slices(wrong: Json, told: str):
    for operation, new, old in (
        ("CREATE", wrong, None),
        ("UPDATE", wrong, SLICE),
        ("UPDATE", SLICE, wrong),
        ("DELETE", None, wrong),
    ):
        assert told in slice_refusals(operation, new, old)[0]


@pytest.mark.parametrize("node", ["n" * 253, "n" * 199 + ".example", "n" * 200, "n" * 198 + ".example"])
def test_slices_of_nodes_with_long_names_are_named_as_the_driver_names_them(node: str):
    assert DNS_SUBDOMAIN.fullmatch(slice_name(node, 3))
    found = copy.deepcopy(SLICE)
    found["metadata"]["name"] = slice_name(node, 3)
    found["spec"] |= {"nodeName": node, "pool": {"name": node}}
    assert slice_refusals("CREATE", found, None, node=node) == []
