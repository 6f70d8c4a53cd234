"""Execution of the node's plugins by the CNI specification: search, version negotiation, run.

Source: CNI specification 1.1.0, section 2 "Execution protocol" and section 4 "Plugin delegation". A
plugin's output is bounded, and it ends with all its children soon after the call is given up. It dies with
the agent, too: an ADD that outlived the agent might lease what the next agent has already given back.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, TypeVar, cast

from k8s_rdma.errors import K8sRdmaError, MalformedError, Reason
from k8s_rdma.linux.host_root import below
from k8s_rdma.wire.cni_result import SUPPORTED_VERSIONS, decode_error, decode_versions, highest_common

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from k8s_rdma.core.ledger import DelegatedPlugin, Receipt


AnyPath = TypeVar("AnyPath", bound=PurePath)

MOST_STDOUT_BYTES = 8 << 20
"""The longest output of a plugin. A result with a thousand routes takes a hundredth of it; without a bound,
one plugin could take all memory."""

KEPT_STDERR_BYTES = 8000
"""The last bytes of stderr that are kept: the cause of a failure comes at the end."""

DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")
"""A program of util-linux; a pre-exec hook is not safe in a threaded Python."""

CANCEL_GRACE_S = 2.0
"""The time that a plugin has to end when its call is cancelled, as by the agent's end. host-local killed
inside ADD may leave an empty lease file, whose address no DEL gives back (1.1.1,
`plugins/ipam/host-local/backend/disk/backend.go`, `Reserve`)."""

_EXEC_POLL_INTERVAL_S = 0.0005
"""The interval of polls for the exec of `DIES_WITH_US`, which takes a millisecond; a plugin takes longer
until it reads."""
_STDIN, _STDOUT = 0, 1
_VERSION_QUESTION = b'{"cniVersion":"1.0.0"}'

_DUMMY = "dummy"
"""A stand-in for the container in VERSION calls, which plugins built with an old libcni demand."""

_HOST_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The directories of the node's programs, such as iptables, for plugins, beside our own PATH."""

_SHOWN = 2000
"""The last characters of a plugin's stderr that an error shows."""

_NO_VERB = "not implemented"
"""The message of plugins without a verb that their CNI version has; CNI has no error code for it (whereabouts
0.9.3, `cmd/whereabouts.go`: "CNI CHECK method is not implemented")."""


class PluginTimeoutError(K8sRdmaError):
    """A plugin exceeded its time and was killed; the same call again would take as long."""


class NoVerbError(K8sRdmaError):
    """A plugin does not implement the verb of a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginTarget:
    """The interface that a call is for. netns: the namespace's path; empty, on DEL, for one that is gone."""

    container: str
    netns: str
    ifname: str


def target_of(receipt: Receipt, ifname: str | None = None) -> PluginTarget:
    """Select one interface of an attachment; by default the one named by `CNI_IFNAME`."""
    return PluginTarget(
        container=receipt.attachment.container,
        netns=receipt.netns.path,
        ifname=receipt.attachment.ifname if ifname is None else ifname,
    )


