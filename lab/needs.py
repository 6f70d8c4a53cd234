"""Requirements of a machine that builds and runs guests."""

from __future__ import annotations

import platform
import shutil
import tempfile
from pathlib import Path

from lab.apt_sources import debian_sources
from lab.errors import CannotRun
from lab.modules import COMPILER
from lab.packages import Apt

PROGRAMS = ("apt-get", "dpkg-deb", COMPILER, "make", "patch", "strip", "tar", "xz", "setpriv")
MACHINE = "x86_64"


def refuse_unless_able(cache: Path) -> None:
    """Raise CannotRun with one sentence; apt is only asked for packages while the cache is empty."""
    if platform.machine() != MACHINE:
        raise CannotRun(
            f"guests are made of Debian's packages for amd64, and this machine is {platform.machine()}"
        )
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        raise CannotRun(
            f"programs are missing: {', '.join(missing)} (scripts/setup-lab installs them as root)"
        )
    sources = debian_sources()
    if not any(cache.glob("initrd-*")):
        with tempfile.TemporaryDirectory(prefix="k8srdma-apt-") as folder:
            Apt(Path(folder), sources)
