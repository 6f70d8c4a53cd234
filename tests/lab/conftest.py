"""Guests for tests, by the lab whose cache K8S_RDMA_LAB names (`make lab` sets it)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lab.cache import Cache
from lab.machine import Machine, Shape, start, start_fabric
from tests.lab.pods_fixtures import cluster, lab_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator


__all__ = ["cluster", "lab_cluster"]

VARIABLE = "K8S_RDMA_LAB"
FOLDER = Path(__file__).parent
TIMEOUT_S = 900
"""Of a test without its own: emulated machines are slow, and module-wide ones boot within a test's time."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    without_lab = pytest.mark.skip(reason=f"needs the lab: `make lab`, which sets {VARIABLE}")
    for item in items:
        if FOLDER not in item.path.parents:
            continue
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
        if VARIABLE not in os.environ:
            item.add_marker(without_lab)


@pytest.fixture(scope="session")
def lab_cache() -> Cache:
    """Of the parts of guests; `start` makes missing ones."""
    return Cache(Path(os.environ[VARIABLE]))


@pytest.fixture(scope="module")
def machine(lab_cache: Cache, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A node before `k8s-rdma init`, for all tests of a module."""
    with start(Shape(), cache=lab_cache, shared=tmp_path_factory.mktemp("machine")) as machine:
        yield machine


@pytest.fixture(scope="module")
def lone_machine(lab_cache: Cache, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """The same with a disk, mounted on /disk."""
    shape = Shape(disk_mb=64)
    with start(shape, cache=lab_cache, shared=tmp_path_factory.mktemp("lone")) as machine:
        yield machine


@pytest.fixture(scope="module")
def two_machines(
    lab_cache: Cache, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Machine, Machine]]:
    """Two nodes with two VFs on each PF, whose PFs share an Ethernet."""
    with start_fabric(Shape(vfs=2), cache=lab_cache, shared=tmp_path_factory.mktemp("two")) as machines:
        yield machines