class Plugins:
    """Runs plugins of the node whose root file system is at `host_root`; each call within `timeout_s`."""

    def __init__(self, *, host_root: Path, timeout_s: float, reason: Reason = Reason.IPAM_FAILURE) -> None:
        """reason: the reason of errors when a plugin fails."""
        self._host_root = host_root
        self._timeout_s = timeout_s
        self._reason = reason
        self._versions: dict[Path, tuple[tuple[int, ...], tuple[str, ...]]] = {}

    def require(self, plugin: DelegatedPlugin) -> None:
        """Raise K8sRdmaError when the plugin is not on this node; called before a claim."""
        self._find(plugin)

    async def versions(self, plugin: DelegatedPlugin) -> tuple[str, ...]:
        """Read the plugin's versions by a VERSION call, repeated when its file was replaced."""
        path, identity = self._identified(plugin)
        cached_identity, versions = self._versions.get(path, ((), ()))
        if cached_identity != identity:
            dummy = PluginTarget(container=_DUMMY, netns=_DUMMY, ifname=_DUMMY)
            stdout = await self.run(plugin, "VERSION", _VERSION_QUESTION, dummy)
            try:
                versions = decode_versions(stdout)
            except MalformedError as error:
                raise self._failed(f"plugin {plugin.plugin} does not tell its versions: {error}") from error
            self._versions[path] = identity, versions
        return versions

    async def negotiate(self, plugin: DelegatedPlugin, limit: str = SUPPORTED_VERSIONS[-1]) -> str:
        """Find the highest common version. K8sRdmaError (`INCOMPATIBLE_CNI_VERSION`) without one."""
        theirs = await self.versions(plugin)
        version = highest_common(theirs, limit)
        if version is None:
            msg = f"plugin {plugin.plugin} speaks CNI {', '.join(theirs)}, none compatible with {limit}"
            raise K8sRdmaError(msg, reason=Reason.INCOMPATIBLE_CNI_VERSION)
        return version

    async def run(
        self, plugin: DelegatedPlugin, verb: str, stdin: bytes, target: PluginTarget | None = None
    ) -> bytes:
        """Run a plugin and return its output. K8sRdmaError when it fails, is missing, or takes too long.

        NoVerbError when it does not implement the verb. After a time-out, or `CANCEL_GRACE_S` after a
        cancellation, it is killed with all its children.
        """
        path, _ = self._find(plugin)
        call = f"plugin {plugin.plugin}: {verb}" + (
            f" of {target.ifname}" if target and verb != "VERSION" else ""
        )
        try:
            ended = await converse(
                self._command(path, target), stdin, _environment(plugin, verb, target), self._timeout_s
            )
        except TimeoutError as error:
            msg = f"{call}: no answer within {self._timeout_s:g} s"
            raise PluginTimeoutError(msg, reason=self._reason) from error
        except OSError as error:
            raise self._failed(f"{call}: cannot run {DIES_WITH_US[0]}: {error.strerror}") from error
        details = ended.stderr.decode(errors="replace").strip()[-_SHOWN:]
        if ended.overflow:
            raise self._failed(f"{call}: it prints more than {MOST_STDOUT_BYTES >> 20} MiB", details)
        if ended.status:
            cni_error = decode_error(ended.stdout) or _exit_reason(ended.status)
            if _NO_VERB in cni_error:
                raise NoVerbError(f"{call}: {cni_error}", reason=self._reason, details=details)
            raise self._failed(f"{call}: {cni_error}", details)
        return ended.stdout

    def _find(self, plugin: DelegatedPlugin) -> tuple[Path, Path]:
        """Find the plugin's path on the node, and its path for this process."""
        for directory in filter(None, plugin.cni_path.split(":")):
            path = Path("/", directory, plugin.plugin)
            with suppress(OSError):  # such as of a name that is too long for any file
                inside = below(self._host_root, path)
                if inside.is_file() and os.access(inside, os.X_OK):
                    return path, inside
        raise self._failed(
            f"plugin {plugin.plugin!r} is not in CNI_PATH {plugin.cni_path!r} (below {self._host_root}); "
            "install it on the node"
        )

    def _identified(self, plugin: DelegatedPlugin) -> tuple[Path, tuple[int, ...]]:
        """Find the plugin's path on the node, and the identity of its current file."""
        path, inside = self._find(plugin)
        try:
            status = inside.stat()
        except OSError as error:  # taken away, or its successor is not yet in its place
            raise self._failed(f"plugin {plugin.plugin}: {path}: {error.strerror}") from error
        return path, (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    def _command(self, path: Path, target: PluginTarget | None) -> list[str]:
        # A program of util-linux, as a pre-exec hook is not safe in a threaded Python. The node's /proc knows
        # no pids of a container, by which plugins look themselves up there (libcni 1.2, `CheckNetNS` in
        # pkg/ns/ns_linux.go): they have one of their own, unless the namespace is named by a pid of the node.
        # What the node unmounts meanwhile goes here, too: no pod's namespace outlives it for one that hangs.
        if self._host_root == Path("/"):
            return [str(path)]
        by_pid = target is not None and target.netns.startswith("/proc/")
        own_proc = [] if by_pid else ["--propagation=slave", "--mount-proc"]
        return ["unshare", f"--root={self._host_root}", *own_proc, str(path)]

    def _failed(self, message: str, details: str = "") -> K8sRdmaError:
        return K8sRdmaError(message, reason=self._reason, details=details)


def _exit_reason(code: int) -> str:
    return f"exit status {code}" if code > 0 else f"killed by signal {-code} ({signal.strsignal(-code)})"


def _environment(plugin: DelegatedPlugin, verb: str, target: PluginTarget | None) -> Mapping[str, str]:
    common = {
        "PATH": f"{os.environ.get('PATH') or os.defpath}:{_HOST_PATH}",
        "CNI_COMMAND": verb,
        "CNI_PATH": plugin.cni_path,
    }
    if target is None:
        return common
    return common | {
        "CNI_CONTAINERID": target.container,
        "CNI_NETNS": target.netns,
        "CNI_IFNAME": target.ifname,
        "CNI_ARGS": plugin.cni_args,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The outcome of a command. overflow: it was killed, since it printed more than `MOST_STDOUT_BYTES`.

    status: as `subprocess.Popen.returncode`. stderr: its end.
    """

    status: int
    stdout: bytes
    stderr: bytes
    overflow: bool


async def converse(command: Sequence[str], stdin: bytes, env: Mapping[str, str], timeout_s: float) -> Ended:
    """Run a command in a process group of its own until it has ended and its output is closed.

    OSError when it cannot be run, TimeoutError after timeout_s. Then, and `CANCEL_GRACE_S` after this call is
    cancelled, its process group is killed; processes that left the group with its output are not waited for.

    stdin is written once the process is sure to die with this one: should this one die before, it reads
    nothing.
    """
    loop = asyncio.get_running_loop()
    transport, listening = await loop.subprocess_exec(
        _OutputReader,
        *DIES_WITH_US,
        *command,
        env=env,
        cwd="/",
        process_group=0,
    )
    feed = None
    try:
        async with asyncio.timeout(timeout_s):
            await _sure_to_die_with_us(transport.get_pid(), listening.exited)
            feed = cast("asyncio.WriteTransport", transport.get_pipe_transport(_STDIN))
            feed.write(stdin)
            feed.close()
            await listening.finished.wait()
    except asyncio.CancelledError:
        if feed is not None:  # it has read its call, and may be doing it
            with suppress(TimeoutError):
                await asyncio.wait_for(listening.finished.wait(), CANCEL_GRACE_S)
        raise
    finally:
        if not listening.finished.is_set():
            _kill(transport.get_pid())
            await listening.exited.wait()
        transport.close()
    return Ended(
        status=cast("int", transport.get_returncode()),
        stdout=bytes(listening.stdout),
        stderr=bytes(listening.stderr),
        overflow=listening.overflow,
    )


async def _sure_to_die_with_us(pid: int, exited: asyncio.Event) -> None:
    """Wait until the process runs the command after `DIES_WITH_US`, or has failed to; neither is notified."""
    while not exited.is_set() and _runs(pid) == DIES_WITH_US[0]:  # noqa: ASYNC110 - of a file
        await asyncio.sleep(_EXEC_POLL_INTERVAL_S)


def _runs(pid: int) -> str | None:
    """Read the name of a process's program (proc(5), `/proc/pid/exe`); None when it is gone.

    Not by its `comm`, which is ours for a moment yet when the spawn returns: exec lets the parent go on once
    the program is there, and names the process later (`begin_new_exec` in fs/exec.c, 6.1).
    """
    try:
        return Path(f"/proc/{pid}/exe").readlink().name
    except (FileNotFoundError, ProcessLookupError):
        return None


class _OutputReader(asyncio.SubprocessProtocol):
    """Collects a process's output. finished: it ended, and all its pipes are closed."""

    def __init__(self) -> None:
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.overflow = False
        self.exited = asyncio.Event()
        self.finished = asyncio.Event()
        self._pid = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._pid = cast("asyncio.SubprocessTransport", transport).get_pid()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd != _STDOUT:
            self.stderr += data
            del self.stderr[:-KEPT_STDERR_BYTES]
        elif not self.overflow:
            self.stdout += data
            self.overflow = len(self.stdout) > MOST_STDOUT_BYTES
            if self.overflow:
                self.stdout.clear()
                _kill(self._pid)

    def process_exited(self) -> None:
        self.exited.set()

    def connection_lost(self, _: Exception | None) -> None:
        self.finished.set()


def _kill(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
