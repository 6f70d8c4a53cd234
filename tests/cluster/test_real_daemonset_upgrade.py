"""The DaemonSet from an older chart and image to those of now, and back, with pods that send all the time."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from cluster.test_real_daemonset import IMAGE, REPOSITORY, image
from cluster.test_real_daemonset_rollout import (
    build_dir,
    make_node,
    node,
    program,
    rollout,
)
from cluster.test_real_daemonset_rollout import pytestmark as marks
from e2e.facts import facts
from e2e.streams import Stream
from image.oci_image import revision
from older_programs import unpack

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.control_plane import Json
    from e2e.node import Node

__all__ = ["build_dir", "make_node", "node", "program"]

VARIABLE = "K8S_RDMA_OLDER_IMAGE"
TAG = "older"
pytestmark = [
    *marks,
    pytest.mark.skipif(VARIABLE not in os.environ, reason=f"needs an older image, which {VARIABLE} names"),
]


def image_ids(pod: Json) -> set[str]:
    return {each["imageID"] for each in pod["status"]["containerStatuses"]}


@pytest.mark.timeout(600)
async def test_pods_keep_their_interfaces_from_an_older_image_to_that_of_now_and_back(
    node: Node, tmp_path: Path
):
    archive = image(VARIABLE)
    older = {"chart": unpack(revision(archive), tmp_path, "deploy") / "deploy" / "chart", "tag": TAG}
    async with rollout(node, tmp_path, {f"{REPOSITORY}:{TAG}": archive, IMAGE: image()}) as it:
        await it.apply(**older)
        before = image_ids(await it.rolled())
        sender = await it.start_pod("sender", min_tx_rate=50, max_tx_rate=100)
        receiver = await it.start_pod("receiver")
        namespaces = {"sender": sender.netns, "receiver": receiver.netns}
        had = facts(node, namespaces)
        with Stream(sender, receiver) as stream:
            await it.apply()
            now = image_ids(await it.rolled())
            assert not now & before
            assert await it.holders() == set(namespaces)
            assert facts(node, namespaces) == had
            namespaces["by-now"] = (await it.start_pod("by-now", min_tx_rate=100)).netns
            had = facts(node, namespaces)

            await it.apply(**older)
            assert image_ids(await it.rolled()) == before
            assert await it.holders() == set(namespaces)
            assert facts(node, namespaces) == had
        assert stream.lost() == []
        assert stream.sent > 0
        await it.end_pods(*namespaces)
        assert node.kernel_state() == node.pristine
