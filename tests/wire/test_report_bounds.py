"""Bounds of a node's published status: the decoder's are the schema's, and no agent of ours exceeds them."""

from __future__ import annotations

import copy
import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from deploy.rdma_node_crd import custom_resource_definition
from k8s_rdma.core.rate_ability import EVERY_RATE
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire import report as bounds
from k8s_rdma.wire.rdma_node import decode_macs, decode_status, encode_status, in_use, status_of
from k8s_rdma.wire.report import ForeignVf, NodeReport, rates_of
from wire.test_rdma_node import gpu, held, pf, report

if TYPE_CHECKING:
    from collections.abc import Iterator

[VERSION] = custom_resource_definition()["spec"]["versions"]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]["properties"]["status"]
Path = tuple[str | int, ...]
WHOLE: dict[str, Any] = {
    "generation": "a.1",
    "summary": {
        "pfs": 1,
        "vfs": "1/1",
        "bandwidth": "1/1Gb/s",
        "devices": "1/1",
        "claims": "1/1 VFs 1/1Gb/s",
    },
    "pfs": [
        {
            "name": "eth0",
            "pci": "0000:01:00.0",
            "driver": "d",
            "vendor": "v",
            "numaNode": 0,
            "pciePath": ["0000:00:01.0"],
            "linkMbps": 1,
            "linkType": "ethernet",
            "mtu": 1500,
            "capacityVfs": 1,
            "pools": [{"resource": "a.b/c", "vfs": 1}],
            "claims": {"mbps": 1, "reservedMbps": 1},
            "rates": {
                "min": {"step": 1, "smallest": 1, "largest": 2},
                "max": {"step": 1, "smallest": 1, "largest": 2},
                "sumChecked": True,
                "needsLink": True,
                "weights": 1,
            },
            "enforce": "auto",
            "takes": ["mac"],
            "foreign": [{"vfs": 1, "minMbps": 1, "pool": "a.b/c"}],
            "problems": ["p"],
        }
    ],
    "gpus": [
        {
            "resource": "nvidia.com/gpu",
            "pci": "0000:1b:00.0",
            "pciePath": ["0000:15:01.0"],
            "numaNode": 0,
            "inUse": True,
        }
    ],
    "macs": [{"first": "02:00:00:00:00:01", "number": 2}],
    "allocations": [
        {
            "pod": {"namespace": "a", "name": "b", "uid": "c"},
            "interfaces": [
                {"pf": "0000:01:00.0", "vfs": 1, "minMbps": 1, "maxMbps": 1, "entries": [0], "pool": "a.b/c"}
            ],
            "generation": 1,
            "refused": {"generation": 2, "message": "m"},
        }
    ],
    "conditions": [
        {
            "type": "Ready",
            "status": "True",
            "reason": "r",
            "message": "m",
            "lastTransitionTime": "t",
            "lastHeartbeatTime": "t",
        }
    ],
    "problems": ["p"],
    "mentions": [{"namespace": "a", "name": "b"}],
}
"""A status with every field that the schema knows."""


