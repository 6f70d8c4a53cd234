"""The DRA driver between kubelet, which is a gRPC client, a scripted agent, and an API server in memory."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import pytest

from deviceplugin.offered_pf import offer
from fakes.slices import FakeSlices
from k8s_rdma.agent.unix_sockets import listen_unix
from k8s_rdma.config.devices import ClaimsConfig, DevicePluginConfig
from k8s_rdma.core.node_paths import CLAIMS_SOCKET
from k8s_rdma.deviceplugin.dra import ClaimsAgent, DraDriver
from k8s_rdma.deviceplugin.prepared_claims import AbandonmentTimes
from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.grpc_calls import answers, call, connect
from k8s_rdma.wire.claims import (
    MAX_LINE_BYTES,
    NO_POD,
    ClaimAnswer,
    ClaimName,
    ClaimQuestion,
    Offers,
    PreparedClaim,
    PreparedClaimInterface,
    PreparedDevice,
    decode_question,
    encode_line,
)
from k8s_rdma.wire.dra import GET_INFO, NOTIFY, PREPARE, UNPREPARE, VERSIONS, WATCH_HEALTH, RegistrationStatus
from k8s_rdma_demo.cluster.resource_slices import CONSUMABLE_CAPACITY
from resource_claims import claim, interface, pod

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

pytestmark = pytest.mark.anyio

CLAIM = ClaimName(namespace="default", name="c", uid="claim-1")
DEVICE = PreparedDevice(request="a", pool="w1", device="f0", share_id="s", cdi=("k8s-rdma.io/claim=x.a",))
PREPARED = ClaimAnswer(devices=(DEVICE,))
SLICE = "w1-rdma.k8s-rdma.io-0"

SERVED = "[!.]*.sock"
"""Sockets as kubelet finds them: hidden ones are not served yet, and are renamed once they are."""


def prepared(**changes: object) -> PreparedClaim:
    """The claim whose interface is `interface("a")`."""
    made = PreparedClaimInterface(
        device="f0", share_id="share-0", pci="0000:03:00.2", rdma_device="mlx5_2", min_tx_rate=400
    )
    interfaces = (msgspec.structs.replace(made, **changes),)
    return PreparedClaim(claim=CLAIM, pod="p", pod_uid="uid-p", interfaces=interfaces)


ATTACHED = {"ifname": "rdma0", "mac": "02:00:00:00:00:01", "min_enforced": "hardware"}


@dataclass
class Agent:
    """Records questions and answers them. offers: those that followers get first."""

    path: Path
    answer: ClaimAnswer | bytes = PREPARED
    offers: Offers = field(default_factory=lambda: Offers(node="w1", pfs=(offer(),)))
    questions: list[ClaimQuestion] = field(default_factory=list)
    _followers: list[asyncio.StreamWriter] = field(default_factory=list)
    _server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._talk, sock=listen_unix(self.path, 0o600))

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._followers:
            writer.close()
            await writer.wait_closed()
        self._followers.clear()
        await self._server.wait_closed()
        self.path.unlink(missing_ok=True)  # asyncio removes it itself from Python 3.13 on

    def publish(self, offers: Offers) -> None:
        self.offers = offers
        for writer in self._followers:
            writer.write(encode_line(offers))

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        question = decode_question(await reader.readline())
        if question.follow:
            self._followers.append(writer)
            writer.write(encode_line(self.offers))
            return
        self.questions.append(question)
        writer.write(self.answer if isinstance(self.answer, bytes) else encode_line(self.answer))
        await writer.drain()
        writer.close()
        await writer.wait_closed()


@dataclass
class World:
    """A driver that serves, and its surroundings."""

    directory: Path
    agent: Agent
    api: FakeSlices
    driver: DraDriver

    @property
    def socket(self) -> Path:
        [found] = (self.directory / "plugins" / "rdma.k8s-rdma.io").glob("dra-uid-1.sock")
        return found

    async def register(self) -> None:
        [registration] = (self.directory / "registry").glob("[!.]*-uid-1-reg.sock")
        async with connect(registration) as channel:
            info = await call(channel, GET_INFO, None, timeout_s=5)
            assert (info.kind, info.name, info.versions) == ("DRAPlugin", "rdma.k8s-rdma.io", VERSIONS)
            assert info.endpoint == str(self.socket)
            await call(channel, NOTIFY, RegistrationStatus(registered=True), timeout_s=5)

    async def prepare(self, *claims: ClaimName) -> dict[str, ClaimAnswer]:
        async with connect(self.socket) as channel:
            return dict(await call(channel, PREPARE, claims or (CLAIM,), timeout_s=50))

    async def unprepare(self) -> dict[str, ClaimAnswer]:
        async with connect(self.socket) as channel:
            return dict(await call(channel, UNPREPARE, (CLAIM,), timeout_s=50))

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(120):
            while not holds():  # noqa: ASYNC110 - files, too
                await asyncio.sleep(0.01)

    async def until_published(self) -> None:
        await self.until(lambda: not self.driver.slices.problem and self.api.slices)


def new_driver(directory: Path, api: FakeSlices, uid: str = "uid-1", **times: Any) -> DraDriver:
    claims = ClaimsConfig(
        plugins_dir=str(directory / "plugins"), registry_dir=str(directory / "registry"), uid=uid
    )
    config = DevicePluginConfig(
        node="w1", run_dir=str(directory), claims=claims, kubeconfig="/none", resources=()
    )
    return DraDriver(config, claims, api, **times)


@asynccontextmanager
async def serving(driver: DraDriver) -> AsyncIterator[asyncio.Task[NoReturn]]:
    running = asyncio.create_task(driver.run())
    try:
        yield running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    api, agent = FakeSlices(), Agent(tmp_path / CLAIMS_SOCKET)
    api.objects["claim", "default", "c"] = claim(interface("a"))
    api.objects["pod", "default", "p"] = pod()
    await agent.start()
    driver = new_driver(tmp_path, api)
    async with serving(driver):
        made = World(tmp_path, agent, api, driver)
        await made.until(lambda: list((tmp_path / "registry").glob(SERVED)))
        yield made
    await agent.stop()


async def test_registered_driver_prepares_and_unprepares_by_the_agents_word(world: World) -> None:
    await world.register()
    await world.until_published()
    assert world.driver.problem == ""
    assert await world.prepare() == {"claim-1": ClaimAnswer(devices=(DEVICE,))}
    [question] = world.agent.questions
    assert question.prepare is not None
    assert msgspec.json.decode(question.prepare.resource)["metadata"]["uid"] == "claim-1"
    assert msgspec.json.decode(question.prepare.pod)["metadata"]["uid"] == "uid-p"
    assert 38 < question.prepare.wait_s <= 40
    world.agent.answer = ClaimAnswer()
    assert await world.unprepare() == {"claim-1": ClaimAnswer()}
    assert world.agent.questions[-1].unprepare == CLAIM


async def test_refusal_of_one_claim_is_its_own(world: World) -> None:
    world.agent.answer = ClaimAnswer(error="PF f0: the claim needs 2 Mb/s", reason="insufficient")
    gone = ClaimName(namespace="default", name="gone", uid="claim-2")
    found = await world.prepare(CLAIM, gone)
    assert found["claim-1"].error == "PF f0: the claim needs 2 Mb/s"
    assert found["claim-2"].error == "claim default/gone does not exist"


async def test_claim_of_a_pod_that_is_gone_is_left_to_the_agent(world: World) -> None:
    del world.api.objects["pod", "default", "p"]
    await world.prepare()
    [question] = world.agent.questions
    assert question.prepare is not None
    assert bytes(question.prepare.pod) == bytes(NO_POD)


async def test_prepare_waits_for_an_agent_that_restarts(world: World) -> None:
    await world.agent.stop()
    waiting = asyncio.create_task(world.prepare())
    done, _ = await asyncio.wait([waiting], timeout=0.5)
    assert not done
    await world.agent.start()
    assert (await waiting)["claim-1"].devices == (DEVICE,)


async def test_prepare_waits_for_the_api_server(world: World) -> None:
    world.api.served = False
    waiting = asyncio.create_task(world.prepare())
    done, _ = await asyncio.wait([waiting], timeout=0.5)
    assert not done
    world.api.served = True
    assert (await waiting)["claim-1"].devices == (DEVICE,)


async def test_claim_of_a_template_is_prepared_for_the_pod_that_owns_it(world: World) -> None:
    document = claim(interface("a"))
    document["metadata"]["ownerReferences"] = [{"kind": "Pod", "name": "p", "uid": "uid-p"}]
    document["status"]["reservedFor"].insert(0, {"resource": "pods", "name": "q", "uid": "uid-q"})
    world.api.objects["claim", "default", "c"] = document
    await world.prepare()
    [question] = world.agent.questions
    assert question.prepare is not None
    assert msgspec.json.decode(question.prepare.pod)["metadata"]["uid"] == "uid-p"


@pytest.mark.parametrize("kind", ["claim", "pod"])
async def test_missing_right_is_named_at_once(world: World, kind: str) -> None:
    world.api.forbidden = frozenset({kind})
    async with asyncio.timeout(5):
        error = (await world.prepare())["claim-1"].error
    assert f'cannot get resource "{kind}"' in error
    assert "grant the driver the ClusterRole k8s-rdma-claims (deploy/rbac/claims.yaml)" in error


@pytest.mark.parametrize(
    "garbage",
    [b"no JSON\n", b"\n", b"\xff\n", b'{"devices":1}\n', b"[" * 100_000 + b"\n", b"x" * (MAX_LINE_BYTES + 1)],
    ids=["text", "nothing", "no-unicode", "type", "depth", "length"],
)
async def test_garbage_from_the_agent_is_requested_again(world: World, garbage: bytes) -> None:
    world.agent.answer = garbage
    waiting = asyncio.create_task(world.prepare())
    await world.until(lambda: len(world.agent.questions) > 1)
    world.agent.answer = ClaimAnswer(devices=(DEVICE,))
    assert (await waiting)["claim-1"].devices == (DEVICE,)


async def test_no_slice_is_published_before_kubelet_knows_the_driver(world: World) -> None:
    await world.until(lambda: world.driver.agent_up)
    assert not world.api.slices
    assert "kubelet has not registered the driver yet" in world.driver.problem
    await world.register()
    await world.until_published()


async def test_slice_has_the_attributes_of_the_pf(world: World) -> None:
    await world.register()
    await world.until_published()
    assert world.api.specs()[SLICE] == {
        "driver": "rdma.k8s-rdma.io",
        "nodeName": "w1",
        "pool": {"name": "w1", "generation": 1, "resourceSliceCount": 1},
        "devices": [
            {
                "name": "f0",
                "allowMultipleAllocations": True,
                "attributes": {
                    "pf": {"string": "f0"},
                    "driver": {"string": "mlx5_core"},
                    "vendor": {"string": "15b3:1017"},
                    "linkType": {"string": "ethernet"},
                    "minRate": {"string": "hardware"},
                    "maxRate": {"string": "hardware"},
                    "resource.kubernetes.io/pciBusID": {"string": "0000:03:00.0"},
                    "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
                    "mtu": {"int": 1500},
                    "numaNode": {"int": 1},
                    "resource.kubernetes.io/numaNode": {"int": 1},
                    "rdma": {"bool": True},
                },
                "capacity": {
                    "bandwidth": {
                        "value": "95G",
                        "requestPolicy": {"default": "0", "validRange": {"min": "0", "step": "1M"}},
                    },
                    "vfs": {"value": "8", "requestPolicy": {"default": "1", "validValues": ["1"]}},
                },
            }
        ],
    }


async def test_slice_follows_the_offers_and_comes_back_when_kubelet_deletes_it(world: World) -> None:
    await world.register()
    await world.until_published()
    down = offer(link_up=False, problems=("f0: its link is down",))
    world.agent.publish(Offers(node="w1", pfs=(down,)))
    await world.until(lambda: world.api.specs()[SLICE]["pool"]["generation"] == 2)
    [device] = world.api.specs()[SLICE]["devices"]
    [taint] = device["taints"]
    assert (taint["key"], taint["effect"]) == ("k8s-rdma.io/link-down", "NoSchedule")
    await world.api.delete_slice(SLICE)
    await world.until(lambda: SLICE in world.api.slices)
    world.agent.publish(Offers(node="w1"))
    await world.until(lambda: not world.api.slices)
    assert world.driver.slices.writes == 3


async def test_api_server_without_the_gate_is_named_and_gets_no_slice(world: World) -> None:
    world.api.gates_off = frozenset({CONSUMABLE_CAPACITY})
    await world.register()
    await world.until(lambda: "DRAConsumableCapacity" in world.driver.problem)
    world.agent.publish(Offers(node="w1", pfs=(offer(mtu=9000),)))
    await world.until(lambda: world.driver.agent_up)
    assert world.driver.slices.writes == 0


async def test_health_is_reported_at_once_and_after_each_change(world: World) -> None:
    await world.register()
    await world.until_published()
    async with connect(world.socket) as channel:
        stream = answers(channel, WATCH_HEALTH, None)
        [first] = await anext(stream)
        assert (first.pool, first.device, first.healthy, first.message) == ("w1", "f0", True, "")
        world.agent.publish(Offers(node="w1", pfs=(offer(link_up=False),)))
        [second] = await anext(stream)
        assert (second.healthy, second.message) == (False, "its link is down")
        world.agent.publish(Offers(node="w1", pfs=(offer(problems=("PF f0: for its operator",)),)))
        [third] = await anext(stream)
        assert (third.healthy, third.message) == (True, "")
        await stream.aclose()


async def test_device_is_of_the_request_whatever_its_alternative(world: World) -> None:
    named = msgspec.structs.replace(DEVICE, request="nic/fast")
    world.agent.answer = ClaimAnswer(devices=(named,))
    assert (await world.prepare())["claim-1"].devices[0].request == "nic"


async def test_two_instances_serve_beside_each_other(world: World) -> None:
    other = new_driver(world.directory, world.api, "uid-2")
    registry = world.directory / "registry"
    async with serving(other):
        await world.until(lambda: len(list(registry.glob(SERVED))) == 2)
        assert (await world.prepare())["claim-1"].devices == (DEVICE,)
    assert [path.name for path in registry.glob(SERVED)] == ["rdma.k8s-rdma.io-uid-1-reg.sock"]


async def test_sockets_of_a_killed_instance_are_removed_and_lost_ones_made_again(world: World) -> None:
    registry, plugins = world.directory / "registry", world.socket.parent
    for stale in (registry / "rdma.k8s-rdma.io-old-reg.sock", plugins / "dra-old.sock"):
        listen_unix(stale, 0o600).close()
    for socket in (*registry.glob("*uid-1*"), *plugins.glob("*uid-1*")):
        socket.unlink()
    found = {"rdma.k8s-rdma.io-uid-1-reg.sock", "dra-uid-1.sock"}
    await world.until(
        lambda: {path.name for place in (registry, plugins) for path in place.iterdir()} == found
    )
    await world.register()


async def test_refused_registration_is_a_problem(world: World) -> None:
    [registration] = (world.directory / "registry").glob(SERVED)
    async with connect(registration) as channel:
        status = RegistrationStatus(registered=False, error="no such version")
        await call(channel, NOTIFY, status, timeout_s=5)
    assert "kubelet refuses the driver: no such version" in world.driver.problem


async def test_scheduler_is_woken_once_for_claims_that_begin_and_end_together(world: World) -> None:
    await world.register()
    await world.until_published()
    for _ in range(3):
        await world.prepare()
    await world.until(lambda: world.api.annotated)
    assert world.api.annotated == {SLICE: 1}


async def test_call_under_way_is_answered_before_the_driver_ends(tmp_path: Path) -> None:
    api, agent = FakeSlices(), Agent(tmp_path / CLAIMS_SOCKET, answer=b"")  # hangs up
    api.objects["claim", "default", "c"] = claim(interface("a"))
    await agent.start()
    made = World(tmp_path, agent, api, new_driver(tmp_path, api))
    async with serving(made.driver) as running:
        await made.until(lambda: list((tmp_path / "registry").glob(SERVED)))
        waiting = asyncio.create_task(made.prepare())
        await made.until(lambda: agent.questions)
        running.cancel()
        await made.until(lambda: len(agent.questions) > 1)
        assert list((tmp_path / "registry").glob(SERVED))
        agent.answer = PREPARED
        assert (await waiting)["claim-1"].devices == (DEVICE,)
    assert not list((tmp_path / "registry").glob(SERVED))
    await agent.stop()


async def test_fault_with_one_claim_is_its_own(world: World) -> None:
    fault = ClaimName(namespace="default", name="c2", uid="claim-2")
    world.api.objects["claim", "default", "c2"] = {"fails": object()}  # no JSON can be made of it
    found = await world.prepare(CLAIM, fault)
    assert found["claim-1"].devices == (DEVICE,)
    assert found["claim-2"].error == "a fault of the device plugin, see its log"


async def test_no_new_pods_come_while_the_agent_is_away(tmp_path: Path) -> None:
    api, agent = FakeSlices(), Agent(tmp_path / CLAIMS_SOCKET)
    made = World(tmp_path, agent, api, new_driver(tmp_path, api, agent_away_s=0.2))

    def taints() -> list[str]:
        return [
            taint["key"]
            for spec in api.specs().values()
            for device in spec["devices"]
            for taint in device.get("taints", ())
        ]

    async with serving(made.driver):
        await agent.start()
        await made.until(lambda: list((tmp_path / "registry").glob(SERVED)))
        await made.register()
        await made.until_published()
        await agent.stop()
        await made.until(lambda: taints() == ["k8s-rdma.io/agent-away"])
        assert "the agent cannot be reached" in made.driver.problem
        await agent.start()
        await made.until(lambda: api.slices and not taints())
        await agent.stop()
    async with serving(new_driver(tmp_path, api, "uid-2", agent_away_s=0.2)):
        registration = await _there(made, "uid-2")
        async with connect(registration) as channel:
            await call(channel, NOTIFY, RegistrationStatus(registered=True), timeout_s=5)
        await made.until(lambda: not api.slices)


async def _there(world: World, uid: str) -> Path:
    registration = world.directory / "registry" / f"rdma.k8s-rdma.io-{uid}-reg.sock"
    await world.until(registration.exists)
    return registration


def test_directories_too_long_for_sockets_are_refused_by_their_keys(tmp_path: Path) -> None:
    for key in ("plugins_dir", "registry_dir"):
        claims = ClaimsConfig(**{"plugins_dir": "/p", "registry_dir": "/r", key: f"/{'x' * 80}"})
        config = DevicePluginConfig(node="w1", claims=claims, kubeconfig="/none", resources=())
        camel = {"plugins_dir": "pluginsDir", "registry_dir": "registryDir"}[key]
        with pytest.raises(MalformedError, match=f"claims.{camel}: the socket /xxx"):
            DraDriver(config, claims, FakeSlices())


async def test_status_of_a_claim_has_the_interfaces_of_its_pod(world: World) -> None:
    attached = prepared(**ATTACHED, ips=("192.0.2.5/24", "2001:DB8::1/64"))
    world.agent.publish(Offers(node="w1", claims=(attached,)))
    await world.until(lambda: world.api.applied)
    [device] = world.api.applied[0]["devices"]
    [condition] = device.pop("conditions")
    assert device == {
        "driver": "rdma.k8s-rdma.io",
        "pool": "w1",
        "device": "f0",
        "shareID": "share-0",
        "data": {
            "pci": "0000:03:00.2",
            "rdmaDevice": "mlx5_2",
            "minTxRate": 400,
            "maxTxRate": 0,
            "enforced": {"min": "hardware"},
        },
        "networkData": {
            "interfaceName": "rdma0",
            "hardwareAddress": "02:00:00:00:00:01",
            "ips": ["192.0.2.5/24", "2001:db8::1/64"],
        },
    }
    assert condition.pop("lastTransitionTime")
    message = "pod p has it as rdma0"
    assert condition == {"type": "Ready", "status": "True", "reason": "Attached", "message": message}
    [stored] = world.api.objects["claim", "default", "c"]["status"]["devices"]
    stored["conditions"][0]["lastTransitionTime"] = since = "2020-01-01T00:00:00Z"
    # An agent that has started since no longer has the addresses.
    renamed = prepared(**ATTACHED | {"ifname": "rdma1"}, ips=None)
    world.agent.publish(Offers(node="w1", claims=(renamed,)))
    await world.until(lambda: len(world.api.applied) == 2)
    [device] = world.api.applied[1]["devices"]
    assert device["networkData"]["ips"] == ["192.0.2.5/24", "2001:db8::1/64"]
    assert device["conditions"][0]["lastTransitionTime"] == since
    world.agent.publish(Offers(node="w1", claims=(prepared(),)))
    await world.until(lambda: len(world.api.applied) == 3)
    [device] = world.api.applied[2]["devices"]
    assert (device["conditions"][0]["status"], "networkData" in device) == ("False", False)


async def test_status_is_written_once_whatever_restarts(tmp_path: Path) -> None:
    api, agent = FakeSlices(), Agent(tmp_path / CLAIMS_SOCKET)
    api.objects["claim", "default", "c"] = claim(interface("a"))
    agent.offers = Offers(node="w1", claims=(prepared(**ATTACHED),))
    await agent.start()
    made = World(tmp_path, agent, api, new_driver(tmp_path, api))
    async with serving(made.driver):
        await made.until(lambda: api.applied)
    await agent.stop()
    await agent.start()
    before = api.reads
    async with serving(new_driver(tmp_path, api)):
        await made.until(lambda: api.reads > before)
        agent.publish(Offers(node="w1", claims=(prepared(**ATTACHED, ips=("192.0.2.5/24",)),)))
        await made.until(lambda: len(api.applied) > 1)
    assert api.applied[1]["devices"][0]["networkData"]["ips"] == ["192.0.2.5/24"]
    await agent.stop()


async def test_refused_status_is_tried_again_and_another_claim_left_alone(world: World) -> None:
    world.api.refused_status = "no such device"
    world.agent.publish(Offers(node="w1", claims=(prepared(**ATTACHED),)))
    await world.until(lambda: world.api.reads)
    world.api.refused_status = ""
    await world.until(lambda: world.api.applied)
    assert (world.driver.statuses.writes, world.driver.statuses.failures) == (1, {"422": 1})
    world.api.objects["claim", "default", "c"]["metadata"]["uid"] = "claim-2"
    reads = world.api.reads
    world.agent.publish(Offers(node="w1", claims=(prepared(**ATTACHED, ips=("192.0.2.5/24",)),)))
    await world.until(lambda: world.api.reads > reads)
    assert len(world.api.applied) == 1


async def test_status_says_why_a_claim_is_not_prepared(world: World) -> None:
    world.agent.answer = ClaimAnswer(error="PF f0: the claim needs 2 Mb/s", reason="insufficient")
    await world.prepare()
    await world.until(lambda: world.api.applied)
    [device] = world.api.applied[0]["devices"]
    [condition] = device["conditions"]
    assert (condition["status"], condition["reason"]) == ("False", "PreparationRefused")
    assert condition["message"] == "PF f0: the claim needs 2 Mb/s"


def not_of_its_pod(document: dict[str, Any]) -> None:
    document["status"]["reservedFor"] = []


def made_anew(document: dict[str, Any]) -> None:
    document["metadata"]["uid"] = "claim-2"


@pytest.mark.parametrize("change", [dict.clear, not_of_its_pod, made_anew])
async def test_prepared_claim_that_is_no_longer_its_pods_is_ended(
    tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    async with following_claims(tmp_path, prepared()) as (made, document):
        change(document)
        if not document:
            made.api.objects.clear()
        await made.until(lambda: made.agent.questions)
        assert made.agent.questions[0] == ClaimQuestion(unprepare=CLAIM, abandoned_by="uid-p")


async def test_prepared_claim_stays_while_it_is_its_pods_or_a_sandbox_has_it(tmp_path: Path) -> None:
    attached = msgspec.structs.replace(
        prepared(**ATTACHED), claim=ClaimName(namespace="default", name="gone", uid="claim-2")
    )
    abandoned = msgspec.structs.replace(attached, interfaces=prepared().interfaces, pod_uid="uid-q")
    async with following_claims(tmp_path, prepared(), attached, abandoned) as (made, _):
        await made.until(lambda: len(made.agent.questions) > 2)
        assert {question.abandoned_by for question in made.agent.questions} == {"uid-q"}


async def test_prepared_claim_stays_while_the_api_server_is_away(tmp_path: Path) -> None:
    async with following_claims(tmp_path, prepared()) as (made, document):
        made.api.served = False
        document["status"]["reservedFor"] = []
        reads = made.api.reads
        await made.until(lambda: made.api.reads > reads + 2)
        assert not made.agent.questions


@asynccontextmanager
async def following_claims(
    directory: Path, *claims: PreparedClaim, api: FakeSlices | None = None
) -> AsyncIterator[tuple[World, dict[str, Any]]]:
    """A driver whose agent has prepared these; the first one's claim."""
    api, agent = api or FakeSlices(), Agent(directory / CLAIMS_SOCKET, answer=ClaimAnswer())
    document = api.objects["claim", "default", "c"] = claim(interface("a"))
    agent.offers = Offers(node="w1", claims=claims)
    await agent.start()
    driver = new_driver(directory, api, abandonment_times=AbandonmentTimes(youngest_s=0.3, every_s=0.1))
    async with serving(driver):
        yield World(directory, agent, api, driver), document
    await agent.stop()


async def test_agent_that_is_silent_is_away(tmp_path: Path) -> None:
    agent = Agent(tmp_path / CLAIMS_SOCKET)
    await agent.start()
    client = ClaimsAgent(tmp_path / CLAIMS_SOCKET, silence_s=0.5)
    following = asyncio.create_task(client.follow())
    async with asyncio.timeout(120):
        await client.offers.wait_for_change(None)
        assert client.away_since_s.value is None
        await client.away_since_s.wait_for_change(None)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await agent.stop()
