"""Layers over the guest's root: the lab's own files, the packages that the project pins, the project itself.

A change of the project or of the lab makes its own small layer anew, and nothing else.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lab.cpio import write_archive
from lab.errors import LabError
from lab.tree import compile_python

if TYPE_CHECKING:
    from lab.cache import Cache

REPOSITORY = Path(__file__).resolve().parent.parent
FILES = Path(__file__).parent / "guest"
PROGRAMS = ("lab-sriov", "lab-cable", "lab-node", "lab-pod", "lab-shell")
SITE = "opt/site"
FOR_TESTS = (
    "h2", "hpack", "hyperframe", "hypothesis", "iniconfig", "packaging", "pluggy", "pygments", "pyroute2",
    "pytest", "pytest-randomly", "pytest-timeout", "sortedcontainers",
)  # fmt: skip
"""What tests import, and what that imports in turn; requirements/dev.txt pins them."""
PLATFORMS = (
    "manylinux_2_36",
    "manylinux_2_28",
    "manylinux_2_17",
    "manylinux2014",
    "manylinux_2_12",
    "manylinux2010",
    "manylinux_2_5",
    "manylinux1",
)
PRODUCT = ("src", "cni", "examples/pods", "hatch_build.py", "pyproject.toml", "README.md", "LICENSE")
"""What the wheel is made of."""
COMMAND = """\
#!/usr/bin/python3.11
import sys
sys.path.insert(0, "/opt/site")
from k8s_rdma.cli.main import main
sys.exit(main())
"""


def furniture(cache: Cache) -> Path:
    """The archive of the lab's own files: the first process, the agent, programs for scripts."""

    def make(product: Path) -> None:
        tree = product / "root"
        shutil.copytree(FILES, tree / "opt/lab", ignore=shutil.ignore_patterns("__pycache__"))
        _place(FILES / "init", tree / "init")
        for name in PROGRAMS:
            _place(FILES / name, tree / "usr/bin" / name)
        write_archive(tree, product / "layer.cpio")
        shutil.rmtree(tree)

    return cache.product("furniture", Path(__file__), FILES, make=make)


def dependencies(cache: Cache, guest: Path) -> Path:
    """The archive of the pinned packages: those of the runtime, and FOR_TESTS."""
    runtime = REPOSITORY / "requirements/runtime.txt"
    pins = runtime.read_text() + picked(REPOSITORY / "requirements/dev.txt", FOR_TESTS)

    def make(product: Path) -> None:
        tree, listed = product / "root", product / "pins.txt"
        listed.write_text(pins)
        platforms = [f"--platform={each}_x86_64" for each in PLATFORMS]
        _pip(
            "install", "--no-deps", "--require-hashes", "--only-binary=:all:", "--no-compile",
            "--python-version=3.11", "--implementation=cp", *platforms,
            f"--target={tree / SITE}", f"--requirement={listed}",
        )  # fmt: skip
        shutil.rmtree(tree / SITE / "bin", ignore_errors=True)
        path = tree / "usr/local/lib/python3.11/dist-packages/lab.pth"
        path.parent.mkdir(parents=True)
        path.write_text(f"/{SITE}\n")
        _close(tree, product, guest)

    return cache.product("dependencies", pins, Path(__file__), make=make)


def project(cache: Cache, guest: Path) -> Path:
    """The archive of the project as users install it: the wheel, its command, and the executable of CNI."""

    def make(product: Path) -> None:
        tree = product / "root"
        _pip(
            "wheel",
            "--no-deps",
            "--no-index",
            "--no-build-isolation",
            f"--wheel-dir={product}",
            str(REPOSITORY),
        )
        (wheel,) = product.glob("*.whl")
        _pip("install", "--no-deps", "--no-index", "--no-compile", f"--target={tree / SITE}", str(wheel))
        programs = tree / SITE / "bin"
        _place(programs / "k8s-rdma-cni", tree / "opt/cni/bin/k8s-rdma-cni")
        (programs / "k8s-rdma").write_text(COMMAND)
        _place(programs / "k8s-rdma", tree / "usr/bin/k8s-rdma")
        shutil.rmtree(programs)
        _close(tree, product, guest)

    sources = [REPOSITORY / name for name in PRODUCT]
    return cache.product("project", Path(__file__), *sources, make=make)


def picked(lock: Path, names: tuple[str, ...]) -> str:
    """The pins of these names, with their hashes; LabError if one is not pinned."""
    blocks = {
        match[1]: match[0] for match in re.finditer(r"(?m)^([a-z0-9-]+)==(?:.*\\\n)*.*\n", lock.read_text())
    }
    missing = [name for name in names if name not in blocks]
    if missing:
        raise LabError(f"{lock.name} does not pin {', '.join(missing)}, which tests in guests import")
    return "".join(blocks[name] for name in names)


def _close(tree: Path, product: Path, guest: Path) -> None:
    compile_python(tree, f"/{SITE}", python=guest / "root")
    write_archive(tree, product / "layer.cpio")
    shutil.rmtree(tree)


def _place(program: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(program, target)
    target.chmod(0o755)


def _pip(*arguments: str) -> None:
    command = [
        sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet", *arguments,
    ]  # fmt: skip
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise LabError(f"pip {arguments[0]} failed:\n{ended.stdout}{ended.stderr}")
