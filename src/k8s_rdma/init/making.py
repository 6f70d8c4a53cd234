"""The number of a PF's VFs, and whether those get a driver by themselves."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from k8s_rdma.init.failure import SetupError, refused_write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.init.job import Job


@contextmanager
def probing_restored(job: Job) -> Iterator[None]:
    """Whether VFs get a driver by themselves is afterwards as it was."""
    before = job.sriov.probes_vfs()
    try:
        yield
    finally:
        if job.sriov.probes_vfs() != before:
            let_probe(job, before)


def let_probe(job: Job, probe: bool) -> None:
    """Let VFs get a driver when they are made or probed, or keep them from it."""
    try:
        job.sriov.let_probe_vfs(probe)
    except OSError as error:
        what = f"PF {job.target.name}: sriov_drivers_autoprobe {int(probe)}"
        raise refused_write(what, error) from error


def make_vfs(job: Job, before: int, count: int) -> None:
    """From so many VFs, none of which is used, to so many, which have no driver.

    Without its drivers that takes the kernel milliseconds a VF. When it fails, as many as before are made.
    """
    let_probe(job, False)
    if before:
        _write(job, 0)
    try:
        _make(job, count)
    except SetupError as error:
        _make_again(job, before, error)
        raise
    job.log.info("vfs_made", before=before, vfs=count)


def _make_again(job: Job, before: int, error: SetupError) -> None:
    """Undo; those come with their drivers, as nobody looks after them now."""
    try:
        let_probe(job, True)
        if job.sriov.count() != before:
            _write(job, 0)
            _write(job, before)
    except SetupError as undoing:
        msg = f"{error}; nor back: {undoing}"
        raise SetupError(msg, advice=error.advice) from error


def _make(job: Job, count: int) -> None:
    _write(job, count)
    made = job.sriov.count()
    if made != count:
        raise SetupError(
            f"PF {job.target.name}: {count} VFs asked, its driver made {made}",
            advice="see its lines in dmesg, and set numVfs to what it can make",
        )


def _write(job: Job, count: int) -> None:
    try:
        job.sriov.make(count)
    except OSError as error:
        raise refused_write(f"PF {job.target.name}: sriov_numvfs {count}", error) from error
