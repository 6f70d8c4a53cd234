"""Checks of our processes on a node: whether they answer, their versions, and the agent's VFs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.doctor.subject import Subject
from k8s_rdma.wire.report import NodeReport

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.doctor.finding import Finding


PROCESSES = Subject("processes", "Processes")
PROCESSES_OK = PROCESSES.ok()
AGENT_DOWN = PROCESSES.error("agent-down")
NOT_RUNNING = PROCESSES.warning("down")
VERSIONS = PROCESSES.warning("versions")
ENDS_LEFT = PROCESSES.warning("ends-left")
PROBLEM = PROCESSES.warning("problem")

NAMED = 3

VFS = Subject("vfs", "VFs")
VFS_OK = VFS.ok()
FOREIGN = VFS.warning("foreign")
RELEASING = VFS.warning("releasing")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """An answer over HTTP.

    version: empty if it is unknown.
    why: the failure; empty after an answer.
    """

    url: str
    version: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """Our processes on a node.

    report: the first one from `socket`, if it was received; otherwise `why`.
    server, plugin: their answers, if they should run.
    version: the doctor's.
    leftovers: DELs that found no agent, by their files' names in `left_in`.
    """

    socket: str
    report: NodeReport | None
    why: str = ""
    server: HttpAnswer | None
    plugin: HttpAnswer | None
    version: str
    leftovers: tuple[str, ...] = ()
    left_in: str = ""


@PROCESSES.check(ProcessFacts)
def check_processes(facts: ProcessFacts) -> Iterator[Finding]:
    """Check that each process answers, and has this program's version."""
    if facts.report is None:
        yield AGENT_DOWN(
            f"does not answer: {facts.why}; pods with interfaces do not start",
            about="agent",
            source=facts.socket,
            expected="a report",
            fix="the agent's log: kubectl -n k8s-rdma logs POD -c agent",
        )
    else:
        yield _check_agent(facts, facts.report)
        for sentence in (*facts.report.unreadable, *facts.report.problems):
            yield PROBLEM(
                sentence,
                about="agent",
                source=facts.socket,
                expected="none",
                fix="docs/operating-a-node.md",
            )
    if facts.leftovers:
        yield _ends_left(facts)
    for name, answer in (("server", facts.server), ("device-plugin", facts.plugin)):
        if answer is not None:
            yield _check_answer(facts, name, answer)


def _ends_left(facts: ProcessFacts) -> Finding:
    named = ", ".join(facts.leftovers[:NAMED]) + (", ..." if len(facts.leftovers) > NAMED else "")
    return ENDS_LEFT(
        f"DELs that wait for the agent: {len(facts.leftovers)} ({named}); they keep their interfaces",
        about="agent",
        source=facts.left_in,
        expected="none that remains",
        fix="reconcile_failed in the agent's log" if facts.report else "start the agent",
    )


def _check_agent(facts: ProcessFacts, report: NodeReport) -> Finding:
    if report.agent_version != facts.version:
        return _other_version(facts, "agent", report.agent_version or "before 0.1.0", facts.socket)
    summary = f"answers, version {report.agent_version}; {len(report.allocations)} sandboxes hold interfaces"
    return PROCESSES_OK(summary, about="agent", source=f"{facts.socket}, generation {report.generation}")


def _other_version(facts: ProcessFacts, name: str, version: str, source: str) -> Finding:
    return VERSIONS(
        f"version {version}; this program is {facts.version}",
        about=name,
        source=source,
        expected="one version on a node",
        fix="kubectl -n k8s-rdma rollout restart daemonset k8s-rdma-node",
    )


def _check_answer(facts: ProcessFacts, name: str, answer: HttpAnswer) -> Finding:
    if answer.why:
        consequence = (
            "the extender cannot see this node" if name == "server" else "no container gets device nodes"
        )
        return NOT_RUNNING(
            f"does not answer: {answer.why}; {consequence}",
            about=name,
            source=answer.url,
            expected="200",
            fix=f"kubectl -n k8s-rdma logs POD -c {name}",
        )
    if answer.version and answer.version != facts.version:
        return _other_version(facts, name, answer.version, answer.url)
    summary = f"answers, version {answer.version}" if answer.version else "answers, without a version"
    return PROCESSES_OK(summary, about=name, source=answer.url)


@VFS.check(ProcessFacts)
def check_vfs(facts: ProcessFacts) -> Iterator[Finding]:
    """Check for unmanaged VFs and for allocations that stay in release."""
    if facts.report is None:
        return
    source, bad = f"{facts.socket}, foreign", False
    for pf in facts.report.pfs:
        for vf in pf.foreign:
            bad = True
            yield FOREIGN(
                f"unmanaged: {vf.why}; {vf.min_tx_rate} Mb/s count as reserved",
                about=f"{pf.name} VF {vf.vf}",
                source=source,
                expected="unused, or a pod's",
                fix=f"k8s-rdma agent adopt --pf {pf.name} --vf {vf.vf} --dry-run",
            )
    for allocation in facts.report.allocations:
        if allocation.phase == "releasing":
            bad = True
            yield RELEASING(
                f"interfaces still being released: {len(allocation.interfaces)}",
                about=f"{allocation.pod.namespace}/{allocation.pod.name}",
                source=f"{facts.socket}, allocations",
                expected="an end within seconds",
                fix="reconcile_failed in the agent's log; docs/operating-a-node.md",
            )
    if not bad:
        yield VFS_OK("each VF is free or allocated to a pod", source=source)
