"""A node, its agent, and the compiled executable that a runtime runs there."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from cni.conftest import build_dir, program
from e2e.node import Node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cni.call import Program

__all__ = ["build_dir", "program"]

PLUGINS = os.environ.get("CNI_PATH") or "/opt/cni/bin:/usr/lib/cni"


def require_plugins() -> None:
    """Skip if a node cannot be made."""
    if os.geteuid() != 0:
        pytest.skip("needs root, or a user namespace that makes one (`make test`)")
    for plugin in ("bridge", "host-local"):
        if shutil.which(plugin, path=PLUGINS) is None:
            pytest.skip(f"no CNI plugin {plugin}: needs Debian's containernetworking-plugins")


@pytest.fixture
def make_node(program: Program) -> Iterator[Callable[[int], Node]]:
    """A node with so many VFs on each of its two PFs; its agent does not run yet."""
    require_plugins()
    made: list[Node] = []

    def make(vfs: int) -> Node:
        made.append(Node(vfs=vfs, plugins=PLUGINS, shim=program.path))
        return made[-1]

    yield make
    for node in made:
        node.close()


@pytest.fixture
def node(make_node: Callable[[int], Node]) -> Node:
    """A node with four VFs on each PF, and its agent."""
    node = make_node(4)
    node.start_agent()
    return node