def places(schema: dict[str, Any], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the path of each part of the schema in `WHOLE`."""
    yield path, schema
    for name, each in schema.get("properties", {}).items():
        yield from places(each, (*path, name))
    if "items" in schema:
        yield from places(schema["items"], (*path, 0))


def with_value(path: Path, value: Any) -> bytes:
    made = copy.deepcopy(WHOLE)
    at: Any = made
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return json.dumps(made).encode()


def value_at(path: Path) -> Any:
    at: Any = WHOLE
    for step in path:
        at = at[step]
    return at


def beyond(path: Path, schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Values that the schema refuses, by the word that does."""
    if "maximum" in schema:
        yield "maximum", schema["maximum"] + 1
    if "minimum" in schema:
        yield "minimum", schema["minimum"] - 1
    if "maxItems" in schema:
        yield "maxItems", [value_at((*path, 0))] * (schema["maxItems"] + 1)
    if "maxLength" in schema:
        yield "maxLength", "x" * (schema["maxLength"] + 1)
    if "pattern" in schema:
        yield "pattern", "\x1b[2J"
        yield "pattern", "0000:01:00.0\n"
    if "x-kubernetes-list-map-keys" in schema:
        yield "list-map-keys", [value_at((*path, 0))] * 2


BEYOND = [
    pytest.param(path, word, value, id=f"{'.'.join(map(str, path))}-{word}")
    for path, schema in places(SCHEMA)
    for word, value in beyond(path, schema)
]


def test_whole_status_is_read() -> None:
    assert encode_status(decode_status(json.dumps(WHOLE).encode()))


@pytest.mark.parametrize(("path", "word", "value"), BEYOND)
def test_decoder_refuses_by_name_every_value_that_the_schema_refuses(
    path: Path, word: str, value: Any
) -> None:
    field = next(str(step) for step in reversed(path) if isinstance(step, str))
    with pytest.raises(MalformedError, match=field):
        decode_status(with_value(path, value))


def test_schema_bounds_every_list_every_text_and_every_number() -> None:
    for path, schema in places(SCHEMA):
        match schema["type"]:
            case "array":
                assert "maxItems" in schema, path
            case "string":
                assert schema.keys() & {"maxLength", "enum"} or path[-1] in {"pci", "pf"}, path
            case "integer":
                assert {"minimum", "maximum"} <= schema.keys(), path


def test_schema_has_patterns_that_go_reads_as_python_does() -> None:
    """RE2 knows no `\\Z`; without flags its `$` is the end of the text alone."""
    for path, schema in places(SCHEMA):
        if "pattern" in schema:
            assert "\\Z" not in schema["pattern"], path
            assert re.compile(schema["pattern"].replace("$", "\\Z")).search(str(value_at(path))), path


@pytest.mark.parametrize(
    ("path", "field"),
    [
        (("pfs",), "pfs[].pci: 0000:01:00.0"),
        (("allocations",), "allocations[].pod.uid: c"),
        (("gpus",), "gpus[].pci: nvidia.com/gpu 0000:1b:00.0"),
    ],
)
def test_repeated_entry_is_refused(path: tuple[str], field: str) -> None:
    with pytest.raises(MalformedError, match=re.escape(field)):
        decode_status(with_value(path, [value_at((*path, 0))] * 2))


def test_pool_that_a_pf_has_twice_is_refused() -> None:
    with pytest.raises(MalformedError, match=re.escape("resource of PF 0000:01:00.0: a.b/c is there twice")):
        decode_status(with_value(("pfs", 0, "pools"), [{"resource": "a.b/c", "vfs": 1}] * 2))


@pytest.mark.parametrize(
    ("macs", "why"),
    [
        ([{"first": "ff:ff:ff:ff:ff:ff", "number": 2}], "from ff:ff:ff:ff:ff:ff on go beyond the last"),
        (
            [{"first": "02:00:00:00:00:01", "number": 6}],
            "macs: 6 of them, and its PFs and VFs have 5",
        ),
        ([{"first": "02:00:00:00:00:01", "number": 0}], "number"),
    ],
)
def test_macs_are_refused_alike_when_they_alone_are_read(macs: list[Any], why: str) -> None:
    for read in (decode_status, decode_macs):
        with pytest.raises(MalformedError, match=why):
            read(with_value(("macs",), macs))


def test_macs_alone_are_those_of_the_whole_status() -> None:
    whole = json.dumps(WHOLE).encode()
    assert decode_macs(whole) == decode_status(whole).macs
    assert decode_macs(b"") == ()


def test_use_of_pfs_is_that_of_pods_and_others() -> None:
    status = decode_status(json.dumps(WHOLE).encode())
    assert in_use(status.pfs, status.allocations).vfs == {("0000:01:00.0", "a.b/c"): 2}
    assert in_use(status.pfs, status.allocations).mbps == {"0000:01:00.0": 2}
    assert in_use(status.pfs).vfs == {("0000:01:00.0", "a.b/c"): 1}


def ready(of: NodeReport) -> tuple[str, str]:
    status = status_of(of)
    condition = decode_status(encode_status(status)).ready()
    assert condition is not None
    return condition.status, condition.message


def largest(pods: int = 512) -> NodeReport:
    """16 PFs with 256 VFs each, all of them held with rates that differ, by pods with sandboxes to spare."""
    pfs = tuple(pf(i, vfs=256, pools={"a.b/c": 8}) for i in range(16))
    each = 16 * 256 // pods
    return report(
        *pfs,
        allocations=tuple(
            held(i, *((pfs[(i + n) % 16].pci, 100 + n) for n in range(each))) for i in range(pods)
        ),
    )


@pytest.mark.parametrize("pods", [4, 110, 512, 4096])
def test_largest_sensible_node_is_published(pods: int) -> None:
    assert ready(largest(pods))[0] == "True"


def test_largest_sensible_node_is_published_when_all_its_vfs_are_foreign() -> None:
    foreign = tuple(ForeignVf(vf=i, why="in use", min_tx_rate=i, max_tx_rate=0) for i in range(256))
    assert ready(report(*(replace(pf(i, vfs=256), foreign=foreign) for i in range(16))))[0] == "True"


def test_two_resources_of_one_gpu_are_published() -> None:
    both = tuple(gpu(0, resource=resource) for resource in ("nvidia.com/gpu", "nvidia.com/mig-1g.10gb"))
    assert ready(report(pf(0), gpus=both))[0] == "True"


def test_pod_of_two_sandboxes_that_hold_the_same_entries_is_published() -> None:
    one = held(1, *((pf(0).pci, 5),) * 1024)
    other = replace(one, container_id="d" * 64)
    assert ready(report(pf(0, vfs=4096), allocations=(one, other)))[0] == "True"


@pytest.mark.parametrize("name", ["eth0\x1b[2J", "\u202egnp", "x" * 200, "a\nb", ""])
def test_names_of_the_machine_are_published_as_labels(name: str) -> None:
    [told] = status_of(report(replace(pf(0), name=name, driver=name, vendor=name))).pfs
    for each in (told.name, told.driver, told.vendor):
        assert each.isascii()
        assert not each or each.isprintable()
        assert len(each) <= bounds.MAX_LABEL


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (report(*(pf(i) for i in range(bounds.MAX_PFS + 1))), "pfs"),
        (report(pf(0), pf(0)), "0000:00:00.0 is there twice"),
        (report(pf(0, pcie_path=("0000:00:01.0",) * (bounds.MAX_BRIDGES + 1))), "pciePath"),
        (report(gpus=tuple(gpu(i) for i in range(bounds.MAX_GPUS + 1))), "gpus"),
        (report(gpus=(gpu(0), gpu(0))), "nvidia.com/gpu 0000:00:00.0 is there twice"),
        (report(gpus=(gpu(0, pcie_path=("0000:00:01.0",) * (bounds.MAX_BRIDGES + 1)),)), "pciePath"),
        (report(gpus=(gpu(0, resource="\x1b[2J"),)), "resource"),
    ],
)
def test_report_beyond_the_bounds_is_published_as_not_ready(made: NodeReport, why: str) -> None:
    status, message = ready(made)
    assert status == "False"
    assert why in message
    assert status_of(made).pfs == ()


def test_bounds_of_rates_are_those_of_the_core() -> None:
    assert rates_of(EVERY_RATE).max is not None
    assert rates_of(EVERY_RATE).max.largest == bounds.MAX_RATE_MBPS
