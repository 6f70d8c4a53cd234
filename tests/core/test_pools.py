"""Every VF is in one pool: the first that selects it, or that of whoever asks by annotation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from factories import PF0, PF1, hardware, pf_state
from k8s_rdma.core.devices.pools import FunctionKind, FunctionSelector, Pool, PoolPf, in_pools
from k8s_rdma.core.types import LinkType, PciAddress

VFS = pf_state(PF0).vfs
RDMA, FAST = "tencent.com/rdma", "example.com/fast"
OWN = PciAddress("0000:03:01.2")
HERE = hardware(
    replace(
        pf_state(PF0),
        vfs=(*VFS[:2], replace(VFS[2], pci=OWN), VFS[3]),
        vendor="15b3:1017",
        driver="mlx5_core",
    ),
    replace(pf_state(PF1), vendor="8086:1592", driver="ice", link_type=LinkType.INFINIBAND),
)
EVERY = {(PF0, 0), (PF0, 1), (PF0, 2), (PF0, 3), (PF1, 0), (PF1, 1), (PF1, 2), (PF1, 3)}
FIRST, SECOND = ({(pci, index) for index in range(4)} for pci in (PF0, PF1))


def pooled(*pools: Pool) -> dict[str, set[tuple[str, int]]]:
    found: dict[str, set[tuple[str, int]]] = {}
    for pf in in_pools(HERE, pools).pfs:
        for vf in pf.vfs:
            if vf.pool:
                found.setdefault(vf.pool, set()).add((pf.pci, vf.index))
    return found


@pytest.mark.parametrize(
    ("selector", "chosen"),
    [
        (FunctionSelector(), EVERY),
        (FunctionSelector(functions=FunctionKind.VF), EVERY),
        (FunctionSelector(functions=FunctionKind.PF), set()),
        (FunctionSelector(pfs=(PoolPf(pf="enp3s0f0"),)), FIRST),
        (FunctionSelector(pfs=(PoolPf(pf=PF1, vfs=frozenset({1, 3, 9})),)), {(PF1, 1), (PF1, 3)}),
        (
            FunctionSelector(pfs=(PoolPf(pf=PF0, vfs=frozenset({0})), PoolPf(pf="enp3s0f1"))),
            {(PF0, 0), *SECOND},
        ),
        (FunctionSelector(vendors=frozenset({"15b3"})), FIRST),
        (FunctionSelector(vendors=frozenset({"8086:1592"})), SECOND),
        (FunctionSelector(drivers=frozenset({"ice", "i40e"})), SECOND),
        (FunctionSelector(link_types=frozenset({LinkType.INFINIBAND})), SECOND),
        (FunctionSelector(pcis=frozenset({OWN})), {(PF0, 2)}),
        (FunctionSelector(drivers=frozenset({"ice"}), vendors=frozenset({"15b3"})), set()),
    ],
)
def test_pool_has_the_vfs_that_all_of_its_selector_matches(
    selector: FunctionSelector, chosen: set[tuple[str, int]]
) -> None:
    assert pooled(Pool(resource=RDMA, selector=selector)).get(RDMA, set()) == chosen


def test_vf_is_in_the_first_pool_that_selects_it() -> None:
    second = FunctionSelector(drivers=frozenset({"ice"}))
    every = FunctionSelector()
    found = pooled(Pool(resource=FAST, selector=second), Pool(resource=RDMA, selector=every))
    assert found == {FAST: SECOND, RDMA: FIRST}
    assert pooled(Pool(resource=RDMA, selector=every), Pool(resource=FAST, selector=second)) == {RDMA: EVERY}


def test_hardware_without_pools_is_as_it_was() -> None:
    assert in_pools(HERE, ()) is HERE
    nowhere = Pool(resource=RDMA, selector=FunctionSelector(drivers=frozenset({"none"})))
    assert in_pools(HERE, (nowhere,)) == HERE
