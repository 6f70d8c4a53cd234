"""Keys for placements as openssl(1) makes them, in a Secret's volume as kubelet keeps it."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def openssl(*arguments: str, text: bytes = b"") -> bytes:
    return subprocess.run(["openssl", *arguments], input=text, stdout=subprocess.PIPE, check=True).stdout


def pair() -> tuple[bytes, bytes]:
    """A private Ed25519 key and its public one, in PEM."""
    private = openssl("genpkey", "-algorithm", "ed25519")
    return private, openssl("pkey", "-pubout", text=private)


class Volume:
    """Names are links by way of `..data`, which is swapped at once, as by Kubernetes' `AtomicWriter`."""

    def __init__(self, directory: Path) -> None:
        self.directory, self._turn = directory, 0
        directory.mkdir()

    def hold(self, entries: Mapping[str, bytes]) -> None:
        """Have these entries, and no others."""
        self._turn += 1
        real = self.directory / f"..{self._turn}"
        real.mkdir()
        for name, content in entries.items():
            (real / name).write_bytes(content)
        (self.directory / "..data_tmp").symlink_to(real.name)
        (self.directory / "..data_tmp").rename(self.directory / "..data")
        for name in entries:
            if not (self.directory / name).is_symlink():
                (self.directory / name).symlink_to(f"..data/{name}")
        for path in self.directory.iterdir():
            if not path.name.startswith("..") and path.name not in entries:
                path.unlink()
