"""The layer of the project as users install it: the wheel, its command, and the executable of CNI."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from lab.layers import REPOSITORY, SITE, close, pip, place

if TYPE_CHECKING:
    from lab.cache import Cache

PRODUCT = ("src", "cni", "examples/pods", "hatch_build.py", "pyproject.toml", "README.md", "LICENSE")
"""The sources of the wheel."""
COMMAND = """\
#!/usr/bin/python3.11
import sys
sys.path.insert(0, "/opt/site")
from k8s_rdma.cli.main import main
sys.exit(main())
"""


def project(cache: Cache, guest: Path) -> Path:
    """Make the layer of the checkout as it stands."""

    def make(product: Path) -> None:
        tree = product / "root"
        wheel_options = ("--no-deps", "--no-index", "--no-build-isolation", f"--wheel-dir={product}")
        pip("wheel", *wheel_options, str(REPOSITORY))
        (wheel,) = product.glob("*.whl")
        pip("install", "--no-deps", "--no-index", "--no-compile", f"--target={tree / SITE}", str(wheel))
        programs = tree / SITE / "bin"
        place(programs / "k8s-rdma-cni", tree / "opt/cni/bin/k8s-rdma-cni")
        (programs / "k8s-rdma").write_text(COMMAND)
        place(programs / "k8s-rdma", tree / "usr/bin/k8s-rdma")
        shutil.rmtree(programs)
        close(tree, guest)

    sources = [REPOSITORY / name for name in PRODUCT]
    return cache.product("project", Path(__file__), *sources, make=make)
