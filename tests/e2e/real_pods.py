"""Sandboxes of a real container runtime on a node: whether it makes any here, and their contents."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from e2e.cri import CriError
from e2e.processes import pod

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from e2e.container_runtime import ContainerRuntime
    from e2e.node import Node


@contextmanager
def beside_agent(node: Node, runtime: ContainerRuntime) -> Iterator[None]:
    """It runs, and has shown that pods without our plugin run here; the agent runs, too."""
    with runtime:
        runtime.use(without_us(node.runtime(chained=True).conflist))
        try:
            end(runtime, runtime.cri.run_sandbox(pod("probe")))
        except CriError as error:
            pytest.skip(f"needs a machine where {runtime.name} starts pods: {error}")
        runtime.use(node.runtime(chained=True).conflist)
        node.enter = runtime.entering
        node.start_agent()
        yield


def end(runtime: ContainerRuntime, sandbox: str) -> None:
    runtime.cri.stop_sandbox(sandbox)
    runtime.cri.remove_sandbox(sandbox)


def without_us(conflist: Path) -> Path:
    document = json.loads(conflist.read_text())
    document["plugins"] = document["plugins"][:1]
    path = conflist.with_name("without-us.conflist")
    path.write_text(json.dumps(document))
    return path


def interfaces(node: Node, runtime: ContainerRuntime, sandbox: str) -> dict[str, list[str]]:
    """Return the pod's interfaces, with their IPv4 addresses, as `ip` shows them."""
    return {
        link["ifname"]: [each["local"] for each in link["addr_info"] if each["family"] == "inet"]
        for link in node.ip("address", "show", netns=runtime.netns(sandbox))
        if link["ifname"] != "lo"
    }
