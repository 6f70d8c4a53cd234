"""Claims for extended resources of DeviceClasses; that kube-scheduler makes the same: tests/cluster."""

from __future__ import annotations

from typing import Any

import pytest

from claim_cases import Json, container
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.extended_resources import claim_spec, has_extended_resources

RDMA = {"metadata": {"name": "rdma"}, "spec": {}}
SIDECAR = {"restartPolicy": "Always"}


def requests(inits: list[Json], containers: list[Json], *classes: Json) -> list[tuple[str, str, int]]:
    pod = {"spec": {"initContainers": inits, "containers": containers}}
    spec = claim_spec(pod, classes or (RDMA,))
    if spec is None:
        return []
    return [
        (each["name"], each["exactly"]["deviceClassName"], each["exactly"]["count"])
        for each in spec["devices"]["requests"]
    ]


@pytest.mark.parametrize(
    ("inits", "containers", "expected"),
    [
        ([], [container("a", 2), container("b"), container("c", 1)], {0: 2, 2: 1}),
        ([container("a", 1)], [container("b", 1)], {1: 1}),
        ([container("a", 3), container("b", 2)], [container("c", 1)], {0: 2, 2: 1}),
        ([container("a", 2), container("b", 2)], [container("c")], {0: 2}),
        ([container("a", 2, **SIDECAR), container("b", 2)], [container("c", 1)], {0: 2, 1: 1, 2: 1}),
        ([container("a", 3), container("b", 2, **SIDECAR)], [container("c", 1)], {1: 2, 2: 1}),
    ],
)
def test_init_containers_share_the_devices_of_later_containers(
    inits: list[Json], containers: list[Json], expected: dict[int, int]
):
    assert requests(inits, containers) == [
        (f"container-{index}-request-1", "rdma", count) for index, count in expected.items()
    ]


def of(resource: str, amount: str = "1") -> list[Json]:
    return [{"name": "a", "resources": {"requests": {resource: amount}}}]


def device_class(name: str, created: str, resource: str | None) -> Json:
    return {
        "metadata": {"name": name, "creationTimestamp": f"2026-01-0{created}T00:00:00Z"},
        "spec": {"extendedResourceName": resource},
    }


def test_newest_class_of_a_name_has_it_and_of_equally_old_ones_the_first():
    named = [
        device_class("old", "1", "example.com/vf"),
        device_class("b", "2", "example.com/vf"),
        device_class("a", "2", "example.com/vf"),
        device_class("other", "3", "example.com/other"),
    ]
    assert requests([], of("example.com/vf"), *named) == [("container-0-request-0", "a", 1)]
    assert requests([], of("deviceclass.resource.kubernetes.io/old"), *named) == [
        ("container-0-request-0", "old", 1)
    ]


@pytest.mark.parametrize(
    "containers",
    [[], of("example.com/slot"), of("deviceclass.resource.kubernetes.io/rdma", "0"), [{"resources": None}]],
)
def test_pod_without_a_resource_of_a_class_has_no_claim(containers: list[Json]):
    assert requests([], containers) == []


def test_resources_that_no_class_can_have_need_no_classes():
    assert not has_extended_resources({"spec": {"containers": [container("a")], "initContainers": None}})
    assert has_extended_resources({"spec": {"containers": [container("a", 1)]}})


@pytest.mark.parametrize(
    ("pod", "classes", "expected"),
    [
        ({"spec": {"containers": 1}}, [], "pod: Expected `array | null`, got `int` - at `$.spec.containers`"),
        (
            {"spec": {"containers": of("deviceclass.resource.kubernetes.io/rdma", "x")}},
            [RDMA],
            "pod: resources.requests[deviceclass.resource.kubernetes.io/rdma]: x is no quantity",
        ),
        ({"spec": {}}, [{"spec": 1}], "deviceclasses: Expected `object`, got `int` - at `$[0].spec`"),
    ],
)
def test_field_that_cannot_be_read_is_named(pod: Json, classes: list[Any], expected: str):
    with pytest.raises(MalformedError) as refused:
        claim_spec(pod, classes)
    assert refused.value.message == expected
