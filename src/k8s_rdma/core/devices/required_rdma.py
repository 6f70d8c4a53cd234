"""VFs without the RDMA device that `hardware.requireRdma` demands: no pod gets one as an RDMA interface.

The requirement is on a PF when it is selected, and on each VF, because a pod gets the VF. A VF may lack the
device alone, for example when its RDMA driver failed; or all VFs of a PF do, for example of ice (E810), for
which Linux has no RDMA driver of VFs (`drivers/infiniband/hw/irdma`, 6.12).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from k8s_rdma.core.kernel import Hardware, PfState, Vf

WITHOUT_RDMA = "it has no RDMA device, which hardware.requireRdma demands"


def with_required_rdma(hardware: Hardware) -> Hardware:
    """Return the hardware with VFs that lack an RDMA device unusable; a problem of a PF whose VFs all do.

    PFs are left alone if neither they nor any of their VFs have an RDMA device, because the configuration
    may name such a PF that was in use before.
    """
    pfs = tuple(map(_judged, hardware.pfs))
    return hardware if pfs == hardware.pfs else replace(hardware, pfs=pfs)


def _judged(pf: PfState) -> PfState:
    at_home = [vf for vf in pf.vfs if vf.netdev is not None]
    having = [vf for vf in pf.vfs if vf.rdma_device is not None]
    lacking = [vf.index for vf in at_home if vf.rdma_device is None]
    if not lacking or not (having or pf.rdma_device is not None):
        return pf
    vfs = tuple(_unusable(vf) if vf.index in lacking else vf for vf in pf.vfs)
    problems = pf.problems
    if len(lacking) == len(pf.vfs):
        problem = (
            f"none of its {len(lacking)} VFs has an RDMA device, so that pods get none of them: there is no "
            f"RDMA driver for VFs of {pf.driver}, or it is not loaded; for pods that need no RDMA, set "
            "hardware.requireRdma: false"
        )
        problems = (*problems, problem)
    return replace(pf, vfs=vfs, problems=problems)


def _unusable(vf: Vf) -> Vf:
    return vf if vf.unusable else replace(vf, unusable=WITHOUT_RDMA)
