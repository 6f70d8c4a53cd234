"""Device metadata in a container that runs: API server, agent, kernel and the container's mount are real."""

from __future__ import annotations

import asyncio
import json
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from e2e.test_claim_caps import annotate, claiming, create, decided
from e2e.test_claims import unprepared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from e2e.node import Node

WAITS = 'mount --bind "$1" "$2" && mount -o remount,ro,bind "$2" && echo ready && exec cat'


@contextmanager
def container(mount: dict[str, Any], directory: Path) -> Iterator[Path]:
    """A process with the mount of a CDI specification, as a runtime makes it; yields the file it sees."""
    target = directory / "mounted"
    target.touch()
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", WAITS, "sh"]
    with subprocess.Popen(
        [*command, mount["hostPath"], str(target)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield Path(f"/proc/{process.pid}/root{target}")
        finally:
            process.communicate(b"")


def newest(path: Path) -> dict[str, Any]:
    """The first object of a file."""
    found = json.loads(path.read_text().splitlines()[0])
    assert isinstance(found, dict)
    return found


async def of_generation(path: Path, generation: int) -> dict[str, Any]:
    """Wait for a generation of the file; its only device."""
    while (found := newest(path))["metadata"]["generation"] != generation:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    [device] = found["requests"][0]["devices"]
    assert isinstance(device, dict)
    return device


def test_container_reads_its_interface_and_every_change_of_its_cap(
    make_node: Callable[[int], Node], tmp_path: Path
) -> None:
    node = make_node(4)

    async def scenario() -> None:
        async with claiming(node) as c:
            pod = await create(c, "train")
            specification = node.directory / "cdi" / "k8s-rdma.io-claim_claim-train.json"
            [device] = json.loads(specification.read_bytes())["devices"]
            [mount] = device["containerEdits"]["mounts"]
            assert mount["containerPath"].endswith("/resourceclaims/train/a/rdma.k8s-rdma.io-metadata.json")
            runtime = node.runtime(chained=True)
            sandbox = await runtime.add(pod)
            with container(mount, tmp_path) as path:
                begun = newest(path)["requests"][0]["devices"][0]
                [link] = [
                    link for link in node.ip("link", "show", netns=sandbox.netns) if link["ifname"] == "rdma0"
                ]
                assert begun["networkData"]["interfaceName"] == "rdma0"
                assert begun["networkData"]["hardwareAddress"] == link["address"]
                assert begun["attributes"]["rdma.k8s-rdma.io/maxRate"] == {"int": 600}
                with pytest.raises(OSError, match="Read-only file system"):
                    path.write_text("")
                generation = newest(path)["metadata"]["generation"]
                await annotate(c, pod, '{"rdma0": 800}')
                await decided(c, pod, "programmed")
                changed = await of_generation(path, generation + 1)
                assert changed["attributes"]["rdma.k8s-rdma.io/maxRate"] == {"int": 800}
                node.kill_agent()
                await asyncio.to_thread(node.start_agent)
                assert newest(path)["metadata"]["generation"] == generation + 1
                await runtime.delete(sandbox)
                ended = await of_generation(path, generation + 2)
                assert "networkData" not in ended
            assert unprepared(node, "train").error == ""
            assert not list((node.run_dir / "claim-metadata").iterdir())

    asyncio.run(scenario())
