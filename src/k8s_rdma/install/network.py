"""Our file in the runtime's configuration directory: its desired content, and its writing.

The other plugin's file is never touched. Ours is made of it, sorts before it, and goes when it goes.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from k8s_rdma.errors import K8sRdmaError, MalformedError
from k8s_rdma.install.network_mode import NetworkMode
from k8s_rdma.wire.conflist import (
    PLUGIN,
    UnfitError,
    chained_list,
    gives_no_interface,
    is_chained,
    is_read,
    lone_list,
    names_ours,
    read_origin,
    same_list,
)

if TYPE_CHECKING:
    from k8s_rdma.install.directory import NodeDirectory

MODE = 0o600
"""Others' files may hold secrets, and so may a copy of one; runtimes run as root."""

_NO_FILE = frozenset({errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO})
"""Errors besides ENOENT for an entry that is no file, such as a pipe or a link to a device."""
_NO_OTHER = "no network of another plugin is there; install the cluster's (--wait and --follow wait for it)"


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredConflist:
    """file: ours, which sorts before the other's. section: our plugin's.

    name, version: of the network, if our plugin stands alone.
    """

    network: NetworkMode
    file: str
    section: msgspec.Raw
    name: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledConflists:
    """Contents of the directory.

    own: the content of our file, if it exists.
    former: others of ours, under a name of before.
    rival: the first file of another program by which pods get an interface; empty without one.
    data: its content.
    unreadable: why that is unknown.
    """

    own: bytes | None
    former: tuple[str, ...] = ()
    rival: str = ""
    data: bytes = b""
    unreadable: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """own: the content that our file should have, if any. problem: why our plugin is not where it should be.

    by_hand: the other's file has our plugin already, where it should be.
    """

    own: bytes | None
    problem: str = ""
    rival: str = ""
    by_hand: bool = False


def decide(found: InstalledConflists, desired: DesiredConflist) -> Decision:
    """Return the content that our file should have; the previous one while the other file is malformed.

    A file in which an administrator chained our plugin by hand stays as it is.
    """
    if desired.network is NetworkMode.ALONE:
        own = lone_list(desired.name, desired.version, desired.section)
        return Decision(own=found.own if same_list(own, found.own) else own, problem=_hidden(found, desired))
    if not found.rival:
        return Decision(own=None, problem=_NO_OTHER)
    try:
        if not found.unreadable and is_chained(found.rival, found.data):
            return Decision(own=None, rival=found.rival, by_hand=True)
        own = _chained(found, desired)
    except UnfitError as error:
        return Decision(own=None, problem=error.message, rival=found.rival)
    except MalformedError as error:
        return Decision(own=found.own, problem=error.message, rival=found.rival)
    return Decision(own=found.own if same_list(own, found.own) else own, rival=found.rival)


def _chained(found: InstalledConflists, desired: DesiredConflist) -> bytes:
    if hidden := _hidden(found, desired):
        raise UnfitError(hidden)
    if found.unreadable:
        raise MalformedError(f"{found.rival}: {found.unreadable}")
    return chained_list(found.rival, found.data, desired.section, found.own)


def _hidden(found: InstalledConflists, desired: DesiredConflist) -> str:
    """Return the reason why no runtime reads our file; empty if one does."""
    if not found.rival or os.fsencode(found.rival) > os.fsencode(desired.file):
        return ""
    return f"{found.rival}: comes before {desired.file}, which no runtime would read; name ours otherwise"


class ConfDirectory:
    """The runtime's configuration directory, and our file in it."""

    def __init__(self, directory: NodeDirectory, file: str) -> None:
        """Set the paths only."""
        self._directory = directory
        self._file = file
        self.path = directory.path / file

    def read(self) -> InstalledConflists:
        """Read the present files; K8sRdmaError if the directory cannot be read."""
        try:
            return self._read_once()
        except OSError as error:
            raise _failed(f"{self._directory.path}: cannot be looked at", error) from error

    def apply(self, decision: Decision, found: InstalledConflists) -> bool:
        """Make it so; report whether there was a change. K8sRdmaError names a file that cannot be written."""
        changed = decision.own != found.own
        try:
            if changed and decision.own is not None:
                self._directory.write(self._file, decision.own, mode=MODE)
            elif changed:
                self._directory.remove(self._file)
            for name in found.former:
                self._directory.remove(name)
        except OSError as error:
            raise _failed(f"{self.path}: cannot be written", error) from error
        return changed or bool(found.former)

    def remove(self) -> bool:
        """Remove our files; report whether there were any. K8sRdmaError if that fails."""
        try:
            if not self._directory.path.is_dir():
                return False
            former = self._read_once().former
            return sum(self._directory.remove(name) for name in (*former, self._file)) > 0
        except OSError as error:
            raise _failed(f"{self.path}: cannot be removed", error) from error

    def others_with_ours(self) -> tuple[str, ...]:
        """Files of others by which our plugin is called; K8sRdmaError when that cannot be known."""
        try:
            if not self._directory.path.is_dir():
                return ()
            names = [name for name in filter(is_read, self._directory.names()) if name != self._file]
            return tuple(name for name in names if self._calls_ours(name))
        except OSError as error:
            raise _failed(f"{self._directory.path}: cannot be looked at", error) from error

    def _calls_ours(self, name: str) -> bool:
        try:
            text = self._directory.read(name)
        except OSError as error:
            if error.errno in _NO_FILE:
                return False
            raise
        if text is None and (aim := self._directory.explain_loss(name)):
            raise K8sRdmaError(
                f"{self._directory.path / name}: leads to {aim}, which does not exist here: whether "
                f"{PLUGIN} is in use there is unknown; mount the target as well, or remove the link"
            )
        return text is not None and read_origin(text) is None and names_ours(text)

    def _read_once(self) -> InstalledConflists:
        own, former, unmanaged = None, [], ""
        data, unreadable = b"", ""
        for name in filter(is_read, self._directory.names()):
            text, why = self._read(name)
            if text is None and not why:
                continue
            if name == self._file:
                own = text
            elif text is not None and read_origin(text) is not None:
                former.append(name)
            elif not unmanaged and not self._is_beside_ours(name, text):
                unmanaged, data, unreadable = name, text or b"", why
        return InstalledConflists(
            own=own, former=tuple(former), rival=unmanaged, data=data, unreadable=unreadable
        )

    def _is_beside_ours(self, name: str, text: bytes | None) -> bool:
        """Report whether a file gives no interface, such as the loopback's; one before ours counts as one."""
        behind = os.fsencode(name) > os.fsencode(self._file)
        return behind and text is not None and gives_no_interface(name, text)

    def _read(self, name: str) -> tuple[bytes | None, str]:
        """Return a file's content, or why it is unreadable; neither if it has just disappeared.

        A link to a missing file is a file to runtimes, which fail with it.
        """
        try:
            text = self._directory.read(name)
        except OSError as error:
            return None, error.strerror or str(error)
        if text is None and (self._directory.path / name).is_symlink():
            return None, "a link that leads nowhere from here"
        return text, ""


def _failed(operation: str, error: OSError) -> K8sRdmaError:
    return K8sRdmaError(f"{operation}: {error.strerror or error}", details=str(error))
