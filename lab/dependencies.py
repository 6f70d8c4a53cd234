"""The layer of Python packages: those that the project pins for its own use, and those its tests import."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from lab.errors import LabError
from lab.layers import REPOSITORY, SITE, close, pip

if TYPE_CHECKING:
    from lab.cache import Cache

FOR_TESTS = (
    "h2", "hpack", "hyperframe", "hypothesis", "iniconfig", "packaging", "pluggy", "pygments", "pyroute2",
    "pytest", "pytest-randomly", "pytest-timeout", "sortedcontainers",
)  # fmt: skip
"""The imports of tests, and their own imports; requirements/dev.txt pins them."""
PLATFORMS = (
    "manylinux_2_36", "manylinux_2_28", "manylinux_2_17", "manylinux2014", "manylinux_2_12", "manylinux2010",
    "manylinux_2_5", "manylinux1",
)  # fmt: skip
"""The platforms of Debian 12: the machine that builds the guest may be another one."""


def dependencies(cache: Cache, guest: Path) -> Path:
    """Install them into /opt/site, which Python in the guest looks into by itself."""
    runtime = REPOSITORY / "requirements/runtime.txt"
    pins = runtime.read_text() + picked(REPOSITORY / "requirements/dev.txt", FOR_TESTS)

    def make(product: Path) -> None:
        tree, listed = product / "root", product / "pins.txt"
        listed.write_text(pins)
        platforms = [f"--platform={each}_x86_64" for each in PLATFORMS]
        pip(
            "install", "--no-deps", "--require-hashes", "--only-binary=:all:", "--no-compile",
            "--python-version=3.11", "--implementation=cp", *platforms,
            f"--target={tree / SITE}", f"--requirement={listed}",
        )  # fmt: skip
        shutil.rmtree(tree / SITE / "bin", ignore_errors=True)
        path = tree / "usr/local/lib/python3.11/dist-packages/lab.pth"
        path.parent.mkdir(parents=True)
        path.write_text(f"/{SITE}\n")
        close(tree, guest)

    return cache.product("dependencies", pins, Path(__file__), make=make)


def picked(lock: Path, names: tuple[str, ...]) -> str:
    """Return the pins of these names, with their hashes; raise LabError if one is not pinned."""
    blocks = {
        match[1]: match[0] for match in re.finditer(r"(?m)^([a-z0-9-]+)==(?:.*\\\n)*.*\n", lock.read_text())
    }
    missing = [name for name in names if name not in blocks]
    if missing:
        raise LabError(f"{lock.name} does not pin {', '.join(missing)}, which tests in guests import")
    return "".join(blocks[name] for name in names)
