"""Plugins of the node, executed as the CNI specification says: found, asked for their versions, run.

Source: CNI specification 1.1.0, section 2 "Execution protocol" and section 4 "Plugin delegation". A
plugin's output is bounded, and it ends with all its children when the call is given up. It dies with the
agent, too: an ADD that outlived the agent might lease what the next agent has already given back.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from k8s_rdma.agent.plugins.host_files import below
from k8s_rdma.core.ledger import DelegatedPlugin
from k8s_rdma.errors import K8sRdmaError, MalformedError, Reason
from k8s_rdma.wire.cni_result import SUPPORTED_VERSIONS, decode_error, decode_versions, highest_common
from k8s_rdma.wire.json import shown
from k8s_rdma.wire.netconf import decode_fields, decode_netconf, plugin_type, refuse
from k8s_rdma.wire.plugin_config import delegate_config, in_network_of, ipam_config, ipam_network

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    import msgspec

    from k8s_rdma.core.ledger import Receipt
    from k8s_rdma.wire.cni_environment import CniEnvironment
    from k8s_rdma.wire.netconf import NetConf


MOST_STDOUT_BYTES = 8 << 20
"""A result with a thousand routes takes a hundredth of it; without a bound, one plugin takes all memory."""

KEPT_STDERR_BYTES = 8000
"""The last ones: however much it logs, what it failed of comes at the end."""

DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")
"""A program of util-linux, as a pre-exec hook is not safe in a threaded Python."""

_EXEC_POLL_INTERVAL_S = 0.0005
"""Its exec takes a millisecond; the program that it runs takes longer than this until it reads."""
_STDIN, _STDOUT = 0, 1
_VERSION_QUESTION = b'{"cniVersion":"1.0.0"}'

_DUMMY = "dummy"
"""What VERSION has in place of a container, as plugins built with an old libcni demand it."""

_HOST_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where a plugin may find the node's programs, such as iptables, beside our own PATH."""

_SHOWN = 2000
"""Characters of a plugin's stderr that an error tells: the last ones."""

_NO_VERB = "not implemented"
"""What plugins say to a verb that they do not have, though their version of CNI does, for which it has no
error code (whereabouts 0.9.3, `cmd/whereabouts.go`: "CNI CHECK method is not implemented")."""


class NoAnswerError(K8sRdmaError):
    """A plugin took longer than it may, and was killed; the same call again would take as long."""


class NoVerbError(K8sRdmaError):
    """A plugin does not have the verb that it was called by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a call is about. netns: the namespace's path; empty, on DEL, for one that is gone."""

    container: str
    netns: str
    ifname: str


def target_of(receipt: Receipt, ifname: str | None = None) -> Target:
    """One interface of an attachment; by default what the attachment itself is called."""
    return Target(
        container=receipt.attachment.container,
        netns=receipt.netns.path,
        ifname=receipt.attachment.ifname if ifname is None else ifname,
    )


