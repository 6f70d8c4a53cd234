"""Events on the Node object, as an API server has them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import yaml

from k8s_rdma.config.devices import DevicePluginConfig
from k8s_rdma.core.devices.rdma_devices import RdmaDevice
from k8s_rdma.deviceplugin.health_events import HealthChange, node_events
from k8s_rdma.deviceplugin.main import api_client
from k8s_rdma.errors import MalformedError
from k8s_rdma_demo.cluster.api import Access, ApiConfig, serving_api
from k8s_rdma_demo.cluster.command import write_kubeconfig
from k8s_rdma_demo.cluster.rbac import service_account

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from k8s_rdma.deviceplugin.health_events import OnHealthChanges


DEADLINE_S = 120
EVENTS = "/api/v1/namespaces/default/events"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
MANIFEST = Path(__file__).parents[2] / "deploy/rbac/device-plugin.yaml"


def ill(name: str, why: str = "port 1 is DOWN, not ACTIVE", **more: Any) -> HealthChange:
    device = RdmaDevice(name=name, pf="0000:3b:00.0", pf_name="eth0", vf=3, faults=(why,))
    return HealthChange(device=device, **more)


def well(name: str) -> HealthChange:
    change = ill(name)
    return replace(change, device=replace(change.device, faults=()))


@asynccontextmanager
async def cluster(tmp_path: Path) -> AsyncIterator[tuple[OnHealthChanges, httpx2.AsyncClient]]:
    """Yield both with the account of the manifests, which has only the rights that it needs."""
    access = Access()
    token = access.token_for(service_account("k8s-rdma", "k8s-rdma-device-plugin"))
    admin = {"Authorization": f"Bearer {access.token_for()}"}
    async with (
        asyncio.timeout(DEADLINE_S),
        serving_api(ApiConfig(access=access)) as api,
        httpx2.AsyncClient(base_url=api.url, headers=admin, trust_env=False) as http,
    ):
        await give_roles(http)
        kubeconfig = str(write_kubeconfig(tmp_path / "kubeconfig", api.url, token=token))
        config = DevicePluginConfig(node="w1", kubeconfig=kubeconfig)
        async with api_client(config) as client, node_events(config, client) as heard:
            yield heard, http


async def give_roles(http: httpx2.AsyncClient) -> None:
    for each in yaml.safe_load_all(MANIFEST.read_text()):
        if each["kind"] != "ServiceAccount":
            namespace = each["metadata"]["namespace"]
            plural = f"{each['kind'].lower()}s"
            made = await http.post(f"{RBAC}/namespaces/{namespace}/{plural}", json=each)
            assert made.status_code == 201, made.text


async def events(http: httpx2.AsyncClient, count: int, *, happened: int = 0) -> list[dict[str, Any]]:
    """Those that there are, once there are so many, and all of them happened so often."""
    while True:
        found = (await http.get(EVENTS)).json()["items"]
        if len(found) >= count and sum(each["count"] for each in found) >= happened:
            return found
        await asyncio.sleep(0.02)


def test_node_has_an_event_of_each_device_that_falls_ill_and_gets_well(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path) as (heard, http):
            heard([ill("mlx5_4")])
            [event] = await events(http, 1)
            assert event["involvedObject"] == {"kind": "Node", "name": "w1", "uid": "w1", "apiVersion": "v1"}
            assert (event["reason"], event["type"], event["count"]) == ("RdmaDeviceUnhealthy", "Warning", 1)
            assert event["message"] == (
                "RDMA device mlx5_4 (VF 3 of eth0) is unhealthy: port 1 is DOWN, not ACTIVE"
            )
            assert event["source"] == {"component": "k8s-rdma-device-plugin", "host": "w1"}
            heard([well("mlx5_4")])
            found = {event["reason"]: event for event in await events(http, 2)}
            assert found["RdmaDeviceHealthy"]["type"] == "Normal"
            heard([ill("mlx5_4", "no driver is bound to 0000:3b:00.4", changes=7)])
            found = {event["reason"]: event for event in await events(http, 2, happened=3)}
            assert found["RdmaDeviceUnhealthy"]["count"] == 2
            assert "it changed 7 times" in found["RdmaDeviceUnhealthy"]["message"]

    asyncio.run(scenario())


def test_many_devices_at_once_are_one_event(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path) as (heard, http):
            heard([ill(f"mlx5_{number}") for number in range(200)])
            heard([ill("rxe0", "it is gone")])
            found = await events(http, 2)
            messages = sorted(event["message"] for event in found)
            assert messages[0].startswith("200 RDMA devices are unhealthy: mlx5_0, mlx5_1, ")
            assert len(messages[0].encode()) <= 1024
            assert len(found) == 2

    asyncio.run(scenario())


def test_no_event_is_written_without_credentials_or_a_name() -> None:
    async def scenario() -> None:
        for config in (
            DevicePluginConfig(),
            DevicePluginConfig(node="w1"),
            DevicePluginConfig(in_cluster=True),
        ):
            async with api_client(config) as client, node_events(config, client) as heard:
                assert client is None
                heard([ill("mlx5_4")])

    asyncio.run(scenario())


def test_unusable_credentials_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = DevicePluginConfig(node="w1", kubeconfig=str(tmp_path / "none"))
        with pytest.raises(MalformedError):
            async with api_client(config):
                pass

    asyncio.run(scenario())
