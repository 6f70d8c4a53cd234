"""Facts of `modules`: in order, and for each kind of finding."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from k8s_rdma.doctor.node.modules import ModuleFacts, State, check_modules

if TYPE_CHECKING:
    from k8s_rdma.doctor.finding import Finding


MODULES = ModuleFacts(
    states={
        "igbvf": State.LOADED,
        "ib_uverbs": State.LOADED,
        "rdma_ucm": State.BUILT_IN,
        "sch_tbf": State.LOADABLE,
        "vfio_pci": State.LOADABLE,
    },
    pf_drivers=frozenset({"igb"}),
    release="6.1.0-38-amd64",
    rdma=True,
)


def modules(**states: State) -> list[Finding]:
    return list(check_modules(replace(MODULES, states={**MODULES.states, **states})))


IN_ORDER = modules()

CASES = {
    "modules-not-loaded": modules(ib_uverbs=State.LOADABLE),
    "modules-absent": modules(rdma_ucm=State.ABSENT),
    "modules-optional-absent": modules(sch_tbf=State.ABSENT),
    "modules-vf-driver": modules(igbvf=State.LOADABLE),
}
