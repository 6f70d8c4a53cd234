"""Simulated PFs, run by the kernel that a node's agent has for real ones."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from netdevsim.device import debugfs, needs_netdevsim
from netdevsim.simulated_lab import SimulatedLab

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "netdevsim":
            item.add_marker(needs_netdevsim)


@pytest.fixture(scope="session")
def _debugfs() -> Iterator[None]:
    with debugfs():
        yield


@pytest.fixture
def make_lab(tmp_path: Path, _debugfs: None) -> Iterator[Callable[..., SimulatedLab]]:
    """Two PFs with so many VFs each, as if of that driver."""
    with ExitStack() as stack:

        def make(vfs: int = 4, driver: str = "mlx5_core", **options: Any) -> SimulatedLab:
            lab = SimulatedLab(tmp_path, vfs, driver=driver, **options)
            stack.callback(lab.close)
            return lab

        yield make


@pytest.fixture
def lab(make_lab: Callable[..., SimulatedLab]) -> SimulatedLab:
    return make_lab()
