"""Additions to kubelet's questions, and that no question waits for them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fakes.nodes import FakePodResources
from k8s_rdma.core.devices.pod_devices import Choice, Neighbour
from k8s_rdma.deviceplugin.topology import DEADLINE_S, Neighbours

RDMA = "tencent.com/rdma"
CHOICE = Choice(available=("mlx5_0", "mlx5_1"), must_include=(), size=1)
PLACE = Neighbour(pcie_path=("0000:15:01.0",), numa_node=0)


def places(devices):
    return (PLACE,) if ("nvidia.com/gpu", "g0") in set(devices) else ()


def neighbours(pods, found=places):
    return Neighbours(pods, found, resources=frozenset({RDMA}), ours=frozenset({RDMA, "k8s-rdma.io/slot"}))


@pytest.fixture
def pods():
    it = FakePodResources()
    it.allocate("default", "old", "nvidia.com/gpu", "g9")
    return it


async def asked(it, pods, resource=RDMA):
    """Return the completed question for a pod that was given a GPU after a look."""
    await it.complete(RDMA, CHOICE)
    pods.allocate("default", "new", "nvidia.com/gpu", "g0")
    return await it.complete(resource, CHOICE)


def test_question_is_completed_with_the_places_of_the_pods_gpus(pods):
    assert asyncio.run(asked(neighbours(pods), pods)).neighbours == (PLACE,)


def test_question_about_slots_is_left_unchanged_without_a_call_to_kubelet(pods):
    assert asyncio.run(asked(neighbours(pods), pods, "k8s-rdma.io/slot")) is CHOICE
    assert pods.questions == 1


def test_question_is_left_unchanged_while_kubelet_is_silent(pods):
    async def silenced():
        it = neighbours(pods)
        pods.silent = True
        return await asked(it, pods)

    assert asyncio.run(silenced()) is CHOICE


def test_question_does_not_wait_for_a_kubelet_that_does_not_answer(pods):
    class Slow(FakePodResources):
        async def all(self):
            await asyncio.Event().wait()

    async def timed():
        started = time.monotonic()
        choice = await neighbours(Slow()).complete(RDMA, CHOICE)
        return choice, time.monotonic() - started

    choice, took_s = asyncio.run(timed())
    assert choice is CHOICE
    assert took_s >= DEADLINE_S / 2  # it did wait, and ended: no event would wake it


def test_question_does_not_wait_for_a_machine_that_does_not_answer(pods):
    release = asyncio.Event()

    def stuck(_devices):
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result()
        return (PLACE,)

    async def answered():
        nonlocal loop
        loop = asyncio.get_running_loop()
        choice = await asked(neighbours(pods, stuck), pods)
        release.set()
        return choice

    loop = None
    assert asyncio.run(answered()) is CHOICE


def test_silent_machine_keeps_one_thread_however_often_it_is_queried(pods):
    release, begun = threading.Event(), []

    def stuck(devices):
        begun.append(devices)
        release.wait(60)
        return (PLACE,)

    async def often():
        it = neighbours(pods, stuck)
        await it.complete(RDMA, CHOICE)
        pods.allocate("default", "new", "nvidia.com/gpu", "g0")
        answers = await asyncio.gather(*(it.complete(RDMA, CHOICE) for _ in range(50)))
        release.set()
        await it.close()
        return answers

    assert asyncio.run(often()) == [CHOICE] * 50
    assert len(begun) == 1


_HANGING = """
import asyncio, threading
from deviceplugin.test_neighbours import CHOICE, asked, neighbours
from fakes.nodes import FakePodResources
async def main():
    pods = FakePodResources()
    pods.allocate("default", "old", "nvidia.com/gpu", "g9")
    it = neighbours(pods, lambda _: threading.Event().wait())
    assert await asked(it, pods) is CHOICE
    await it.close()
asyncio.run(main())
"""


def test_process_ends_though_a_gpus_driver_hangs():
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", _HANGING], env=environment, timeout=60, check=False)
    assert done.returncode == 0


def test_pods_are_looked_at_before_the_first_question():
    looked = asyncio.Event()

    class Noting(FakePodResources):
        async def all(self):
            looked.set()
            return await super().all()

    async def following():
        pods = Noting()
        pods.allocate("default", "old", "nvidia.com/gpu", "g9")
        it = neighbours(pods)
        task = asyncio.create_task(it.follow())
        await looked.wait()
        pods.allocate("default", "new", "nvidia.com/gpu", "g0")
        choice = await it.complete(RDMA, CHOICE)
        task.cancel()
        await asyncio.wait([task])
        return choice

    assert asyncio.run(following()).neighbours == (PLACE,)


def test_pods_are_not_followed_if_no_resource_requires_it(pods):
    it = Neighbours(pods, places, resources=frozenset(), ours=frozenset())
    asyncio.run(it.follow())
    assert pods.questions == 0
