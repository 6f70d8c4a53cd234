"""Facts of `processes`: in order, and for each kind of finding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from msgspec import structs

from k8s_rdma.doctor.node.processes import HttpAnswer, ProcessFacts, check_processes
from k8s_rdma.wire.report import (
    Allocation,
    Enforced,
    ForeignVf,
    Interface,
    NodeReport,
    PfReport,
    Rates,
    ReportedPod,
)

NODE_REPORT = "/run/k8s-rdma/state.sock"
RATES = Rates(min=None, max=None, sum_checked=False, needs_link=False, weights=None)
HELD = Interface(
    pf="eth0",
    vf=1,
    ifname="rdma0",
    mac="",
    min_tx_rate=0,
    max_tx_rate=0,
    set_min_tx_rate=0,
    set_max_tx_rate=0,
    enforced=Enforced(min=None, max=None),
)


def report(*, foreign: tuple[ForeignVf, ...] = (), phase: str = "attached", problem: str = "") -> NodeReport:
    pf = PfReport(
        name="eth0",
        pci="0000:01:00.0",
        driver="igb",
        capacity_vfs=7,
        link_mbps=1000,
        rates=RATES,
        foreign=foreign,
    )
    pod = ReportedPod(namespace="default", name="a", uid="u")
    allocation = Allocation(pod=pod, container_id="c", phase=phase, interfaces=(HELD,))
    return NodeReport(
        node="w1",
        generation="e.1",
        ledger="ok",
        pfs=(pf,),
        allocations=(allocation,),
        problems=(problem,) if problem else (),
        agent_version="0.1.0",
    )


def report_of_pf(**fields: Any) -> NodeReport:
    """A report of one PF with these fields."""
    base = report()
    return structs.replace(base, pfs=(structs.replace(base.pfs[0], **fields),))


PROCESSES = ProcessFacts(
    socket=NODE_REPORT,
    report=report(),
    server=HttpAnswer(url="http://127.0.0.1:54005/healthz", version="0.1.0"),
    plugin=HttpAnswer(url="http://127.0.0.1:54006/healthz"),
    version="0.1.0",
)


IN_ORDER = list(check_processes(PROCESSES))

CASES = {
    "processes-agent-down": list(check_processes(replace(PROCESSES, report=None, why="Connection refused"))),
    "processes-down": list(
        check_processes(replace(PROCESSES, server=HttpAnswer(url="http://x", why="HTTP 500")))
    ),
    "processes-versions": list(
        check_processes(replace(PROCESSES, server=HttpAnswer(url="http://x", version="0.0.9")))
    ),
    "processes-ends-left": list(
        check_processes(replace(PROCESSES, leftovers=("c1:eth0:net",), left_in="/run/x"))
    ),
    "processes-problem": list(check_processes(replace(PROCESSES, report=report(problem="a sentence")))),
}
