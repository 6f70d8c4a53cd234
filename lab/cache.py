"""The products of the lab, kept under names derived from their inputs.

No product is made twice, and no stale one is used. Making is atomic. If several processes want the same
product, one makes it while the others wait.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lab.say import size_of, step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KEPT = 3
"""Kept versions of each product: other branches and runs that have just begun use former ones."""
YOUNG_S = 3600.0


class Cache:
    """A folder of products, `NAME-HASH` each. root: made when needed, as an absolute path."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root = root.resolve()

    def product(self, name: str, *inputs: object, make: Callable[[Path], None]) -> Path:
        """Return the folder of a product. inputs: texts, and files or folders by their content.

        make: fills the folder that it is given; an error of it leaves no folder behind.
        """
        path = self.root / f"{name}-{digest(inputs)}"
        if not path.exists():
            with self._locked(name):
                if not path.exists():
                    self._make(name, path, make)
                    self._forget_old(name)
        return path

    def _make(self, name: str, path: Path, make: Callable[[Path], None]) -> None:
        for left in self.root.glob(f".{name}.*/"):  # by one that was killed: we have the lock
            shutil.rmtree(left)
        with step(name) as notes, tempfile.TemporaryDirectory(prefix=f".{name}.", dir=self.root) as temporary:
            filling = Path(temporary) / "product"
            filling.mkdir()
            make(filling)
            notes.append(size_of(filling))
            filling.rename(path)

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        with (self.root / f".{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _forget_old(self, name: str) -> None:
        ours = sorted(self.root.glob(f"{name}-" + "[0-9a-f]" * 12), key=lambda path: path.stat().st_mtime)
        for path in ours[:-KEPT]:
            if time.time() - path.stat().st_mtime > YOUNG_S:
                shutil.rmtree(path)


def digest(inputs: tuple[object, ...]) -> str:
    """Return 12 hexadecimal digits of inputs; of a path its content, and the names below it."""
    hashed = hashlib.sha256()
    for each in inputs:
        for part in _parts(each):
            hashed.update(len(part).to_bytes(8))
            hashed.update(part)
    return hashed.hexdigest()[:12]


def _parts(given: object) -> Iterator[bytes]:
    if not isinstance(given, Path):
        yield repr(given).encode()
    elif given.is_dir():
        for path in sorted(given.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield str(path.relative_to(given)).encode()
                yield path.read_bytes()
    else:
        yield given.read_bytes()
