"""VFs without the RDMA device that the configuration requires."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from factories import PF0, PF1, hardware, pf_state
from k8s_rdma.core.devices.required_rdma import WITHOUT_RDMA, with_required_rdma

if TYPE_CHECKING:
    from collections.abc import Collection

    from k8s_rdma.core.kernel import PfState


def pf(pci: str = PF0, *, having: Collection[int] = range(4), rdma: str | None = "mlx5_0") -> PfState:
    made = pf_state(pci, rdma_device=rdma)
    vfs = (replace(vf, rdma_device=f"mlx5_{vf.index + 2}" if vf.index in having else None) for vf in made.vfs)
    return replace(made, vfs=tuple(vfs))


def unusable(state: PfState) -> list[str]:
    return [vf.unusable for vf in with_required_rdma(hardware(state)).pfs[0].vfs]


def test_vf_that_lacks_an_rdma_device_which_its_siblings_have_is_unusable() -> None:
    seen = hardware(pf(having=(1, 2, 3)), pf(PF1))
    judged = with_required_rdma(seen)
    assert [vf.unusable for vf in judged.pfs[0].vfs] == [WITHOUT_RDMA, "", "", ""]
    assert judged.pfs[0].problems == ()
    assert judged.pfs[1] == seen.pfs[1]


def test_siblings_alone_show_that_a_vf_lacks_its_device() -> None:
    assert unusable(pf(having=(1,), rdma=None)) == [WITHOUT_RDMA, "", WITHOUT_RDMA, WITHOUT_RDMA]


def test_pf_whose_vfs_all_lack_a_device_says_so_once() -> None:
    judged = with_required_rdma(hardware(pf(having=()))).pfs[0]
    assert {vf.unusable for vf in judged.vfs} == {WITHOUT_RDMA}
    [problem] = judged.problems
    assert problem.startswith("none of its 4 VFs has an RDMA device")
    assert "hardware.requireRdma: false" in problem


def test_vfs_that_are_away_or_unusable_otherwise_are_left_as_they_are() -> None:
    state = pf(having=(2, 3))
    state = replace(
        state,
        vfs=(replace(state.vfs[0], netdev=None), replace(state.vfs[1], unusable="in use"), *state.vfs[2:]),
    )
    assert unusable(state) == ["", "in use", "", ""]


def test_machine_without_rdma_is_left_as_it_is() -> None:
    assert with_required_rdma(hardware()) == hardware()
