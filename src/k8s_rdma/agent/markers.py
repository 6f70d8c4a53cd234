"""Files in `<runDir>` that the CNI executable looks for before it asks the agent.

`attachments/<container id>`: a file per container that has something of ours, or whose ADD is under way. With
the directory there and no file in it, a DEL has nothing to do, even while the agent is dead. So a marker is
there before the first change and after the last, and a directory that is missing says nothing.

`exclusive-devices`: there where pods may hold exclusive devices, which are attached to them though their
annotations say nothing. Then the agent is asked about every pod, or none starts.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from k8s_rdma.errors import LedgerError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from k8s_rdma.core.ids import ContainerId


EXCLUSIVE_DEVICES = "exclusive-devices"


def mark_exclusive_devices(run_dir: Path, *, there_are: bool) -> None:
    """Say whether pods may hold exclusive devices; it stands while no agent runs. LedgerError."""
    marker = run_dir / EXCLUSIVE_DEVICES
    with _as_ledger_error():
        if not there_are:
            marker.unlink(missing_ok=True)
            return
        run_dir.mkdir(parents=True, exist_ok=True)
        marker.touch()


class Markers:
    """The marker directory."""

    def __init__(self, directory: Path) -> None:
        """`directory` is made by `replace_all`, when it can tell the truth."""
        self._directory = directory

    def replace_all(self, containers: Iterable[ContainerId]) -> None:
        """Make the directory hold exactly these markers (after a reboot it is empty, the ledger is not).

        LedgerError when it cannot be made to.
        """
        with _as_ledger_error():
            self._replace_all(set(containers))

    def add(self, container: ContainerId) -> None:
        """Mark a container; before anything is changed for it. LedgerError when it cannot be marked."""
        with _as_ledger_error():
            (self._directory / container).touch()

    def discard(self, container: ContainerId) -> None:
        """Unmark a container; after everything of it is undone. LedgerError when it cannot be unmarked."""
        with _as_ledger_error():
            (self._directory / container).unlink(missing_ok=True)

    def count(self) -> int:
        """How many containers are marked."""
        return len(list(self._directory.iterdir())) if self._directory.is_dir() else 0

    @property
    def lost(self) -> bool:
        """Whether somebody took the directory away: then no container can be marked."""
        return not self._directory.is_dir()

    def require(self) -> None:
        """LedgerError when the directory is not there any more."""
        with _as_ledger_error():
            self._directory.stat()

    def _replace_all(self, wanted: set[ContainerId]) -> None:
        staging = self._directory if self._directory.is_dir() else self._directory.with_suffix(".new")
        staging.mkdir(parents=True, exist_ok=True)
        for container in wanted:
            (staging / container).touch()
        for marker in staging.iterdir():
            if marker.name not in wanted:
                marker.unlink()
        if staging != self._directory:
            staging.rename(self._directory)


@contextmanager
def _as_ledger_error() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        msg = f"markers of attached containers: {error.filename}: {error.strerror}"
        if isinstance(error, FileNotFoundError):
            msg += "; the agent makes the directory anew when it is restarted"
        raise LedgerError(msg) from error
