"""Answers of a resource, whatever its mode, and reports of the process."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import httpx2
import pytest
from structlog.testing import capture_logs

from deviceplugin.inventories import seen
from deviceplugin.played_agent import PlayedAgent, report
from deviceplugin.plugin_process import MOUNT, SLOTS, World, follows
from http_server.certificates import Issuer
from k8s_rdma import __version__
from k8s_rdma.core.devices.pod_devices import AllocateResponse, Choice, OfferedDevice, slot_device
from k8s_rdma.core.devices.rdma_devices import DeviceInventory
from k8s_rdma.deviceplugin.resource import Followers, Resource, open_endpoint
from k8s_rdma.errors import K8sRdmaError, Reason
from k8s_rdma.kube.grpc_calls import AioRpcError, answers, call, connect
from k8s_rdma.wire.device_plugin import (
    ALLOCATE,
    GET_DEVICE_PLUGIN_OPTIONS,
    GET_PREFERRED_ALLOCATION,
    LIST_AND_WATCH,
    PRE_START_CONTAINER,
)
from k8s_rdma_demo.kubelet.pods import AdmissionError, DeviceContainer, DevicePod
from server.exposition_reader import read, value

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


pytestmark = pytest.mark.anyio

PREFIX = "k8s_rdma_device_plugin_"


@dataclass
class PlainMode:
    """Offers the devices that a test sets, and gives their names."""

    resource: str = "a.b/c"
    prefers: bool = True
    offered: tuple[OfferedDevice, ...] = (OfferedDevice(id="1"), OfferedDevice(id="2"))
    offers: int = 0
    inventory: DeviceInventory = field(default_factory=seen)

    def offer(self, _seen: DeviceInventory) -> tuple[OfferedDevice, ...]:
        self.offers += 1
        return self.offered

    def allocate(self, ids: Sequence[str], _seen: DeviceInventory) -> AllocateResponse:
        if "3" in ids:
            raise K8sRdmaError("there is no 3", reason=Reason.UNKNOWN_DEVICE)
        return AllocateResponse(envs={"IDS": ",".join(ids)})

    def prefer(self, choice: Choice, _seen: DeviceInventory) -> tuple[str, ...]:
        return (*choice.available[: choice.size], *(each.pcie_path[0] for each in choice.neighbours))


async def as_it_is(_resource: str, choice: Choice) -> Choice:
    return choice


async def test_calls_are_answered_by_the_mode_and_counted(tmp_path: Path) -> None:
    mode = PlainMode()
    resource = Resource(mode, mode, as_it_is)
    assert resource.update()
    followers = Followers(resource.message, lambda: None)
    endpoint = await open_endpoint(tmp_path / "s", resource.handlers(followers), followers)
    async with connect(endpoint.path) as channel:
        options = await call(channel, GET_DEVICE_PLUGIN_OPTIONS, None, timeout_s=5)
        assert (options.preferred_allocation, options.pre_start_required) == (True, False)
        assert await anext(answers(channel, LIST_AND_WATCH, None)) == mode.offered
        assert await call(channel, ALLOCATE, (("1",), ("2", "1")), timeout_s=5) == (
            AllocateResponse(envs={"IDS": "1"}),
            AllocateResponse(envs={"IDS": "2,1"}),
        )
        with pytest.raises(AioRpcError, match="there is no 3"):
            await call(channel, ALLOCATE, (("1",), ("3",)), timeout_s=5)
        asked = Choice(available=("1", "2"), must_include=(), size=1)
        assert await call(channel, GET_PREFERRED_ALLOCATION, (asked, asked), timeout_s=5) == (("1",), ("1",))
        await call(channel, PRE_START_CONTAINER, ("1",), timeout_s=5)
        assert await call(channel, ALLOCATE, (), timeout_s=5) == ()
    await endpoint.close()
    assert resource.counts.allocations == 2
    assert resource.counts.refusals == {Reason.UNKNOWN_DEVICE: 1}


def test_list_is_encoded_again_only_when_kubelet_would_see_another() -> None:
    mode = PlainMode()
    resource = Resource(mode, mode, as_it_is)
    assert resource.update()
    message = resource.message
    assert not resource.update()
    assert resource.message is message
    mode.offered = (OfferedDevice(id="1", unhealthy="a fault"), OfferedDevice(id="2"))
    assert resource.update()
    mode.offered = (OfferedDevice(id="1", unhealthy="another fault"), OfferedDevice(id="2"))
    assert not resource.update(), "of which kubelet is told nothing"
    assert resource.devices == mode.offered


@pytest.mark.parametrize(
    ("faults", "fault"),
    [
        ((), "it has no devices: none is selected, or its count is 0"),
        (("",), ""),
        (("x", ""), ""),
        (("x", "x"), "x"),
        (("x", "y"), "2 of 2 devices are unhealthy: 0: x; 1: y"),
    ],
)
def test_resource_without_a_usable_device_reports_why(faults: tuple[str, ...], fault: str) -> None:
    offered = tuple(OfferedDevice(id=str(number), unhealthy=each) for number, each in enumerate(faults))
    mode = PlainMode(offered=offered)
    resource = Resource(mode, mode, as_it_is)
    resource.update()
    assert resource.fault == fault


def test_unhealthy_devices_of_a_resource_are_reported_with_reasons_up_to_a_limit() -> None:
    faults = ("", "x", "y", "z", "z", "z", "")
    offered = tuple(OfferedDevice(id=str(number), unhealthy=each) for number, each in enumerate(faults))
    mode = PlainMode(offered=offered)
    resource = Resource(mode, mode, as_it_is)
    assert resource.unhealthy == ""
    resource.update()
    assert resource.unhealthy == "5 of 7 devices are unhealthy: 1: x; 2: y; 3: z; 4: z; and 1 more"


def test_fault_of_a_resource_and_its_end_are_logged_once() -> None:
    mode = PlainMode()
    resource = Resource(mode, mode, as_it_is)
    with capture_logs() as lines:
        for fault in ("", "x", "x", "y", "", ""):
            mode.offered = (OfferedDevice(id="1", unhealthy=fault),)
            resource.update()
            resource.log_fault()
    assert [(each["event"], each.get("why")) for each in lines] == [
        ("resource_unusable", "x"),
        ("resource_unusable", "y"),
        ("resource_usable", None),
    ]


async def test_slots_are_given_once_the_agent_has_reported_the_held_ones(world: World) -> None:
    pod = DevicePod(
        namespace="default", name="p", uid="u", containers=(DeviceContainer(name="c", limits={SLOTS: 1}),)
    )
    async with world.kubelet() as kubelet:
        plugin = world.plugin()
        await follows(kubelet, SLOTS, MOUNT)
        with pytest.raises(AdmissionError):
            await kubelet.admit(pod)
        unusable = await plugin.logged("resource_unusable")
        [why] = [each["why"] for each in unusable if each["resource"] == SLOTS]
        assert why == "the agent has not reported yet which slots pods hold"
        assert (
            f"{SLOTS}: kubelet follows it; no container can have it: {why}\n"
            in (await plugin.get("/readyz")).text
        )
        figures = read((await plugin.get("/metrics")).text)
        assert value(figures, f"{PREFIX}unusable_resource", resource=SLOTS, why=why) == 1
        agent = PlayedAgent(world.run_dir / "state.sock")
        agent.report = report("mlx5_1", slots=(slot_device(SLOTS, "slot-0"),))
        async with agent:
            await kubelet.wait_for(lambda: kubelet.capacity()[SLOTS].allocatable == 1000)
            await kubelet.admit(pod)
            given = await kubelet.prepare(pod, "c")
            assert given.cdi_devices == ("k8s-rdma.io/slot=k8s-rdma.io_slot.slot-1",)
            figures = read((await plugin.get("/metrics")).text)
            assert SLOTS in [each["resource"] for each in await plugin.logged("resource_usable")]
            assert value(figures, f"{PREFIX}kubelet_up") == 1
            assert value(figures, f"{PREFIX}followed", resource=SLOTS) == 1
            assert value(figures, f"{PREFIX}allocations_total", resource=SLOTS) == 1
            assert value(figures, f"{PREFIX}devices", resource=SLOTS, health="healthy") == 1000
            assert value(figures, f"{PREFIX}devices", resource=SLOTS, health="unhealthy") == 0
            assert value(figures, f"{PREFIX}registrations_total", resource=SLOTS, outcome="taken") == 1
            [allocated] = plugin.events("allocated")
            assert (allocated["resource"], allocated["devices"]) == (SLOTS, [["slot-1"]])


async def test_metrics_demand_a_token_and_tls_when_configured(world: World) -> None:
    issuer = Issuer(world.directory).make()
    certificate = issuer.issue("plugin")
    tokens = world.directory / "tokens"
    tokens.write_text("secret\n")
    plugin = world.plugin(
        resources=[{"mode": "mount"}],
        tls={"certFile": str(certificate.cert), "keyFile": str(certificate.key)},
        tokenFile=str(tokens),
        openPaths=["/"],
    )
    [listening] = await plugin.logged("listening")
    trusting = ssl.create_default_context(cafile=str(issuer.own.cert))
    url = f"https://127.0.0.1:{listening['port']}"
    async with httpx2.AsyncClient(base_url=url, verify=trusting, trust_env=False) as client:
        expected = {"/": 200, "/healthz": 200, "/metrics": 401, "/none": 401}
        assert {path: (await client.get(path)).status_code for path in expected} == expected
        figures = await client.get("/metrics", headers={"Authorization": "Bearer secret"})
        assert value(read(figures.text), f"{PREFIX}build_info", version=__version__) == 1


async def test_probes_and_metrics_tell_of_kubelet(world: World) -> None:
    plugin = world.plugin(resources=[{"mode": "mount"}])
    await plugin.logged("not_registered")
    ready = await plugin.get("/readyz")
    assert (ready.status_code, ready.text.splitlines()[0]) == (503, "not ready")
    assert f"{MOUNT}: cannot serve" in ready.text
    health = await plugin.get("/healthz")
    assert (health.status_code, health.text.splitlines()[0]) == (200, "ok")
    figures = read((await plugin.get("/metrics")).text)
    assert value(figures, f"{PREFIX}kubelet_up") == 0
    assert value(figures, f"{PREFIX}build_info", version=__version__) == 1
    async with world.kubelet() as kubelet:
        await follows(kubelet, MOUNT)
        await plugin.logged("registered")
        # Whether there is a /dev/infiniband is another matter.
        assert (await plugin.get("/readyz")).text.startswith(f"ok\n{MOUNT}: kubelet follows it")
        assert "GET /metrics" in (await plugin.get("/")).text
        assert (await plugin.get("/else")).status_code == 404


async def test_refused_allocation_is_counted_by_reason(world: World) -> None:
    world.sockets.mkdir()
    plugin = world.plugin(resources=[{"mode": "mount"}])
    [serving] = await plugin.logged("serving")
    async with connect(world.sockets / serving["socket"]) as channel:
        with pytest.raises(AioRpcError, match="slot-x"):
            await call(channel, ALLOCATE, (("slot-x",),), timeout_s=5)
    figures = read((await plugin.get("/metrics")).text)
    assert value(figures, f"{PREFIX}refusals_total", resource=MOUNT, reason="unknown_device") == 1
    [refused] = plugin.events("not_allocated")
    assert "slot-x" in refused["error"]
