"""Facts of `vfs`: in order, and for each kind of finding."""

from __future__ import annotations

from dataclasses import replace

from doctor.cases.processes import PROCESSES, report
from k8s_rdma.doctor.node.processes import check_vfs
from k8s_rdma.wire.report import ForeignVf

IN_ORDER = list(check_vfs(PROCESSES))

CASES = {
    "vfs-foreign": list(
        check_vfs(
            replace(
                PROCESSES,
                report=report(foreign=(ForeignVf(vf=3, why="has rates", min_tx_rate=9, max_tx_rate=0),)),
            )
        )
    ),
    "vfs-releasing": list(check_vfs(replace(PROCESSES, report=report(phase="releasing")))),
}
