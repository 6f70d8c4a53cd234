"""The stand-in's allocator: recordings of the real one, and requests that it does not simulate."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest

from cluster.allocations import RECORDINGS, claim, comparable, pfs, recordings, request
from k8s_rdma.wire.claims import DRIVER
from k8s_rdma_demo.cluster.claim_allocator import AllocationError, Inventory, allocate, consumed_capacity

if TYPE_CHECKING:
    from cluster.control_plane import Json

RECORDED = recordings()
CLASS = {
    "metadata": {"name": "rdma"},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
}


def by_name(classes: list[Json]) -> dict[str, Json]:
    return {each["metadata"]["name"]: each for each in classes}


@pytest.mark.parametrize("name", RECORDED)
def test_allocator_allocates_as_the_real_one(name: str):
    recorded = RECORDED[name]
    allocations: list[Json] = []
    shares = map(str, count())
    for pod in recorded["pods"]:
        inventory = Inventory(
            slices=recorded["slices"], classes=by_name(recorded["classes"]), allocations=allocations
        )
        found = allocate(pod["claims"], inventory, recorded["node"], lambda: next(shares))
        assert comparable(found) == comparable(pod["allocations"])
        allocations += found or []


def test_recordings_are_there():
    assert len(RECORDED) > 10, RECORDINGS


def allocated(*requests: Json, **devices: object) -> list[Json] | None:
    document = {"metadata": {"name": "c"}, "spec": claim(*requests, **devices)}
    spec = {
        "driver": DRIVER,
        "nodeName": "w1",
        "pool": {"name": "w1", "generation": 1, "resourceSliceCount": 1},
        "devices": pfs(100_000, 100_000),
    }
    inventory = Inventory(
        slices=[{"metadata": {"name": "s"}, "spec": spec}], classes={"rdma": CLASS}, allocations=[]
    )
    return allocate([document], inventory, "w1", lambda: "share")


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (request("a", deviceClassName="none"), "claim c: request a: device class none does not exist"),
        (request("a", adminAccess=True), "adminAccess is not simulated"),
        (request("a", tolerations=[{"operator": "Exists"}]), "tolerations is not simulated"),
        (request("a", allocationMode="All"), "allocationMode All is not simulated"),
        ({"name": "a", "firstAvailable": [{"name": "b"}]}, "firstAvailable is not simulated"),
        (
            request("a", selectors=[{"cel": {"expression": "device.attributes['x'].y == 1"}}]),
            'only device.driver == "NAME" is simulated, not device.attributes',
        ),
    ],
)
def test_claim_is_refused_by_name_when_it_is_not_simulated(wrong: Json, why: str):
    with pytest.raises(AllocationError, match=why):
        allocated(wrong)


def test_constraint_is_refused_by_name_when_it_is_not_simulated():
    with pytest.raises(AllocationError, match="claim c: constraint other is not simulated"):
        allocated(request("a"), constraints=[{"other": "x"}])


def test_selector_of_a_request_narrows_that_of_its_class():
    def selected(driver: str) -> list[Json] | None:
        expression = f"device.driver == '{driver}'"
        return allocated(request("a", selectors=[{"cel": {"expression": expression}}]))

    assert selected(DRIVER) is not None
    assert selected("other") is None


def test_search_ends_when_it_takes_too_long():
    requests = [request(f"r{index}", "9.1G") for index in range(22)]  # 20 fit; all choices of 20 are tried
    with pytest.raises(AllocationError, match="timed out trying to allocate devices"):
        allocated(*requests)


@pytest.mark.parametrize(
    ("requested", "policy", "consumed"),
    [
        (None, None, "100G"),
        ("5G", None, "5G"),
        (None, {"default": "2G"}, "2G"),
        ("1M", {"validRange": {"min": "10M"}}, "10M"),
        ("15M", {"validRange": {"min": "10M"}}, "15M"),
        ("11M", {"validRange": {"min": "10M", "step": "3M"}}, "13M"),
        ("60G", {"validRange": {"min": "0", "max": "50G"}}, None),
        ("3G", {"validValues": ["1G", "4G"]}, "4G"),
        ("5G", {"validValues": ["1G", "4G"]}, None),
        ("5G", {"default": "5G", "validValues": ["1G", "4G"]}, "5G"),
    ],
)
def test_capacity_is_consumed_by_its_policy(requested: str | None, policy: Json | None, consumed: str | None):
    capacity = {"bandwidth": {"value": "100G"} | ({"requestPolicy": policy} if policy else {})}
    found = consumed_capacity({"bandwidth": requested} if requested else {}, capacity)
    assert found == ({"bandwidth": consumed} if consumed else None)
