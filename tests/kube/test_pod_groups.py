"""PodGroups by whichever version of their API an API server serves, also if it serves another one later."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from k8s_rdma.core.pod_group import PodGroup
from k8s_rdma.core.types import Gang, GangApi
from k8s_rdma.kube.errors import ApiRefusedError, PodGroupVersionError
from k8s_rdma.kube.pod_groups import PodGroups
from k8s_rdma_demo.cluster.api import ApiConfig, serving_api
from k8s_rdma_demo.cluster.objects import parse_resource_type

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from k8s_rdma_demo.cluster.objects import ResourceType

pytestmark = pytest.mark.anyio

GANG = Gang(api=GangApi.KUBERNETES, namespace="default", name="g")


def kind(version: str) -> ResourceType:
    return parse_resource_type(f"scheduling.k8s.io/{version}/podgroups/PodGroup/namespaced")


@asynccontextmanager
async def serving(*versions: str) -> AsyncIterator[httpx2.AsyncClient]:
    """An API server with PodGroups in these versions."""
    config = ApiConfig(custom_resources=tuple(map(kind, versions)))
    async with (
        serving_api(config) as server,
        httpx2.AsyncClient(base_url=server.url, trust_env=False) as http,
    ):
        yield http


async def create(http: httpx2.AsyncClient, version: str, **spec: Any) -> None:
    group = {"metadata": {"name": "g"}, "spec": spec}
    created = await http.post(kind(version).path(namespace="default"), json=group)
    assert created.status_code == 201, created.text


def min_count(number: int) -> dict[str, Any]:
    return {"schedulingPolicy": {"gang": {"minCount": number}}}


@pytest.mark.parametrize(
    ("served", "version"),
    [
        pytest.param(("v1alpha2",), "v1alpha2", id="1.36"),
        pytest.param(("v1alpha3", "v1beta1"), "v1beta1", id="1.37"),
        pytest.param(("v1alpha3",), "v1alpha3", id="1.37-with-the-alpha-alone"),
        pytest.param(("v1alpha2", "v1alpha4"), "v1alpha2", id="beside-one-that-is-not-known"),
    ],
)
async def test_group_is_read_by_the_best_version_that_is_served(served: tuple[str, ...], version: str):
    async with serving(*served) as http:
        await create(http, version, **min_count(3))
        assert await PodGroups(http).get(GANG) == PodGroup(min_count=3)


@pytest.mark.parametrize(
    ("served", "message"),
    [
        (
            ("v1", "v2"),
            "has PodGroups as scheduling.k8s.io/v2, v1 only; this k8s-rdma knows v1beta1, v1alpha3",
        ),
        ((), "has no PodGroups of scheduling.k8s.io; turn its feature gate GenericWorkload on"),
    ],
)
async def test_version_that_is_not_known_is_said(served: tuple[str, ...], message: str):
    async with serving(*served) as http:
        groups = PodGroups(http)
        for _ in range(2):
            with pytest.raises(PodGroupVersionError, match=message) as refused:
                await groups.get(GANG)
            assert sorted(refused.value.served) == sorted(served)


async def test_missing_group_is_not_taken_for_a_missing_version():
    async with serving("v1beta1") as http:
        with pytest.raises(ApiRefusedError, match=r"get podgroup default/g of .*: there is none") as refused:
            await PodGroups(http).get(GANG)
        assert not isinstance(refused.value, PodGroupVersionError)
        assert refused.value.status == 404


async def test_version_is_requested_once():
    async with serving("v1alpha2") as http:
        await create(http, "v1alpha2", **min_count(3))
        paths: list[str] = []

        async def note(request: httpx2.Request) -> None:
            paths.append(request.url.path)

        http.event_hooks["request"].append(note)
        groups = PodGroups(http)
        for _ in range(3):
            await groups.get(GANG)
        assert sum(path == "/apis/scheduling.k8s.io" for path in paths) == 1


@pytest.mark.parametrize(("before", "after"), [("v1alpha2", "v1beta1"), ("v1beta1", "v1alpha2")])
async def test_group_is_read_after_the_api_server_was_upgraded_or_taken_back(before: str, after: str):
    """An extender runs on while its API server is upgraded, and while that is undone."""
    async with serving(before) as old, serving(after) as new:
        await create(old, before, **min_count(3))
        await create(new, after, **min_count(4))
        seconds = [0.0]
        groups = PodGroups(old, clock=lambda: seconds[0])
        assert await groups.get(GANG) == PodGroup(min_count=3)
        old.base_url = new.base_url
        seconds[0] += 60.0
        assert await groups.get(GANG) == PodGroup(min_count=4)


async def test_label_of_coscheduling_makes_no_gang_without_its_group():
    async with serving("v1beta1") as http:
        gang = Gang(api=GangApi.COSCHEDULING, namespace="default", name="g")
        assert await PodGroups(http).get(gang) == PodGroup()
