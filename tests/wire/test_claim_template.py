"""Templates of ResourceClaims for annotations: the same interfaces, on the same PFs, largest first."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from cel_expr_python import cel
from hypothesis import given
from hypothesis import strategies as st

from asked_options import drawn_options
from k8s_rdma.core.inventory import Pf
from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.pf_needs import is_chosen
from k8s_rdma.core.request import InterfaceRequest, PfPolicy, Request
from k8s_rdma.core.types import Accelerator, Enforce, LinkType, PfSelector, VfDriver, pci_address
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.annotation import read_pod
from k8s_rdma.wire.claim_template import (
    MAX_INTERFACES_PER_CLAIM,
    ClaimTemplates,
    TemplateNames,
    claim_templates,
    with_claims,
)
from k8s_rdma.wire.claims import DRIVER, Offers, PfOffer
from k8s_rdma.wire.pod_spec import quantity
from k8s_rdma.wire.resource_slice import slice_specs
from resource_claims import read_interface_config

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = TemplateNames(name="train-rdma")
SLOT = "k8s-rdma.io/slot"


def converted(*elements: object, **annotations: str) -> ClaimTemplates:
    found = {"rdma_interfaces_required": json.dumps(elements)}
    found |= {f"k8s-rdma.io/{key}": value for key, value in annotations.items()}
    return claim_templates(read_pod(found, strict=True).request, NAMES)


def devices(*elements: object, **annotations: str) -> dict[str, Any]:
    """`spec.devices` of the only claim."""
    [template] = converted(*elements, **annotations).templates
    return template.document["spec"]["spec"]["devices"]


def refusal(*elements: object, **annotations: str) -> str:
    with pytest.raises(MalformedError) as refused:
        converted(*elements, **annotations)
    return refused.value.message


def read_back(template: dict[str, Any]) -> Iterator[InterfaceRequest]:
    """The interfaces as the agent reads them of the claim that is made of a template."""
    found = msgspec.json.decode(msgspec.json.encode(template))["spec"]["spec"]["devices"]
    for request in found["requests"]:
        exact = request["exactly"]
        amount = quantity(exact.get("capacity", {}).get("requests", {}).get("bandwidth", "0")) / 1_000_000
        parameters = [
            each["opaque"]["parameters"]
            for each in found.get("config", ())
            if request["name"] in each["requests"]
        ]
        assert len(parameters) <= 1
        head = {"apiVersion": "k8s-rdma.io/v1", "kind": "InterfaceConfig"}
        text = msgspec.json.encode(parameters[0] if parameters else head)
        yield from [read_interface_config(text, min_mbps=int(amount))] * exact.get("count", 1)


@st.composite
def interfaces(draw: st.DrawFn) -> InterfaceRequest:
    cap = draw(st.just(0) | st.integers(1, 2**32 - 1))
    reserved = draw(st.sampled_from([0, 10_000, 25_000]) | st.integers(0, cap or 2**32 - 1))
    options = draw(st.just(InterfaceOptions()) | drawn_options())
    software = [Enforce.SOFTWARE] if options.driver is VfDriver.KERNEL else []
    enforce = draw(st.sampled_from([Enforce.AUTO, Enforce.HARDWARE, *software]))
    return InterfaceRequest(
        min_tx_rate_mbps=min(reserved, cap) if cap else reserved,
        max_tx_rate_mbps=cap,
        enforce=enforce,
        options=options,
    )


REQUESTS = st.builds(
    Request,
    st.lists(interfaces(), max_size=8).map(lambda found: (*found, *found[:3])),
    st.sampled_from(PfPolicy),
)


def on_any_pf(interface: InterfaceRequest) -> InterfaceRequest:
    return replace(interface, options=replace(interface.options, pf=None, link_type=None))


@given(REQUESTS)
def test_interfaces_of_a_claim_are_those_of_the_annotation(request_: Request):
    found = claim_templates(request_, NAMES).templates
    read = [interface for template in found for interface in read_back(template.document)]
    assert Counter(read) == Counter(map(on_any_pf, request_.interfaces))


@given(REQUESTS)
def test_requests_are_largest_first_and_those_alike_beside_each_other(request_: Request):
    found = claim_templates(request_, NAMES).templates
    read = [interface for template in found for interface in read_back(template.document)]
    rates = [interface.min_tx_rate_mbps for interface in read]
    assert rates == sorted(rates, reverse=True)
    changes = sum(one != other for one, other in pairwise(read))
    if all(interface.options == InterfaceOptions() for interface in request_.interfaces):
        assert changes == len(set(read)) - 1 if read else not changes


PF = Pf(
    name="enp65s0f0",
    pci=pci_address("41:00.0"),
    capacity_vfs=8,
    link_mbps=100_000,
    driver="mlx5_core",
    vendor="15b3:1017",
    mtu=1500,
    link_type=LinkType.ETHERNET,
)
PFS = [
    PF,
    replace(PF, name="enp65s0f1", pci=pci_address("41:00.1"), mtu=9000),
    replace(PF, name="ib0", pci=pci_address("81:00.0"), link_type=LinkType.INFINIBAND),
    replace(PF, name="a", pci=pci_address("01:00.0"), driver="ice", vendor="8086:1572"),
]
_compiled = cache(cel.NewEnv(variables={"device": cel.Type.DYN}).compile)


def selected(expressions: list[str], pf: Pf) -> bool:
    """Whether kube-scheduler would take the PF, by its device in our ResourceSlice."""
    offer = PfOffer(
        **{key: getattr(pf, key) for key in ("name", "pci", "driver", "vendor", "link_type", "mtu")},
        pf=pf.name,
        min_rate="hardware",
        max_rate="hardware",
        rdma=True,
        bandwidth_mbps=100_000,
        vfs=8,
    )
    [spec] = slice_specs(Offers(node="w1", pfs=(offer,)))
    attributes: dict[str, dict[str, Any]] = {}
    for name, value in spec["devices"][0]["attributes"].items():
        domain, _, key = name.rpartition("/")
        attributes.setdefault(domain or DRIVER, {})[key] = next(iter(value.values()))
    device = {"driver": DRIVER, "attributes": attributes}
    found = [_compiled(each).eval(data={"device": device}) for each in expressions]
    assert not [each.value() for each in found if each.type() == cel.Type.ERROR]
    return all(each.value() for each in found)


SELECTING = st.builds(
    InterfaceOptions,
    pf=st.none()
    | st.builds(
        PfSelector,
        names=st.frozensets(st.sampled_from([pf.name for pf in PFS] + ["it's", "\\"]), max_size=2),
        pcis=st.frozensets(st.sampled_from([pf.pci for pf in PFS]), max_size=2),
        vendors=st.frozensets(st.sampled_from(["15b3", "15b3:1017", "8086", "8086:0001"]), max_size=2),
        drivers=st.frozensets(st.sampled_from(["mlx5_core", "ice"]), max_size=2),
    ),
    link_type=st.none() | st.sampled_from(LinkType),
    mtu=st.none() | st.sampled_from([1500, 9000]),
)


@given(SELECTING, st.sampled_from(PFS))
def test_selectors_take_the_pfs_that_the_annotation_takes(options: InterfaceOptions, pf: Pf):
    interface = InterfaceRequest(options=options)
    [template] = claim_templates(Request((interface,)), NAMES).templates
    [request_] = template.document["spec"]["spec"]["devices"]["requests"]
    expressions = [each["cel"]["expression"] for each in request_["exactly"].get("selectors", ())]
    assert selected(expressions, pf) == is_chosen(pf, interface.needs)


def test_template_is_as_kubernetes_wants_it():
    [template] = converted(
        {"min_tx_rate": 25_000, "max_tx_rate": 40_000, "vlan": 10, "spoof_check": False}
    ).templates
    assert template.document == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "train-rdma"},
        "spec": {
            "spec": {
                "devices": {
                    "requests": [
                        {
                            "name": "interface-0",
                            "exactly": {
                                "deviceClassName": "rdma",
                                "capacity": {"requests": {"bandwidth": "25G"}},
                            },
                        }
                    ],
                    "config": [
                        {
                            "requests": ["interface-0"],
                            "opaque": {
                                "driver": "rdma.k8s-rdma.io",
                                "parameters": {
                                    "apiVersion": "k8s-rdma.io/v1",
                                    "kind": "InterfaceConfig",
                                    "maxTxRate": "40G",
                                    "vlan": 10,
                                    "spoofCheck": False,
                                },
                            },
                        }
                    ],
                }
            }
        },
    }


def test_reservations_are_written_in_decimal():
    found = devices({"min_tx_rate": 15_500}, {"min_tx_rate": 25_000}, {})
    assert [each["exactly"].get("capacity") for each in found["requests"]] == [
        {"requests": {"bandwidth": "25G"}},
        {"requests": {"bandwidth": "15500M"}},
        None,
    ]


@pytest.mark.parametrize(
    ("policy", "constraints"),
    [
        ("any", None),
        ("same-pf", [{"matchAttribute": "rdma.k8s-rdma.io/pf"}]),
        ("spread-pfs", [{"distinctAttribute": "rdma.k8s-rdma.io/pf"}]),
        ("same-numa", [{"matchAttribute": "rdma.k8s-rdma.io/numaNode"}]),
    ],
)
def test_policy_is_a_constraint(policy: str, constraints: object):
    assert devices({"min_tx_rate": 5}, {}, policy=policy).get("constraints") == constraints
    assert "constraints" not in devices({}, policy=policy)


def test_one_on_each_of_several_pfs_is_one_request():
    found = devices({"min_tx_rate": 50_000, "count": 8}, policy="spread-pfs")
    [request_] = found["requests"]
    assert request_["exactly"]["count"] == 8
    assert "constraints" not in found
    mixed = devices({}, {"min_tx_rate": 5}, {}, policy="spread-pfs")
    assert [each["exactly"].get("count") for each in mixed["requests"]] == [None, 2]
    assert mixed["constraints"] == [{"distinctAttribute": "rdma.k8s-rdma.io/pf"}]


def test_several_on_a_pf_are_requests_of_their_own():
    assert len(devices({"count": 8})["requests"]) == 8
    assert len(devices({"count": 8}, policy="same-pf")["requests"]) == 8


def test_sixty_interfaces_are_two_claims():
    found = converted({"count": 59}, {"min_tx_rate": 1}).templates
    assert [(each.name, each.pod_claim) for each in found] == [
        ("train-rdma-1", "rdma-1"),
        ("train-rdma-2", "rdma-2"),
    ]
    claims = [each.document["spec"]["spec"]["devices"]["requests"] for each in found]
    assert list(map(len, claims)) == [MAX_INTERFACES_PER_CLAIM] * 2
    assert claims[0][0]["exactly"]["capacity"] == {"requests": {"bandwidth": "1M"}}


def test_claims_of_a_pod_are_in_order_by_name():
    names = [each.pod_claim for each in converted({"count": 301}).templates]
    assert len(names) == 11
    assert names == sorted(names)


def test_empty_request_needs_no_template():
    assert converted() == ClaimTemplates(templates=())


@pytest.mark.parametrize("key", ["near", "per"])
def test_interfaces_near_gpus_are_refused_with_the_constraint_to_write(key: str):
    message = refusal({}, {key: "gpu"}, topology="same-numa")
    assert message.startswith(f"rdma_interfaces_required: interface 1: {key}: a claim does not know")
    assert "matchAttribute: resource.kubernetes.io/numaNode" in message
    assert "matchAttribute: resource.kubernetes.io/pcieRoot" in refusal({key: Accelerator.GPU})


def test_policy_beyond_a_claim_is_refused():
    assert devices({"count": 30}, policy="same-pf")
    assert refusal({"count": 31}, policy="same-pf").startswith(
        "k8s-rdma.io/policy: same-pf of 31 interfaces: constraints hold within a claim, which has at most 30"
    )


def test_converted_request_warns_of_differences():
    assert converted({"min_tx_rate": 1}, {}).warnings == ()
    [order] = converted({}, {"min_tx_rate": 1}).warnings
    assert "in the order of the requests" in order
    assert converted({"name": "a"}, {"name": "b", "min_tx_rate": 1}).warnings == ()
    [numa] = converted({}, policy="same-numa").warnings
    assert "a PF without a NUMA node" in numa


def test_enforcement_by_hardware_selects_pfs_whose_driver_can():
    [request_] = devices({"min_tx_rate": 1, "max_tx_rate": 2, "enforce": "hardware"})["requests"]
    expressions = [each["cel"]["expression"] for each in request_["exactly"]["selectors"]]
    assert expressions == [
        "device.attributes['rdma.k8s-rdma.io'].minRate == 'hardware'",
        "device.attributes['rdma.k8s-rdma.io'].maxRate == 'hardware'",
    ]


# Pods


def pod(**annotations: str) -> dict[str, Any]:
    found = {"rdma_interfaces_required": "[{}]"} | {
        f"k8s-rdma.io/{key}": text for key, text in annotations.items()
    }
    return {
        "metadata": {"name": "train", "annotations": found},
        "spec": {
            "containers": [
                {"name": "main", "resources": {"limits": {SLOT: "1", "cpu": "2"}}},
                {"name": "other", "resources": {"limits": {SLOT: "1"}}},
            ],
            "initContainers": [{"name": "first"}],
        },
    }


def changed(before: dict[str, Any], *elements: object) -> dict[str, Any]:
    return with_claims(before, converted(*elements or ({},)).templates, SLOT)


def test_pod_asks_by_claim_and_its_first_container_has_the_devices():
    before = pod()
    kept = json.dumps(before)
    after = changed(before)
    assert json.dumps(before) == kept
    assert after["metadata"] == {"name": "train"}
    assert after["spec"]["resourceClaims"] == [{"name": "rdma", "resourceClaimTemplateName": "train-rdma"}]
    main, other = after["spec"]["containers"]
    assert main["resources"] == {"limits": {"cpu": "2"}, "claims": [{"name": "rdma"}]}
    assert "claims" not in other["resources"]


def test_program_that_kubectl_goes_to_has_the_devices():
    before = pod()
    before["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] = "other"
    main, other = changed(before)["spec"]["containers"]
    assert "claims" not in main["resources"]
    assert other["resources"] == {"claims": [{"name": "rdma"}]}


def test_containers_that_the_annotation_names_have_the_devices():
    after = changed(pod(containers="other, first", memlock="1Gi", policy="same-pf"))
    assert after["metadata"]["annotations"] == {"k8s-rdma.io/memlock": "1Gi"}
    main, other = after["spec"]["containers"]
    assert "claims" not in main["resources"]
    assert other["resources"] == {"claims": [{"name": "rdma"}]}
    assert after["spec"]["initContainers"][0]["resources"] == {"claims": [{"name": "rdma"}]}
    with pytest.raises(MalformedError, match=r"k8s-rdma.io/containers: third is no container of this pod"):
        changed(pod(containers="third"))


def test_pod_has_each_of_its_claims():
    after = changed(pod(), {"count": 31})
    assert [each["name"] for each in after["spec"]["resourceClaims"]] == ["rdma-1", "rdma-2"]
    assert after["spec"]["containers"][0]["resources"]["claims"] == [{"name": "rdma-1"}, {"name": "rdma-2"}]


def test_claims_that_a_pod_has_already_stay():
    before = pod()
    gpu = {"name": "gpu", "resourceClaimTemplateName": "gpu"}
    before["spec"]["resourceClaims"] = [gpu]
    assert changed(before)["spec"]["resourceClaims"][0] == gpu
    before["spec"]["resourceClaims"] = [{**gpu, "name": "rdma"}]
    with pytest.raises(MalformedError, match=r"spec.resourceClaims: rdma is there already"):
        changed(before)
