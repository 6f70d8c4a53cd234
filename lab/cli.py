"""The lab's commands: build, run, shell, report, can-run, clean."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lab.cache import Cache
from lab.errors import CannotRun, LabError
from lab.image import build
from lab.layers import REPOSITORY
from lab.machine import Machine, Shape, start
from lab.needs import refuse_unless_able
from lab.report.command import report
from lab.say import say, step
from lab.shell import follow, set_up, shell

if TYPE_CHECKING:
    from collections.abc import Iterator


CACHE = REPOSITORY / ".cache/lab"


def main() -> int:
    """The exit status: 1 if the lab failed, else the command's own."""
    arguments = _parser().parse_args()
    try:
        status: int = arguments.do(arguments)
    except CannotRun as error:
        print(f"the lab cannot run here: {error}", file=sys.stderr)
        return 1
    except LabError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    return status


def _build(arguments: argparse.Namespace) -> int:
    refuse_unless_able(arguments.cache)
    build(Cache(arguments.cache))
    return 0


def _run(arguments: argparse.Namespace) -> int:
    shape = Shape(vfs=arguments.vfs, numa=arguments.numa, iommu=arguments.iommu)
    with _machine(arguments, shape) as machine:
        shutil.copy(arguments.script, machine.shared / "script")
        return follow(machine.start("bash", "/lab/script", name="output"))


def _shell(arguments: argparse.Namespace) -> int:
    with _machine(arguments, Shape()) as machine:
        set_up(machine)
        return shell(machine)


def _report(arguments: argparse.Namespace) -> int:
    if not arguments.recorded:
        refuse_unless_able(arguments.cache)
    report(Cache(arguments.cache), recorded=arguments.recorded)
    return 0


def _can_run(arguments: argparse.Namespace) -> int:
    refuse_unless_able(arguments.cache)
    return 0


def _clean(arguments: argparse.Namespace) -> int:
    if arguments.cache.exists():
        shutil.rmtree(arguments.cache)
    return 0


@contextmanager
def _machine(arguments: argparse.Namespace, shape: Shape) -> Iterator[Machine]:
    refuse_unless_able(arguments.cache)
    cache = Cache(arguments.cache)
    build(cache)
    with tempfile.TemporaryDirectory(prefix=".run.", dir=cache.root) as shared, ExitStack() as stack:
        with step("a guest boots"):
            machine = stack.enter_context(start(shape, cache=cache, shared=Path(shared)))
        yield machine


def _file(path: str) -> Path:
    """Looked for before a guest boots."""
    if not Path(path).is_file():
        raise argparse.ArgumentTypeError(f"{path} is no file")
    return Path(path)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab", description=__doc__)
    parser.add_argument("--cache", type=Path, default=CACHE, help="where what is made is kept")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    commands.add_parser("build", help="make what guests need").set_defaults(do=_build)
    run = commands.add_parser("run", help="run a script of bash in a guest, with its status")
    run.add_argument("script", type=_file)
    run.add_argument("--vfs", type=int, default=0, help="VFs on each PF, made before the script runs")
    run.add_argument("--numa", action="store_true", help="two NUMA nodes, a PF on each")
    run.add_argument("--iommu", action="store_true", help="an IOMMU that is on, for vfio-pci")
    run.set_defaults(do=_run)
    commands.add_parser("shell", help="a shell on a node that is set up").set_defaults(do=_shell)
    reported = commands.add_parser("report", help="measure, and write docs/lab-report.md")
    reported.add_argument("--recorded", action="store_true", help="write it by the last run's result")
    reported.set_defaults(do=_report)
    commands.add_parser("can-run", help="status 0, or a sentence why not").set_defaults(do=_can_run)
    commands.add_parser("clean", help="remove what was made").set_defaults(do=_clean)
    return parser
