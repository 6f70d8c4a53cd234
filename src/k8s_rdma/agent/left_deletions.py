"""DELs that nobody answered: what the CNI executable leaves while no agent does (`cni/deletion.c`).

`<runDir>/deletions/<container>:<interface>:<network>` comes there whole, and then the runtime is told that
the attachment has ended. So it is over as soon as the file is there, which stays until the end is carried
out; the name alone says which. What is in the file, the call as `wire.frame` has it, only helps: it brings
the configuration of then.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from k8s_rdma.errors import LedgerError, MalformedError, printable
from k8s_rdma.wire.cni_environment import CniEnvironment, parse_environment
from k8s_rdma.wire.frame import MAX_ENV_BYTES, MAX_STDIN_BYTES, REQUEST_HEADER, decode_request

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from k8s_rdma.core.ledger import Attachment

_log = structlog.get_logger()

DIRECTORY = "deletions"
"""In `runDir`."""

DRAFT = "."
"""What the executable still writes begins with it, as no container's ID does."""

MAX_BYTES = REQUEST_HEADER.size + MAX_ENV_BYTES + MAX_STDIN_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftDeletion:
    """The call as it came to the executable. stdin: the network configuration."""

    call: CniEnvironment
    stdin: bytes


class LeftDeletions:
    """The directory. Blocking, and used by the agent's worker alone."""

    def __init__(self, directory: Path) -> None:
        """`directory` is made by `take`."""
        self._directory = directory
        self._withheld = directory.with_suffix(".withheld")

    def take(self) -> None:
        """Have the executable leave what it cannot tell us. LedgerError when it cannot be made to."""
        with suppress(OSError):
            self._withheld.rename(self._directory)
        self._make()

    def refuse(self) -> None:
        """Have DELs fail while no agent answers: nobody knows what a pod has, but by what it still has.

        What was left until now stays for the next `take`.
        """
        with suppress(OSError):
            self._directory.rename(self._withheld)

    def has(self, attachment: Attachment) -> bool:
        """Whether the runtime was told that this attachment has ended."""
        return os.path.lexists(self._path(attachment))

    def read(self, attachment: Attachment) -> LeftDeletion | None:
        """The DEL that was left of an attachment; None where none was, or not as this agent reads it."""
        if not self.has(attachment):
            return None
        try:
            with self._path(attachment).open("rb") as file:
                request = decode_request(file.read(MAX_BYTES + 1))
            return LeftDeletion(call=parse_environment(request.env), stdin=request.stdin)
        except (OSError, MalformedError) as error:
            _log.warning("left_deletion_unreadable", file=_name(attachment), error=printable(str(error)))
            return None

    def drop(self, attachment: Attachment) -> None:
        """What was left of it is carried out, or void. LedgerError when the file cannot be removed."""
        if self.has(attachment):
            self._remove(self._path(attachment))

    def of_others(self, attachments: Iterable[Attachment]) -> set[str]:
        """What was left of any others, also before `refuse`, by the names of the files."""
        return (left_in(self._directory) | left_in(self._withheld)) - set(map(_name, attachments))

    def keep_only(self, attachments: Iterable[Attachment]) -> None:
        """Remove what was left of any others, as far as that can be done now, and take more."""
        with suppress(LedgerError):
            self._make()
        for name in left_in(self._directory) - set(map(_name, attachments)):
            with suppress(LedgerError):
                self._remove(self._directory / name)
                _log.info("left_deletion_of_nothing", file=printable(name))

    def _make(self) -> None:
        """Only our own user looks in: network configurations may hold credentials."""
        with _as_ledger_error():
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _remove(self, path: Path) -> None:
        with _as_ledger_error():
            path.unlink(missing_ok=True)

    def _path(self, attachment: Attachment) -> Path:
        return self._directory / _name(attachment)


def _name(attachment: Attachment) -> str:
    """A file's name, as an attachment of the ledger has no slash in any of its parts (`wire.netconf`)."""
    return f"{attachment.container}:{attachment.ifname}:{attachment.network}"


def left_in(directory: Path) -> set[str]:
    """Names of the files that are whole; none where they are not ours to see."""
    with suppress(OSError):
        return {name for name in os.listdir(directory) if not name.startswith(DRAFT)}  # noqa: PTH208
    return set()


@contextmanager
def _as_ledger_error() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        msg = f"deletions that were left: {error.filename}: {error.strerror}"
        raise LedgerError(msg) from error
