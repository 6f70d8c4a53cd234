"""A cluster of two guests for a whole run of tests, and the state in which each test must leave it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lab.machine import Shape, start_fabric
from tests.lab.cluster import Cluster, running_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lab.cache import Cache

HOOK = {"type": "soft-roce"}


@pytest.fixture(scope="session")
def lab_cluster(lab_cache: Cache, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """It runs."""
    shared = tmp_path_factory.mktemp("cluster")
    with (
        start_fabric(Shape(), cache=lab_cache, shared=shared) as machines,
        running_cluster(machines, rdma_plugins=(HOOK,)) as cluster,
    ):
        yield cluster


@pytest.fixture
def cluster(lab_cluster: Cluster) -> Iterator[Cluster]:
    """The same; pods that a test leaves are ended, and must leave no trace."""
    yield lab_cluster
    lab_cluster.end(*lab_cluster.pods())
    assert lab_cluster.leftovers() == {}
