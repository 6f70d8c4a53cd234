"""Facts of `rights`: in order, and for each kind of finding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.doctor.cluster.rights import Right, RightsFacts, check_rights

if TYPE_CHECKING:
    from k8s_rdma.doctor.finding import Finding


def rights(account: str, *missing: Right) -> list[Finding]:
    return list(check_rights(RightsFacts(processes=(("agent", account, missing),))))


IN_ORDER = rights("k8s-rdma/k8s-rdma-agent")

CASES = {
    "rights-missing": rights(
        "k8s-rdma/k8s-rdma-agent", Right(group="k8s-rdma.io", resource="rdmanodes/status", verb="update")
    ),
    "rights-no-account": rights(""),
}
