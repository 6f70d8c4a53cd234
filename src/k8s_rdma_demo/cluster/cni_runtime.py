"""containerd's part in a pod's network: network namespaces, and the CNI verbs on a chain of plugins.

    runtime = CniRuntime([Path("/opt/cni/bin")], Path("10-pods.conflist"), Path("/run/netns"))
    sandbox = await runtime.add(PodRef(namespace="default", name="p1", uid="..."))
    await runtime.delete(sandbox)

A namespace lives as long as its file. It needs root, or a user namespace with a mount namespace (`unshare
-Urmn`).

Sources: CNI specification 1.1.0, section 3; `libcni/api.go`; containerd `internal/cri/server/sandbox_run.go`,
`sandbox_stop.go` and `pkg/netns`; recorded calls of containerd 2.1; namespaces(7), unshare(2), mount(2).
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import os
import secrets
import socket
import struct
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from k8s_rdma.errors import KernelError, MalformedError
from k8s_rdma_demo.cluster.cni_plugin import CniError, Invocation, decode_result, run_plugin
from k8s_rdma_demo.cluster.cni_results import result_in_version
from k8s_rdma_demo.cluster.conflist import Conflist, load_conflist
from k8s_rdma_demo.cluster.sandboxes import IFNAME, AttachError, PodRef, Sandbox

if TYPE_CHECKING:
    from k8s_rdma_demo.cluster.objects import JsonObject

_CLONE_NEWNET = 0x40000000
_MS_BIND = 4096
_MNT_DETACH = 2
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1
_IFREQ_FLAGS = "16sH22x"  # struct ifreq with ifr_flags
_libc = ctypes.CDLL(None, use_errno=True)  # os.unshare comes with Python 3.12; mount(2) is nowhere

POD_ANNOTATIONS = "io.kubernetes.cri.pod-annotations"
"""The capability by which a plugin asks for the pod's annotations."""

_TIMEOUT_S = 240.0  # kubelet gives RunPodSandbox twice its `runtimeRequestTimeout` of 2 minutes


def create_namespace_at(path: Path) -> None:
    """Make a network namespace with `lo` up, bound to a new file; KernelError leaves no trace."""
    failures: list[OSError] = []

    def create() -> None:
        try:
            _call("unshare", _CLONE_NEWNET)
            _call("mount", b"/proc/thread-self/ns/net", os.fsencode(path), None, _MS_BIND, None)
            _bring_loopback_up()
        except OSError as error:
            failures.append(error)

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(exist_ok=False)
    except OSError as error:
        msg = f"network namespace {path}: {error.strerror}"
        raise KernelError(msg) from error
    # The namespace of a thread cannot be undone, so that a thread of its own makes it and ends.
    thread = threading.Thread(target=create, name="netns")
    thread.start()
    thread.join()
    if failures:
        remove_namespace_at(path)
        msg = f"network namespace {path}: {failures[0]}"
        raise KernelError(msg) from failures[0]


def remove_namespace_at(path: Path) -> None:
    """Let go of the namespace and remove the file; the namespace ends with its last user. Twice is once."""
    with suppress(OSError):  # not mounted
        _call("umount2", os.fsencode(path), _MNT_DETACH)
    path.unlink(missing_ok=True)


def is_namespace(path: Path) -> bool:
    """Report whether a namespace is bound to the file: it is then on the kernel's nsfs."""
    try:
        return path.stat().st_dev == os.stat("/proc/self/ns/net").st_dev  # noqa: PTH116 - a stat of a link
    except OSError:
        return False


def _bring_loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        answer = fcntl.ioctl(control, _SIOCGIFFLAGS, struct.pack(_IFREQ_FLAGS, b"lo", 0))
        _, flags = struct.unpack(_IFREQ_FLAGS, answer)
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack(_IFREQ_FLAGS, b"lo", flags | _IFF_UP))


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