class Plugins:
    """Runs plugins of the node whose root file system is at `host_root`; each call within `timeout_s`."""

    def __init__(self, *, host_root: Path, timeout_s: float, reason: Reason = Reason.IPAM_FAILURE) -> None:
        """reason: of the errors raised when a plugin fails."""
        self._host_root = host_root
        self._timeout_s = timeout_s
        self._reason = reason
        self._versions: dict[Path, tuple[tuple[int, ...], tuple[str, ...]]] = {}

    def require(self, plugin: DelegatedPlugin) -> None:
        """K8sRdmaError when the plugin is not on this node: said before anything is claimed."""
        self._find(plugin)

    async def versions(self, plugin: DelegatedPlugin) -> tuple[str, ...]:
        """What it speaks, by VERSION; asked again when another file has taken its place."""
        path, identity = self._identified(plugin)
        known, versions = self._versions.get(path, ((), ()))
        if known != identity:
            dummy = Target(container=_DUMMY, netns=_DUMMY, ifname=_DUMMY)
            stdout = await self.run(plugin, "VERSION", _VERSION_QUESTION, dummy)
            try:
                versions = decode_versions(stdout)
            except MalformedError as error:
                raise self._failed(f"plugin {plugin.plugin} does not tell its versions: {error}") from error
            self._versions[path] = identity, versions
        return versions

    async def negotiate(self, plugin: DelegatedPlugin, limit: str = SUPPORTED_VERSIONS[-1]) -> str:
        """The highest version that both sides know. K8sRdmaError (`INCOMPATIBLE_CNI_VERSION`) without one."""
        theirs = await self.versions(plugin)
        version = highest_common(theirs, limit)
        if version is None:
            msg = f"plugin {plugin.plugin} speaks CNI {', '.join(theirs)}, none of which goes with {limit}"
            raise K8sRdmaError(msg, reason=Reason.INCOMPATIBLE_CNI_VERSION)
        return version

    async def run(
        self, plugin: DelegatedPlugin, verb: str, stdin: bytes, target: Target | None = None
    ) -> bytes:
        """What the plugin prints. K8sRdmaError when it fails, is not there, or takes too long; NoVerbError.

        A call that is given up, in time or by cancellation, is killed with all its children.
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
            raise NoAnswerError(msg, reason=self._reason) from error
        except OSError as error:
            raise self._failed(f"{call}: cannot run {DIES_WITH_US[0]}: {error.strerror}") from error
        details = ended.stderr.decode(errors="replace").strip()[-_SHOWN:]
        if ended.overflow:
            raise self._failed(f"{call}: it prints more than {MOST_STDOUT_BYTES >> 20} MiB", details)
        if ended.status:
            said = decode_error(ended.stdout) or _delete_command(ended.status)
            if _NO_VERB in said:
                raise NoVerbError(f"{call}: {said}", reason=self._reason, details=details)
            raise self._failed(f"{call}: {said}", details)
        return ended.stdout

    def _find(self, plugin: DelegatedPlugin) -> tuple[Path, Path]:
        """Its path on the node, and that by which we reach the file."""
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
        """Its path on the node, and what tells which file it is by now."""
        path, inside = self._find(plugin)
        try:
            status = inside.stat()
        except OSError as error:  # taken away, or its successor is not yet in its place
            raise self._failed(f"plugin {plugin.plugin}: {path}: {error.strerror}") from error
        return path, (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    def _command(self, path: Path, target: Target | None) -> list[str]:
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


def _delete_command(code: int) -> str:
    return f"exit status {code}" if code > 0 else f"killed by signal {-code} ({signal.strsignal(-code)})"


def _environment(plugin: DelegatedPlugin, verb: str, target: Target | None) -> Mapping[str, str]:
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
class CalledPlugins:
    """As in `core.ledger.Receipt`: what gives addresses, and what gives pods their ordinary interface."""

    ipam: DelegatedPlugin | None = None
    ipams: tuple[tuple[str, DelegatedPlugin | None], ...] = ()
    delegate: DelegatedPlugin | None = None

    @property
    def all_ipams(self) -> tuple[DelegatedPlugin, ...]:
        """What gives addresses in any of the networks."""
        return tuple(each for each in (self.ipam, *dict(self.ipams).values()) if each)

    def ipam_in(self, network: str) -> DelegatedPlugin | None:
        """What gives addresses to an interface that names this network, or none by an empty name."""
        return dict(self.ipams).get(network, self.ipam)


def plugins_of_now(stdin: bytes, call: CniEnvironment) -> CalledPlugins | None:
    """Those of a DEL's configuration; None where that cannot be read, on which no DEL may depend."""
    try:
        conf = decode_netconf(stdin, strict=False)
        return called_plugins(stdin, conf, call, chained=conf.chained)
    except MalformedError:
        return None


