"""Claims that the DRA driver cannot read, or finds gone."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from deviceplugin.test_dra import CLAIM, PREPARED, Agent, following_claims, new_driver, prepared
from fakes.slices import FakeSlices
from k8s_rdma.core.node_paths import CLAIMS_SOCKET
from k8s_rdma.errors import K8sRdmaError, MalformedError
from k8s_rdma.kube.errors import ApiRefusedError, ApiUncertainError
from resource_claims import claim, interface, pod

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


class Refusing(FakeSlices):
    """An API server that refuses to show claims. until: the number of the read that succeeds."""

    def __init__(self, failure: K8sRdmaError, until: int = 1000) -> None:
        super().__init__()
        self.failure, self.until = failure, until

    async def get_claim_document(self, namespace: str, name: str) -> bytes | None:
        if self.reads + 1 < self.until:
            self.reads += 1
            raise self.failure
        return await super().get_claim_document(namespace, name)


@pytest.mark.parametrize(
    ("failure", "reads"),
    [
        (ApiUncertainError("no answer"), 4),  # at 0, 0.2, 0.6 and 1.4 s
        (ApiRefusedError("too many", status=429), 4),
        (ApiRefusedError("too many", status=429, retry_after_s=1.2), 2),
        (ApiRefusedError("too many", status=429, retry_after_s=60), 1),
        (MalformedError("nested too deep"), 1),
        (ApiRefusedError("forbidden", status=403), 1),
    ],
)
async def test_claim_is_read_again_after_growing_delays_or_not_at_all(
    tmp_path: Path, failure: K8sRdmaError, reads: int
) -> None:
    api = Refusing(failure)
    answer = await new_driver(tmp_path, api)._prepare(CLAIM, time.monotonic() + 2.0)
    assert answer.error.startswith(f"claim default/c: {failure.message}")
    assert min(reads, 2) <= api.reads <= reads


async def test_claim_is_prepared_when_it_can_be_read_again(tmp_path: Path) -> None:
    api, agent = Refusing(ApiRefusedError("too many", status=429), until=3), Agent(tmp_path / CLAIMS_SOCKET)
    api.objects["claim", "default", "c"] = claim(interface("a"))
    api.objects["pod", "default", "p"] = pod()
    await agent.start()
    assert await new_driver(tmp_path, api)._prepare(CLAIM, time.monotonic() + 20) == PREPARED
    await agent.stop()


class Flickering(FakeSlices):
    """An API server that has its claims at every second read."""

    async def get_claim_document(self, namespace: str, name: str) -> bytes | None:
        document = await super().get_claim_document(namespace, name)
        return document if self.reads % 2 else None


async def test_prepared_claim_stays_unless_it_is_gone_in_two_checks_running(tmp_path: Path) -> None:
    async with following_claims(tmp_path, prepared(), api=Flickering()) as (made, _):
        await made.until(lambda: made.api.reads > 5)
        assert not made.agent.questions
        made.api.objects.clear()
        await made.until(lambda: made.agent.questions)
        assert made.agent.questions[0].abandoned_by == "uid-p"
