"""`python -m lab report`: measure, and write the document."""

from __future__ import annotations

import os
import subprocess
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from k8s_rdma import __version__
from lab.foreign import command
from lab.image import Image, build
from lab.layers import REPOSITORY
from lab.machine import Machine, Shape, start, start_fabric
from lab.qemu import accelerator
from lab.report.evaluation import TCP_SECONDS, VERBS_SECONDS, evaluate
from lab.report.render import render
from lab.report.result import Conditions, Result, load, save
from lab.report.side_by_side import time_side_by_side
from lab.report.steady import ATTEMPTS
from lab.say import say, step

if TYPE_CHECKING:
    from lab.cache import Cache

DOCUMENT = REPOSITORY / "docs/lab-report.md"
RECORD = Path(__file__).with_name("recorded.json")
"""The last run's result, kept with the document that it became: other words need no other run."""
SHAPE = Shape(vfs=0)


def report(cache: Cache, *, recorded: bool = False) -> None:
    """Write docs/lab-report.md. recorded: by the last run's result, without measuring."""
    if not recorded:
        save(measure(cache), RECORD)
    DOCUMENT.write_text(render(load(RECORD)))
    say(f"{DOCUMENT.relative_to(REPOSITORY)} is written, from {RECORD.relative_to(REPOSITORY)}")


def measure(cache: Cache) -> Result:
    """Measure, for a quarter of an hour on two cores that are otherwise idle."""
    image = build(cache)
    began, load_average = datetime.now(UTC), os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="lab-report-") as folder:
        shared = Path(folder)
        with step("evaluation"), start_fabric(SHAPE, cache=cache, shared=shared) as machines:
            guest = _guest(machines[0])
            found = evaluate(machines)
        (shared / "one").mkdir()
        with step("side by side"), start(SHAPE, cache=cache, shared=shared / "one") as machine:
            vf, timed = time_side_by_side(machine)
    conditions = Conditions(
        date=began.strftime("%Y-%m-%d"),
        product=__version__,
        commit=_commit(),
        qemu=_qemu(image),
        accelerator=accelerator(),
        kernel=guest[0],
        host_cores=os.cpu_count() or 1,
        guest_cores=int(guest[1]),
        load=load_average,
        tcp_seconds=TCP_SECONDS,
        verbs_seconds=VERBS_SECONDS,
        attempts=ATTEMPTS,
        repeated=found.repeated,
    )
    return Result(
        conditions=conditions, nodes=found.nodes, pods=found.pods, pairs=found.pairs, vf=vf, timed=timed
    )


def _guest(machine: Machine) -> tuple[str, str]:
    """Return kernel and processors."""
    return machine.run("uname", "-r").stdout.strip(), machine.run("nproc").stdout.strip()


def _qemu(image: Image) -> str:
    """Return QEMU's own version, such as `QEMU 10.0.2`."""
    asked = command(image.qemu, "/usr/bin/qemu-system-x86_64", "--version")
    environ = os.environ | {"QEMU_MODULE_DIR": f"{image.qemu}/usr/lib/x86_64-linux-gnu/qemu"}
    said = subprocess.run(asked, env=environ, capture_output=True, text=True, check=True).stdout
    return "QEMU " + said.split()[3]


def _commit() -> str:
    """Return the checkout's commit, with whether it has other changes; `unknown` outside a checkout."""
    found, changes = (
        subprocess.run(["git", "-C", REPOSITORY, *arguments], capture_output=True, text=True, check=False)
        for arguments in (("rev-parse", "--short=12", "HEAD"), ("status", "--porcelain"))
    )
    if found.returncode != 0:
        return "unknown"
    return found.stdout.strip() + (" with changes" if changes.stdout else "")
