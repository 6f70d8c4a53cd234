"""The image that `make image` made, unpacked; `K8S_RDMA_IMAGE` names its archive."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cni.conftest import build_dir, program
from deviceplugin.plugin_process import World, make_world
from e2e.conftest import PLUGINS, require_plugins
from image.contained_node import AGENT, ContainedNode
from image.containers import Containers
from image.oci_image import MACHINES, Image, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cni.call import Program

__all__ = ["build_dir", "program"]


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    archive = os.environ.get("K8S_RDMA_IMAGE")
    if not archive:
        pytest.skip("needs an image, which takes minutes to build: make image image-test")
    if os.geteuid() != 0:
        pytest.skip("needs root, whose files those of the image are")
    return unpack(Path(archive), tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="session")
def emulator(image: Image) -> tuple[str, ...]:
    """Return the emulator for the image's programs; empty if this machine runs them itself."""
    machine = MACHINES[image.architecture]
    if machine == platform.machine():
        return ()
    found = shutil.which(f"qemu-{machine}-static")
    if found is None:
        pytest.skip(f"needs a machine of {machine}, or qemu-{machine}-static (Debian's qemu-user-static)")
    return (found,)


@pytest.fixture
def not_emulated(emulator: tuple[str, ...]) -> None:
    if emulator:
        pytest.skip(
            "QEMU's user mode has neither NS_GET_NSTYPE, for pods' namespaces, nor traffic classes, for rates"
        )


@pytest.fixture
def containers(image: Image, tmp_path: Path, emulator: tuple[str, ...]) -> Iterator[Containers]:
    if shutil.which("runc") is None:
        pytest.skip("needs runc (Debian package runc)")
    made = Containers(image, tmp_path, emulator)
    yield made
    made.remove_all()


@pytest.fixture
def make_node(containers: Containers, program: Program) -> Iterator[Callable[..., ContainedNode]]:
    """A node whose agent has these capabilities, those of the DaemonSet by default; it does not run yet."""
    require_plugins()
    made: list[ContainedNode] = []

    def make(capabilities: tuple[str, ...] = AGENT) -> ContainedNode:
        made.append(ContainedNode(containers, plugins=PLUGINS, shim=program.path, capabilities=capabilities))
        return made[-1]

    yield make
    for node in made:
        node.close()


@pytest.fixture
def world() -> Iterator[World]:
    yield from make_world()
