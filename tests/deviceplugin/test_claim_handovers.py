"""Claims whose new pod comes before the end of the former one: the driver asks the agent without kubelet."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from deviceplugin.test_dra import ATTACHED, CLAIM, PREPARED, Agent, World, new_driver, prepared, serving
from fakes.slices import FakeSlices
from k8s_rdma.core.node_paths import CLAIMS_SOCKET
from k8s_rdma.wire.claims import NO_POD, ClaimAnswer, Offers, Prepare
from resource_claims import claim, interface, of_pod, pod

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def prepared_for_p(directory: Path, api: FakeSlices | None = None) -> AsyncIterator[World]:
    """A driver whose agent has prepared a claim for `p`; the API server reserves it for `q`, and has both."""
    api, agent = api or FakeSlices(), Agent(directory / CLAIMS_SOCKET, answer=ClaimAnswer())
    api.objects["claim", "default", "c"] = of_pod(claim(interface("a")), "q")
    for name in ("p", "q"):
        api.objects["pod", "default", name] = pod(name)
    agent.offers = Offers(node="w1", claims=(prepared(),))
    await agent.start()
    driver = new_driver(directory, api)
    async with serving(driver):
        yield World(directory, agent, api, driver)
    await agent.stop()


async def test_claim_is_handed_over_when_its_former_pod_is_gone(tmp_path: Path) -> None:
    async with prepared_for_p(tmp_path) as world:
        await world.until(lambda: world.api.reads > 3)
        assert not world.agent.questions
        del world.api.objects["pod", "default", "p"]
        await world.until(lambda: world.agent.questions)
        [question] = world.agent.questions
        assert question.abandoned_by == "uid-p"
        assert question.prepare is not None
        assert question.prepare.claim == CLAIM
        assert msgspec.json.decode(question.prepare.pod)["metadata"]["uid"] == "uid-q"
        reserved = msgspec.json.decode(question.prepare.resource)["status"]["reservedFor"]
        assert [consumer["uid"] for consumer in reserved] == ["uid-q"]


async def test_claim_is_handed_over_to_a_pod_of_the_same_name(tmp_path: Path) -> None:
    async with prepared_for_p(tmp_path) as world:
        anew = {"resource": "pods", "name": "p", "uid": "uid-anew"}
        world.api.objects["claim", "default", "c"]["status"]["reservedFor"] = [anew]
        world.api.objects["pod", "default", "p"] = pod("p", "uid-anew")
        await world.until(lambda: world.agent.questions)
        assert msgspec.json.decode(question_of(world).pod)["metadata"]["uid"] == "uid-anew"


def question_of(world: World) -> Prepare:
    [question] = world.agent.questions
    assert question.prepare is not None
    return question.prepare


@pytest.mark.parametrize(
    "change",
    [
        {"reservedFor": [{"resource": "pods", "name": name, "uid": f"uid-{name}"} for name in "pq"]},
        {"reservedFor": []},
        {"allocation": {"devices": {"results": [{"driver": "rdma.k8s-rdma.io", "pool": "w2"}]}}},
        {"allocation": None},
        {"reservedFor": "garbage"},
    ],
    ids=["both", "nobody", "another-node", "not-allocated", "garbage"],
)
async def test_claim_is_not_handed_over_to(tmp_path: Path, change: dict[str, Any]) -> None:
    async with prepared_for_p(tmp_path) as world:
        world.api.objects["claim", "default", "c"]["status"] |= change
        del world.api.objects["pod", "default", "p"]
        for _ in range(2):
            reads = world.api.reads
            world.driver._handovers.hurry(CLAIM)
            await world.until(lambda reads=reads: world.api.reads > reads)
        assert not world.agent.questions


async def test_error_of_the_api_server_is_not_a_pod_that_is_gone(tmp_path: Path) -> None:
    async with prepared_for_p(tmp_path) as world:
        world.api.forbidden = frozenset({"pod"})
        del world.api.objects["pod", "default", "p"]
        await world.until(lambda: world.api.reads > 3)
        assert not world.agent.questions
        world.api.forbidden = frozenset()
        await world.until(lambda: world.agent.questions)


async def test_claim_that_a_sandbox_has_is_left_alone_until_it_ends(tmp_path: Path) -> None:
    async with prepared_for_p(tmp_path) as world:
        del world.api.objects["pod", "default", "p"], world.api.objects["pod", "default", "q"]
        world.agent.publish(Offers(node="w1", claims=(prepared(**ATTACHED),)))
        await world.until(lambda: world.api.applied or world.api.reads)
        assert not world.agent.questions
        world.agent.answer = ClaimAnswer(error="pod default/p still has interfaces", reason="conflict")
        world.agent.publish(Offers(node="w1", claims=(prepared(),)))
        await world.until(lambda: world.agent.questions)
        assert bytes(question_of(world).pod) == bytes(NO_POD)
        world.agent.answer = PREPARED
        await world.until(lambda: len(world.agent.questions) == 2)


class ReadOnce(FakeSlices):
    """It reserves the claim for `q` as soon as somebody has read it. after: called then."""

    def __init__(self) -> None:
        super().__init__()
        self.after: list[Callable[[], None]] = []

    async def get_claim_document(self, namespace: str, name: str) -> bytes | None:
        found = await super().get_claim_document(namespace, name)
        self.objects["claim", namespace, name] = of_pod(claim(interface("a")), "q")
        while self.after:
            self.after.pop()()
        return found


async def test_check_requested_during_another_one_follows_it(tmp_path: Path) -> None:
    api = ReadOnce()
    async with prepared_for_p(tmp_path, api) as world:
        api.objects["claim", "default", "c"]["status"]["reservedFor"] = []
        del api.objects["pod", "default", "p"]
        api.after.append(lambda: world.driver._handovers.hurry(CLAIM))
        await world.until(lambda: world.agent.questions)


async def test_preparation_for_a_new_pod_has_the_former_one_checked_at_once(tmp_path: Path) -> None:
    """After kubelet has lost its checkpoint: it asks for the new pod, and the agent waits for the former."""
    async with prepared_for_p(tmp_path) as world:
        world.api.objects["claim", "default", "c"]["status"]["reservedFor"] = []
        del world.api.objects["pod", "default", "p"]
        await world.until(lambda: world.api.reads)
        world.api.objects["claim", "default", "c"] = of_pod(claim(interface("a")), "q")
        await world.prepare()
        await world.until(lambda: len(world.agent.questions) == 2)
        assert [question.abandoned_by for question in world.agent.questions] == [None, "uid-p"]
