"""Kernel modules built out of tree: soft-RoCE that knows network namespaces, netdevsim."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from lab.errors import LabError
from lab.packages import archives, kernel_version, source_version, unpack

if TYPE_CHECKING:
    from lab.cache import Cache

MODULES = {
    "rxe": ("drivers/infiniband/sw/rxe", "CONFIG_RDMA_RXE"),
    "netdevsim": ("drivers/net/netdevsim", "CONFIG_NETDEVSIM"),
}
"""Folder of the kernel's sources, and the setting that makes a module of it. Debian leaves netdevsim out."""
PATCHES = Path(__file__).parent / "soft_roce"
COMPILER = "gcc-12"
"""The compiler of Debian's kernel, which its headers need."""


def modules(cache: Cache, debs: Path) -> Path:
    """Return a folder of `*.ko`."""

    def make(product: Path) -> None:
        work = product / "work"
        headers = _headers(debs, work)
        sources = _sources(debs, work)
        for patch in sorted(PATCHES.glob("*.patch")):
            _run("patch", "--silent", "-p1", f"--directory={sources / 'rxe'}", f"--input={patch}")
        for name, (_, setting) in MODULES.items():
            _compile(headers, work, sources / name, setting)
            for built in (sources / name).glob("*.ko"):
                _run("strip", "--strip-debug", "-o", product / built.name, built)
        shutil.rmtree(work)

    patches = sorted(PATCHES.glob("*.patch"))
    key = archives(debs, "build"), COMPILER, list(MODULES.items())
    return cache.product("modules", *key, *patches, make=make)


def _headers(debs: Path, work: Path) -> Path:
    unpack(debs / "build", work)
    headers = work / "usr/src" / f"linux-headers-{kernel_version(debs)}"
    makefile = headers / "Makefile"
    makefile.write_text(makefile.read_text().replace("include /usr/src/", f"include {work}/usr/src/"))
    return headers


def _sources(debs: Path, work: Path) -> Path:
    """Unpack the modules' folders alone, side by side, out of the kernel's sources."""
    root = f"linux-source-{source_version(kernel_version(debs))}"
    unpacked = work / "sources"
    unpacked.mkdir()
    folders = [f"{root}/{folder}" for folder, _ in MODULES.values()]
    _run(
        "tar",
        "--extract",
        "--xz",
        f"--file={work}/usr/src/{root}.tar.xz",
        f"--directory={unpacked}",
        *folders,
    )
    for name, (folder, _) in MODULES.items():
        (unpacked / root / folder).rename(unpacked / name)
    return unpacked


def _compile(headers: Path, work: Path, source: Path, setting: str) -> None:
    # objtool, which the kernel's makefiles run, wants libelf.
    environ = os.environ | {"LD_LIBRARY_PATH": f"{work}/usr/lib/x86_64-linux-gnu"}
    for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):
        environ.pop(name, None)
    jobs = f"-j{os.cpu_count() or 1}"
    _run(
        "make",
        "-s",
        jobs,
        "-C",
        headers,
        f"M={source}",
        f"CC={COMPILER}",
        f"{setting}=m",
        "modules",
        env=environ,
    )


def _run(*command: object, env: dict[str, str] | None = None) -> None:
    line = [str(word) for word in command]
    ended = subprocess.run(line, env=env, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise LabError(f"{' '.join(line)}\n{ended.stdout}{ended.stderr}")
