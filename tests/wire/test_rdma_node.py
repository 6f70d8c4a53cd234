"""`RdmaNode`: as small as decisions allow, and of the schema in its definition."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given

from deploy.rdma_node_crd import MANIFEST, custom_resource_definition
from k8s_rdma.core.inventory import CLAIMS_POOL
from k8s_rdma.core.rate_ability import EVERY_RATE
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.rdma_node import ClaimsStatus, decode_status, encode_status, status_of, vfs_for_pods
from k8s_rdma.wire.report import (
    Allocation,
    Enforced,
    ForeignVf,
    GpuReport,
    Interface,
    NodeReport,
    PfReport,
    ReportedPod,
    rates_of,
)
from wire.rdma_node_values import reports


def pf(number: int = 0, *, vfs: int = 120, foreign: int = 0, **more: Any) -> PfReport:
    return PfReport(
        name=f"enp{number}s0f0np0",
        pci=f"0000:{number:02x}:00.0",
        driver="mlx5_core",
        capacity_vfs=vfs,
        link_mbps=more.pop("link_mbps", 100_000),
        mtu=9000,
        rates=rates_of(EVERY_RATE),
        vendor="15b3:1017",
        numa_node=0,
        takes=("mac", "mtu", "vlan"),
        foreign=tuple(ForeignVf(vf=i, why="in use", min_tx_rate=10, max_tx_rate=0) for i in range(foreign)),
        **more,
    )


def gpu(number: int = 0, **more: Any) -> GpuReport:
    """The address counts on over buses and devices."""
    bus, device = divmod(number, 32)
    return GpuReport(
        resource=more.pop("resource", "nvidia.com/gpu"),
        pci=f"0000:{bus:02x}:{device:02x}.0",
        pcie_path=more.pop("pcie_path", ("0000:15:01.0", "0000:16:00.0")),
        **more,
    )


def held(pod: int, *interfaces: tuple[str, int]) -> Allocation:
    name = f"training-worker-{pod:03}"
    return Allocation(
        pod=ReportedPod(namespace="research", name=name, uid=f"7c9d0a52-3f8e-4f6c-9d55-0d9a3c2f{pod:04x}"),
        container_id="c" * 64,
        phase="attached",
        interfaces=tuple(
            Interface(
                pf=pf,
                vf=entry,
                ifname=f"rdma{entry}",
                mac="0a:00:00:00:00:01",
                min_tx_rate=rate,
                max_tx_rate=0,
                set_min_tx_rate=rate,
                set_max_tx_rate=0,
                enforced=Enforced(min="hardware", max=None),
                entry=entry,
            )
            for entry, (pf, rate) in enumerate(interfaces)
        ),
    )


def report(*pfs: PfReport, allocations: tuple[Allocation, ...] = (), **more: Any) -> NodeReport:
    ledger = more.pop("ledger", "ok")
    return NodeReport(
        node="w1", generation="4f1c.17", ledger=ledger, pfs=pfs, allocations=allocations, **more
    )


def size(of: NodeReport) -> int:
    return len(encode_status(status_of(of)))


def test_status_of_two_pfs_and_twenty_pods_takes_less_than_5_kb() -> None:
    pfs = (pf(0), pf(1))
    pods = tuple(held(i, (pfs[i % 2].pci, 5000)) for i in range(20))
    assert size(report(*pfs, allocations=pods)) < 5000


def test_status_of_eight_pfs_with_128_vfs_each_all_given_takes_less_than_30_kb() -> None:
    """To as many pods as a node has; more if no two interfaces of a pod are alike."""
    pfs = tuple(pf(i, vfs=128) for i in range(8))
    pods = tuple(held(i, *((pfs[i % 8].pci, 700 + each) for each in range(10))) for i in range(102))
    assert size(report(*pfs, allocations=pods)) < 80_000
    alike = tuple(held(i, *((pfs[i % 8].pci, 700),) * 10) for i in range(102))
    assert size(report(*pfs, allocations=alike)) < 30_000


def test_problems_without_end_do_not_make_the_status_grow() -> None:
    long = tuple("a promise that does not hold " * 100 for _ in range(200))
    assert size(report(pf(problems=long), problems=long, unreadable=long)) < 6000
    assert status_of(report(pf(problems=long))).pfs[0].problems[-1] == "and 195 more"


def test_summary_has_free_and_total_room() -> None:
    pfs = (pf(0, foreign=3), pf(1, link_mbps=None))
    made = report(*pfs, allocations=(held(1, (pfs[0].pci, 1250), (pfs[0].pci, 1250)),))
    summary = status_of(made).summary
    assert (summary.pfs, summary.vfs, summary.bandwidth) == (2, "235/240", "97.47/100Gb/s")


def test_summary_counts_exclusive_devices_separately_if_there_are_any() -> None:
    pfs = (pf(0, foreign=3, pools={"a.b/c": 4, "a.b/d": 1}), pf(1))
    [allocation] = (held(1, (pfs[0].pci, 1250), (pfs[0].pci, 0)),)
    device = msgspec.structs.replace(allocation.interfaces[0], pool="a.b/c")
    allocation = msgspec.structs.replace(allocation, interfaces=(device, allocation.interfaces[1]))
    summary = status_of(report(*pfs, allocations=(allocation,))).summary
    assert (summary.vfs, summary.devices) == ("236/240", "4/5")
    assert status_of(report(pf(0))).summary.devices == ""


def held_by_claim(pf: PfReport, mbps: int) -> Allocation:
    allocation = held(1, (pf.pci, mbps))
    [device] = allocation.interfaces
    device = msgspec.structs.replace(device, pool=CLAIMS_POOL)
    return msgspec.structs.replace(allocation, interfaces=(device,))


def test_summary_counts_pfs_for_claims_separately() -> None:
    pfs = (pf(0, vfs=0, foreign=0, pools={CLAIMS_POOL: 8}), pf(1))
    status = status_of(report(*pfs, allocations=(held_by_claim(pfs[0], 1250),)))
    summary = status.summary
    assert (summary.pfs, summary.vfs, summary.bandwidth) == (2, "120/120", "100/100Gb/s")
    assert (summary.devices, summary.claims) == ("", "7/8 VFs 98.75/100Gb/s")
    assert status.pfs[1].claims is None


def test_split_pf_counts_for_each_way_with_its_part() -> None:
    split = pf(0, vfs=100, pools={CLAIMS_POOL: 20}, claims_mbps=40_000)
    pods = (held_by_claim(split, 15_000), held(2, (split.pci, 5000)))
    status = status_of(report(split, allocations=pods))
    assert status.summary.vfs == "99/100"
    assert status.summary.bandwidth == "55/60Gb/s"
    assert status.summary.claims == "19/20 VFs 25/40Gb/s"
    assert json.loads(encode_status(status))["pfs"][0]["claims"] == {"mbps": 40_000, "reservedMbps": 15_000}


@pytest.mark.parametrize(
    ("link_mbps", "mbps"),
    [
        pytest.param(70_000, 10_000, id="what annotations leave of a slower link"),
        pytest.param(50_000, 0, id="nothing left"),
        pytest.param(None, None, id="unknown"),
    ],
)
def test_part_for_claims_is_no_more_than_others_leave(link_mbps: int | None, mbps: int | None) -> None:
    split = pf(0, vfs=100, pools={CLAIMS_POOL: 20}, claims_mbps=40_000, link_mbps=link_mbps)
    [found] = status_of(report(split, allocations=(held(2, (split.pci, 60_000)),))).pfs
    assert found.claims == ClaimsStatus(mbps=mbps, reserved_mbps=0)


@pytest.mark.parametrize("claims", [{"mbps": -1, "reservedMbps": 0}, {"reservedMbps": 1 << 63}, {"mbps": 5}])
def test_impossible_part_for_claims_is_refused(claims: dict[str, int]) -> None:
    document = json.loads(encode_status(status_of(report(pf(pools={CLAIMS_POOL: 1})))))
    document["pfs"][0]["claims"] = claims
    with pytest.raises(MalformedError, match="claims"):
        decode_status(json.dumps(document).encode())


def test_vfs_for_pods_are_those_that_are_not_foreign() -> None:
    pfs = (pf(0, foreign=3), pf(1))
    assert vfs_for_pods(status_of(report(*pfs, allocations=(held(1, (pfs[0].pci, 0)),)))) == 237


@pytest.mark.parametrize(
    ("more", "status", "reason", "said"),
    [
        ({}, "True", "AgentServes", "serves"),
        ({"ledger": "unavailable"}, "False", "LedgerUnavailable", "its agent is down"),
        ({"unreadable": ("PF x: gone",)}, "False", "HardwareUnreadable", "PF x: gone"),
    ],
)
def test_ready_says_whether_the_rest_may_be_relied_upon(
    more: dict[str, Any], status: str, reason: str, said: str
) -> None:
    ready = status_of(report(pf(), **more)).ready()
    assert ready is not None
    assert (ready.type, ready.status, ready.reason) == ("Ready", status, reason)
    assert said in ready.message


def test_status_has_gpus_and_bridges_in_camel_case() -> None:
    made = report(pf(pcie_path=("0000:00:01.0",)), gpus=(gpu(numa_node=1, in_use=True), gpu(1)))
    status = json.loads(encode_status(status_of(made)))
    assert status["pfs"][0]["pciePath"] == ["0000:00:01.0"]
    place = {"resource": "nvidia.com/gpu", "pciePath": ["0000:15:01.0", "0000:16:00.0"]}
    assert status["gpus"] == [
        {**place, "pci": "0000:00:00.0", "numaNode": 1, "inUse": True},
        {**place, "pci": "0000:00:01.0"},
    ]


@given(reports())
def test_status_is_the_same_after_it_was_written_and_read(node: NodeReport) -> None:
    status = status_of(node)
    assert decode_status(encode_status(status)) == status


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"generation": "x"}, "summary"),
        ({"summary": {"pfs": 0, "vfs": "", "bandwidth": ""}}, "generation"),
        ({"generation": 'a"b', "summary": {"pfs": 0, "vfs": "", "bandwidth": ""}}, "generation"),
        (
            {
                "generation": "a.1",
                "summary": {"pfs": 0, "vfs": "", "bandwidth": ""},
                "allocations": [
                    {
                        "pod": {"namespace": "d", "name": "p", "uid": "u"},
                        "interfaces": [{"pf": "0000:01:00.0", "vfs": 10**9}],
                    }
                ],
            },
            "vfs",
        ),
    ],
)
def test_wrong_field_of_a_status_is_named(document: dict[str, Any], field: str) -> None:
    with pytest.raises(MalformedError, match=field):
        decode_status(json.dumps(document).encode())


def test_manifest_is_the_definition_of_the_types() -> None:
    """To write it anew: `make chart`."""
    assert yaml.safe_load(MANIFEST.read_text()) == custom_resource_definition()


def test_columns_are_those_of_kubectl_get_rdmanodes() -> None:
    version = yaml.safe_load(MANIFEST.read_text())["spec"]["versions"][0]
    columns = [
        (column["name"].upper(), column.get("priority", 0)) for column in version["additionalPrinterColumns"]
    ]
    assert [name for name, priority in columns if not priority] == [
        "PFS",
        "VFS FREE/TOTAL",
        "BANDWIDTH FREE/TOTAL",
        "AGE",
        "LAST REPORT",
        "READY THEN",
    ]
    assert [name for name, priority in columns if priority] == [
        "NODE",
        "DEVICES FREE/TOTAL",
        "CLAIMS FREE/TOTAL",
    ]
    pools = {"tencent.com/rdma": 1, CLAIMS_POOL: 1}
    status = json.loads(encode_status(status_of(report(pf(pools=pools)))))
    for column in version["additionalPrinterColumns"]:
        if column["jsonPath"].startswith(".status.summary."):
            assert status["summary"][column["jsonPath"].rpartition(".")[2]] not in (None, "")


def test_schema_is_structural() -> None:
    schema = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for each in nodes_of(schema):
        assert isinstance(each.get("type"), str), each
        assert not each.keys() & {"$ref", "anyOf", "oneOf", "allOf", "not", "default", "title"}, each
        assert set(each.get("required", ())) <= each.get("properties", {}).keys()
        assert ("items" in each) == (each["type"] == "array")


@given(reports())
def test_schema_takes_every_status_that_an_agent_writes(node: NodeReport) -> None:
    schema = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert mistakes(schema["properties"]["status"], json.loads(encode_status(status_of(node)))) == []


def nodes_of(schema: dict[str, Any]) -> list[dict[str, Any]]:
    below = [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]
    return [schema, *(node for each in below for node in nodes_of(each))]


TYPES = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}


def mistakes(schema: dict[str, Any], value: Any, where: str = "status") -> list[str]:
    """Return parts of the value that the API server would refuse, or drop because the schema lacks them."""
    if value is None:
        return [] if schema.get("nullable") else [f"{where}: null"]
    if not isinstance(value, TYPES[schema["type"]]):
        return [f"{where}: no {schema['type']}"]
    found = []
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{where}: {value} is none of {schema['enum']}")
    if isinstance(value, int) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        found.append(f"{where}: {value} is out of range")
    if isinstance(value, list):
        for each in value:
            found += mistakes(schema["items"], each, f"{where}[]")
    if isinstance(value, dict):
        found += [f"{where}.{name}: missing" for name in schema.get("required", ()) if name not in value]
        for name, each in value.items():
            known = schema["properties"].get(name)
            found += mistakes(known, each, f"{where}.{name}") if known else [f"{where}.{name}: unknown"]
    return found