async def delete_by(
    recorded: DelegatedPlugin,
    now: DelegatedPlugin | None,
    delete: Callable[[DelegatedPlugin], Awaitable[None]],
) -> None:
    """DEL by the recorded configuration; where that fails, by another one of now.

    now: the recorded one itself where something is held by it. None where nothing is named: then the failure
        stands, since a plugin that failed may have leased all the same, and nobody else would end that. It
        would have leased in the recorded network, which a DEL, that is not told whether it is chained, can
        not know: by another name the DEL of a lease that nobody knows succeeds.
    """
    try:
        await delete(recorded)
    except K8sRdmaError:
        other = now and replace(
            now, cni_args=recorded.cni_args, netconf=in_network_of(recorded.netconf, now.netconf)
        )
        if other is None or other == recorded:
            raise
        await delete(other)


def called_plugins(stdin: bytes, conf: NetConf, call: CniEnvironment, *, chained: bool) -> CalledPlugins:
    """Read them; MalformedError (`INVALID_NETCONF`) names the key.

    chained: whether another plugin gives addresses under the network's name, so that ours are apart.
    """
    fields = decode_fields(stdin)
    delegate = plugin_type(conf.delegate, "delegate")
    if delegate == conf.type:
        refuse("delegate.type", f"{shown(delegate)} is this very plugin")

    def plugin(name: str, netconf: bytes) -> DelegatedPlugin:
        return DelegatedPlugin(plugin=name, netconf=netconf, cni_path=call.path, cni_args=call.raw_args)

    def ipam(document: msgspec.Raw, key: str, attachment: str = "") -> DelegatedPlugin | None:
        name = plugin_type(document, key)
        if name is None:
            return None
        network = ipam_network(conf.name, chained=chained or delegate is not None, network=attachment)
        return plugin(name, ipam_config(fields, document, network))

    return CalledPlugins(
        ipam=None if conf.l2enable else ipam(conf.ipam, "ipam"),
        ipams=tuple(
            (name, None if each.l2enable else ipam(each.ipam, f"networks.{name}.ipam", name))
            for name, each in conf.networks.items()
        ),
        delegate=None if delegate is None else plugin(delegate, delegate_config(fields, conf.delegate)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What came of it. overflow: it was killed, as it printed more than `MOST_STDOUT_BYTES`.

    status: as `subprocess.Popen.returncode`. stderr: its end.
    """

    status: int
    stdout: bytes
    stderr: bytes
    overflow: bool


async def converse(command: Sequence[str], stdin: bytes, env: Mapping[str, str], timeout_s: float) -> Ended:
    """Run a command in a process group of its own until it and whatever it prints have ended.

    OSError when it cannot be run, TimeoutError after timeout_s. Then, and when this call is cancelled, its
    process group is killed, and those who left that with its output in hand are waited for no longer.

    stdin is fed when the process is sure to die with us: should we die before, it reads nothing.
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
    try:
        async with asyncio.timeout(timeout_s):
            await _sure_to_die_with_us(transport.get_pid(), listening.exited)
            feed = cast("asyncio.WriteTransport", transport.get_pipe_transport(_STDIN))
            feed.write(stdin)
            feed.close()
            await listening.finished.wait()
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
    """Until the process runs what comes after `DIES_WITH_US`, or has failed to: nothing tells of either."""
    while not exited.is_set() and _runs(pid) == DIES_WITH_US[0]:  # noqa: ASYNC110 - of a file
        await asyncio.sleep(_EXEC_POLL_INTERVAL_S)


def _runs(pid: int) -> str | None:
    """The program that a process is (proc(5), `/proc/pid/exe`); None when it is gone.

    Not by its `comm`, which is ours for a moment yet when the spawn returns: exec lets the parent go on once
    the program is there, and names the process later (`begin_new_exec` in fs/exec.c, 6.1).
    """
    try:
        return Path(f"/proc/{pid}/exe").readlink().name
    except (FileNotFoundError, ProcessLookupError):
        return None


class _OutputReader(asyncio.SubprocessProtocol):
    """Keeps what is said. finished: it ended, and nobody can say anything more."""

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
