"""The whole exchange that was recorded from kubelet 1.36, with this device manager in its place."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import RequestReceived

from demo.kubelet.conftest import RESOURCE, container, init, pod
from k8s_rdma.core.devices.pod_devices import AllocateResponse, Choice, PluginOptions
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.kube.pod_resources import KubeletPodResources

pytestmark = pytest.mark.anyio

RECORDINGS = Path(__file__).parents[2] / "recordings/deviceplugin"
_PLUGINS_OWN = {"Register", "ListAndWatch", "ListAndWatch-end"}


def recorded() -> list[dict]:
    calls = [json.loads(path.read_bytes()) for path in sorted(RECORDINGS.glob("*.json"))]
    return [call for call in calls if call["method"] not in _PLUGINS_OWN]


def plain(value: object) -> object:
    """Kubelet's sets without an order."""
    match value:
        case Choice():
            return frozenset(value.available), frozenset(value.must_include), value.size
        case tuple() if all(isinstance(each, str) for each in value):
            return frozenset(value)
        case tuple():
            return tuple(map(plain, value))
    return value


def asked(call: dict) -> object:
    match call["method"]:
        case "GetPreferredAllocation":
            return tuple(
                (
                    frozenset(each["available_deviceIDs"]),
                    frozenset(each.get("must_include_deviceIDs", ())),
                    each["allocation_size"],
                )
                for each in call["request"]["container_requests"]
            )
        case "Allocate":
            return tuple(frozenset(each["devices_ids"]) for each in call["request"]["container_requests"])
        case "PreStartContainer":
            return frozenset(call["request"]["devices_ids"])
    return None


def preferred(choice: Choice) -> tuple[str, ...]:
    """As the plugin answered that was recorded."""
    for call in recorded():
        if call["method"] == "GetPreferredAllocation" and asked(call) == (plain(choice),):
            return tuple(call["reply"]["container_responses"][0]["deviceIDs"])
    raise AssertionError(choice)


async def test_plugin_is_called_as_in_the_recordings(node):
    options = PluginOptions(pre_start_required=True, preferred_allocation=True)
    plugin = node.plugin("vf0", "vf1", "vf2", "vf3", options=options, prefer=preferred)
    first, second = pod(init(), container("main", 2)), pod(container("main", 2), name="p2")

    async def healthy(manager, count):
        await manager.wait_for(
            lambda: RESOURCE in manager.capacity() and manager.capacity()[RESOURCE].allocatable == count
        )

    async with node.kubelet() as manager, plugin.registered():
        await healthy(manager, 4)
        await manager.admit(first)
        for each in ("init", "main"):
            await manager.prepare(first, each)
        await plugin.change(replace(plugin.devices[0], unhealthy="down"), *plugin.devices[1:])
        await healthy(manager, 3)
        await manager.release(first.uid)
    async with node.kubelet() as manager, plugin.registered():
        await healthy(manager, 3)
        await manager.admit(second)
        assert await manager.prepare(second, "main") == AllocateResponse()
        await manager.release(second.uid)
    async with node.kubelet() as manager, plugin.registered():
        await healthy(manager, 3)
        await plugin.change(*(replace(each, unhealthy="") for each in plugin.devices))
        await healthy(manager, 4)
    assert [(name, plain(value)) for name, value in plugin.calls] == [
        (call["method"], asked(call)) for call in recorded()
    ]


async def test_authority_of_calls_is_localhost(node):
    """As kubelet says of itself (`grpc.WithAuthority`), whose servers refuse the path of a socket there."""
    told: set[str] = set()
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        connection = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        connection.initiate_connection()
        writer.write(connection.data_to_send())
        while data := await reader.read(65536):
            for event in connection.receive_data(data):
                if isinstance(event, RequestReceived):
                    told.add(dict(event.headers)[":authority"])
                    connection.reset_stream(event.stream_id, ErrorCodes.INTERNAL_ERROR)
            writer.write(connection.data_to_send())
        writer.close()
        await writer.wait_closed()

    socket = node.config.pod_resources
    socket.parent.mkdir()
    client = KubeletPodResources(socket, timeout_s=30)
    async with await asyncio.start_unix_server(serve, socket):
        with pytest.raises(K8sRdmaError):
            await client.all()
        await client.close()
        await asyncio.gather(*serving)
    assert told == {"localhost"}
