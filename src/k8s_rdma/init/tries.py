"""One PF from its selection to its outcome: tries, and what is said of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.init.failure import SetupError, refused_read
from k8s_rdma.init.job import Job
from k8s_rdma.init.outcome import Outcome, Result
from k8s_rdma.init.setup import PfSetup
from k8s_rdma.init.waiting import StoppedError
from k8s_rdma.linux.vf.creation import SriovPf

if TYPE_CHECKING:
    from k8s_rdma.init.config import InitConfig
    from k8s_rdma.init.decision import Refused
    from k8s_rdma.init.job import Target
    from k8s_rdma.init.machine import Machine
    from k8s_rdma.init.users import Pods

_log = structlog.get_logger()


def make_ready(machine: Machine, config: InitConfig, pods: Pods, target: Target) -> Outcome:
    """What became of one PF. Only what no one foresaw is raised."""
    log = _log.bind(pf=target.name, pci=target.pci)
    started = machine.clock.now()
    with machine.links() as links:
        job = Job(
            target=target,
            sysfs=machine.sysfs,
            sriov=SriovPf(machine.sysfs, target.pci),
            links=links,
            clock=machine.clock,
            config=config,
            log=log,
        )
        outcome = _outcome(job, pods)
    say = {Result.FAILED: log.error, Result.KEPT: log.warning}.get(outcome.result, log.info)
    say(
        "pf_ended",
        result=outcome.result,
        said=outcome.said,
        advice=outcome.advice,
        before=outcome.before,
        now=outcome.now,
        duration_s=round(machine.clock.now() - started, 3),
    )
    return outcome


def _outcome(job: Job, pods: Pods) -> Outcome:
    setup = None
    for left in reversed(range(job.config.tries)):
        try:
            setup = setup or PfSetup(job, pods)
            return _ended(job, setup, setup.attempt())
        except K8sRdmaError as error:
            failure = error
        except OSError as error:
            failure = refused_read(f"PF {job.target.name}", error)
        if _is_last(failure, left) or not _rested(job, failure, left):
            break
    return _failed(job, setup, failure)


def _is_last(failure: K8sRdmaError, left: int) -> bool:
    return (
        not left or isinstance(failure, StoppedError) or (isinstance(failure, SetupError) and failure.lasting)
    )


def _rested(job: Job, failure: K8sRdmaError, left: int) -> bool:
    """Wait before the next try; False when that was cut short."""
    pause_s = job.config.backoff_s * 2 ** (job.config.tries - 1 - left)
    job.log.warning("pf_try_failed", error=str(failure), tries_left=left, next_in_s=pause_s)
    try:
        job.clock.wait(pause_s)
    except StoppedError:
        return False
    return True


def _ended(job: Job, setup: PfSetup, refused: Refused | None) -> Outcome:
    done = setup.done
    if refused is None:
        result = Result.CHANGED if done.changes() else Result.READY
        return _said(job, setup, result, done.words(), "")
    return _said(job, setup, Result.KEPT if refused.in_use else Result.FAILED, refused.why, refused.advice)


def _failed(job: Job, setup: PfSetup | None, failure: K8sRdmaError) -> Outcome:
    done = setup.done.changes() if setup else ()
    said = f"{failure} (done before: {', '.join(done)})" if done else str(failure)
    return _said(job, setup, Result.FAILED, said, failure.advice if isinstance(failure, SetupError) else "")


def _said(job: Job, setup: PfSetup | None, result: Result, said: str, advice: str) -> Outcome:
    try:
        now = job.sriov.count()
    except OSError:
        now = None
    return Outcome(
        pf=job.target.name,
        result=result,
        said=said,
        advice=advice,
        asked=job.target.rule.num_vfs,
        before=setup.before if setup else None,
        now=now,
    )
