"""The files that a guest boots from, made if the cache does not have them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lab.dependencies import dependencies
from lab.furniture import furniture
from lab.layers import ARCHIVE
from lab.modules import modules
from lab.packages import archives, packages, unpack
from lab.project import project
from lab.tree import guest

if TYPE_CHECKING:
    from lab.cache import Cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """qemu: its unpacked tree; the others: files."""

    qemu: Path
    vmlinux: Path
    initrd: Path


def build(cache: Cache) -> Image:
    """Return the image; make the missing parts."""
    debs = packages(cache)
    root = guest(cache, debs, modules(cache, debs))
    upper = (dependencies(cache, root), furniture(cache), project(cache, root))
    layers = [root / "root.cpio", *(layer / ARCHIVE for layer in upper)]
    names = [layer.parent.name for layer in layers]
    initrd = cache.product("initrd", *names, make=lambda product: _join(layers, product / "initrd.cpio"))
    qemu = cache.product("qemu", archives(debs, "host"), make=lambda product: unpack(debs / "host", product))
    return Image(qemu=qemu, vmlinux=root / "vmlinux", initrd=initrd / "initrd.cpio")


def _join(archives: list[Path], into: Path) -> None:
    """Join archives into one file: the kernel unpacks one after the other."""
    with into.open("wb") as file:
        for archive in archives:
            with archive.open("rb") as part:
                shutil.copyfileobj(part, file, 2**20)