@dataclass(slots=True)
class CniRuntime:
    """Runs the chain that a conflist file describes; the file is read anew for every call.

    cni_path: directories with plugins. netns_dir: where namespaces are bound.
    timeout_s: how long one plugin may take.
    """

    cni_path: Sequence[Path]
    conflist: Path
    netns_dir: Path
    timeout_s: float = _TIMEOUT_S

    def __post_init__(self) -> None:
        # Plugins run in `/`: a path that is relative to here would be another one there.
        self.cni_path = [directory.absolute() for directory in self.cni_path]
        self.netns_dir = self.netns_dir.absolute()

    async def add(self, pod: PodRef) -> Sandbox:
        """Make a pod's sandbox and its network (`create` and `attach`); AttachError."""
        return await self.attach(await self.create(pod))

    async def create(self, pod: PodRef) -> Sandbox:
        """Make a sandbox with an empty network namespace of its own; KernelError."""
        netns = self.netns_dir / f"cni-{uuid.uuid4()}"
        await asyncio.to_thread(create_namespace_at, netns)
        return Sandbox(container_id=secrets.token_hex(32), pod=pod, netns=str(netns))

    async def attach(self, sandbox: Sandbox) -> Sandbox:
        """ADD: every plugin in turn gets the result of the one before it; the sandbox with the last result.

        A failure is followed by DEL of the whole chain, the plugin that failed included, and by the
        namespace's end. A pod without an address on its own interface counts as failed too.
        """
        try:
            attached = replace(sandbox, result=await self._add(sandbox))
        except CniError as error:
            raise await self._attach_error(error, sandbox) from error
        if not attached.ips:
            missing = CniError(f'failed to find network info for sandbox "{sandbox.container_id}"')
            raise await self._attach_error(missing, attached)
        return attached

    async def delete(self, sandbox: Sandbox) -> None:
        """DEL with the result of ADD, then the namespace's end; may be repeated until it succeeds."""
        await self.detach(sandbox)
        remove_namespace_at(Path(sandbox.netns))

    async def detach(self, sandbox: Sandbox) -> None:
        """DEL: the chain in reverse, by the conflist of now; the first failure ends it (CniError).

        CNI_NETNS is empty once the namespace is gone.
        """
        conflist = self._load()
        prev_result = self._prev_result(conflist, sandbox)
        for plugin in reversed(conflist.plugins):
            stdin = conflist.stdin_for(
                plugin, prev_result=prev_result, capability_args=_capability_args(sandbox)
            )
            with _naming_plugin("DEL", plugin):
                await self._run("DEL", plugin, stdin, sandbox)

    async def list_dead(self, sandboxes: Sequence[Sandbox]) -> Sequence[Sandbox]:
        """List the sandboxes without their namespace; they have no process that could end."""
        return [sandbox for sandbox in sandboxes if not is_namespace(Path(sandbox.netns))]

    async def check(self, sandbox: Sandbox) -> None:
        """CHECK with the result of ADD; CniError from the first plugin that finds something amiss."""
        conflist = self._load()
        if not conflist.at_least("0.4.0"):
            raise CniError(
                f'configuration version "{conflist.cni_version}" does not support the CHECK command'
            )
        if conflist.disable_check:
            return
        prev_result = self._prev_result(conflist, sandbox)
        for plugin in conflist.plugins:
            stdin = conflist.stdin_for(
                plugin, prev_result=prev_result, capability_args=_capability_args(sandbox)
            )
            await self._run("CHECK", plugin, stdin, sandbox)

    async def status(self) -> None:
        """STATUS, which there is from version 1.1.0 on; CniError from the first plugin that is not ready."""
        conflist = self._load()
        if conflist.at_least("1.1.0"):
            for plugin in conflist.plugins:
                await self._run("STATUS", plugin, conflist.stdin_for(plugin))

    async def gc(self, valid: Sequence[Sandbox]) -> None:
        """GC with the attachments that are still in use, which there is from version 1.1.0 on.

        Every plugin is asked; CniError tells of all that failed.
        """
        conflist = self._load()
        if not conflist.at_least("1.1.0"):
            return
        attachments = [{"containerID": sandbox.container_id, "ifname": IFNAME} for sandbox in valid]
        # Libraries before and after the specification's last word use the one key or the other.
        extra = {"cni.dev/attachments": attachments, "cni.dev/valid-attachments": attachments}
        failures = []
        for plugin in conflist.plugins:
            try:
                await self._run("GC", plugin, conflist.stdin_for(plugin, extra=extra))
            except CniError as error:
                failures.append(str(error))
        if failures:
            raise CniError("\n".join(failures))

    async def _add(self, sandbox: Sandbox) -> JsonObject:
        conflist = self._load()
        result: JsonObject | None = None
        for plugin in conflist.plugins:
            stdin = conflist.stdin_for(plugin, prev_result=result, capability_args=_capability_args(sandbox))
            with _naming_plugin("ADD", plugin):
                printed = decode_result(await self._run("ADD", plugin, stdin, sandbox))
            result = result_in_version(printed, printed.get("cniVersion") or conflist.cni_version)
        return result or {}

    async def _attach_error(self, error: CniError, sandbox: Sandbox) -> AttachError:
        """Delete the sandbox of a failed ADD; an error of that leaves it for a later DEL."""
        leftover = None
        try:
            await self.delete(sandbox)
        except CniError:
            leftover = sandbox
        message = f'failed to setup network for sandbox "{sandbox.container_id}": {error}'
        return AttachError(error, leftover, kubelet_message=message)

    def _load(self) -> Conflist:
        try:
            return load_conflist(self.conflist)
        except (MalformedError, OSError) as error:
            raise CniError(f"cni config load failed: {error}") from error

    async def _run(
        self, command: str, plugin: JsonObject, stdin: bytes, sandbox: Sandbox | None = None
    ) -> bytes:
        invocation = Invocation(command=command, path=tuple(self.cni_path))
        if sandbox is not None:
            invocation = replace(
                invocation,
                container_id=sandbox.container_id,
                netns=sandbox.netns if is_namespace(Path(sandbox.netns)) else "",
                ifname=IFNAME,
                args=_cni_args(sandbox),
            )
        return await run_plugin(plugin["type"], invocation, stdin, self.timeout_s)

    def _prev_result(self, conflist: Conflist, sandbox: Sandbox) -> JsonObject | None:
        """The result of ADD in the version spoken now; 0.4.0 was the first to give it to DEL."""
        if sandbox.result is None or not conflist.at_least("0.4.0"):
            return None
        return result_in_version(sandbox.result, conflist.cni_version)


@contextmanager
def _naming_plugin(command: Literal["ADD", "DEL"], plugin: JsonObject) -> Iterator[None]:
    """Name the plugin in errors of ADD and DEL, as the CNI library does for chains."""
    verb = "add" if command == "ADD" else "delete"
    try:
        yield
    except CniError as error:
        raise error.with_context(f'plugin type="{plugin["type"]}" failed ({verb})') from error


def _capability_args(sandbox: Sandbox) -> dict[str, object]:
    return {POD_ANNOTATIONS: dict(sandbox.pod.annotations)}


def _cni_args(sandbox: Sandbox) -> str:
    pairs = {
        "IgnoreUnknown": "1",
        "K8S_POD_NAMESPACE": sandbox.pod.namespace,
        "K8S_POD_NAME": sandbox.pod.name,
        "K8S_POD_INFRA_CONTAINER_ID": sandbox.container_id,
        "K8S_POD_UID": sandbox.pod.uid,
    }
    return ";".join(f"{name}={value}" for name, value in pairs.items())
