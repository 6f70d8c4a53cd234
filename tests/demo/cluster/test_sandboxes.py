"""Sandboxes of pods, and their files."""

from __future__ import annotations

import pytest

from demo.cluster.annotated_pod import POD
from k8s_rdma.errors import MalformedError
from k8s_rdma_demo.cluster.sandboxes import SandboxDirectory

pytestmark = pytest.mark.anyio


async def test_sandboxes_are_found_again_in_their_directory(runtime, tmp_path):
    directory = SandboxDirectory(tmp_path / "sandboxes")
    assert directory.load() == []
    created = await runtime.create(POD)
    directory.save(created)
    assert directory.load() == [created]
    assert directory.of_pod("default", "p1") is None
    attached = await runtime.attach(created)
    directory.save(attached)
    assert directory.of_pod("default", "p1") == attached
    assert directory.of_pod("default", "p2") is None
    directory.remove(attached)
    assert directory.load() == []
    (tmp_path / "sandboxes" / "x.json").write_text("{}")
    with pytest.raises(MalformedError, match=r"x\.json"):
        directory.load()
