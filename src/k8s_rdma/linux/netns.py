"""Network namespaces, identified by path and inode, and how to enter them.

Source: namespaces(7), setns(2), ioctl_ns(2).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import threading
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from k8s_rdma.core.step import NetnsRef
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.sysfs import error_name

if TYPE_CHECKING:
    from collections.abc import Iterator

_CLONE_NEWNET = 0x40000000
_NS_GET_NSTYPE = 0xB703
_libc = ctypes.CDLL(None, use_errno=True)  # os.setns and os.unshare come with Python 3.12


@contextmanager
def entered(namespace: int) -> Iterator[None]:
    """Put the calling thread, and only this thread, into a network namespace (a descriptor).

    Sockets opened in the block stay there. Nothing else may run on this thread until the block ends.
    """
    home = current_namespace()
    try:
        _call("setns", namespace, _CLONE_NEWNET)
        try:
            yield
        finally:
            _call("setns", home, _CLONE_NEWNET)
    finally:
        os.close(home)


def current_namespace() -> int:
    """Open the calling thread's network namespace; KernelError when no file can be opened."""
    own = "/proc/thread-self/ns/net"
    try:
        return os.open(own, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        msg = f"{own}: {error.strerror}"
        raise KernelError(msg) from error


class Namespaces:
    """Resolves a `NetnsRef` to its namespace, or to the certainty that this no longer exists.

    A descriptor that the CNI executable passed works even where the path does not exist in the agent's mount
    namespace; otherwise the path is opened below `host_root`.
    """

    def __init__(self, host_root: Path = Path("/")) -> None:
        """`host_root` is where the node's root file system is mounted."""
        self._host_root = host_root
        # By path and inode: an inode alone names another namespace as soon as the kernel uses it again.
        self._descriptors: dict[NetnsRef, list[int]] = {}
        self._lock = threading.Lock()

    def hold(self, namespace: int, path: str) -> NetnsRef:
        """Keep a namespace reachable until `release`; the descriptor stays the caller's.

        KernelError when the descriptor is not of a network namespace. `path` is the value of CNI_NETNS.
        """
        if not _is_network_namespace(namespace):
            msg = f"namespace {path}: the descriptor handed over is not one of a network namespace"
            raise KernelError(msg)
        netns = NetnsRef(path, os.fstat(namespace).st_ino)
        with self._lock:
            self._descriptors.setdefault(netns, []).append(os.dup(namespace))
        return netns

    def release(self, netns: NetnsRef) -> None:
        """Undo one `hold`. The kernel does not end a namespace that is held."""
        with self._lock:
            descriptors = self._descriptors.get(netns, [])
            if descriptors:
                os.close(descriptors.pop())
            if not descriptors:
                self._descriptors.pop(netns, None)

    def close(self) -> None:
        """Undo every `hold`."""
        with self._lock:
            while self._descriptors:
                _, descriptors = self._descriptors.popitem()
                for namespace in descriptors:
                    os.close(namespace)

    def is_own(self, netns: NetnsRef) -> bool:
        """Report whether it is this process's own namespace, the host's."""
        return Path("/proc/self/ns/net").stat().st_ino == netns.inode

    def find(self, path: str) -> NetnsRef | None:
        """Return the namespace that is mounted at a path of the node, if there is one."""
        try:
            namespace = os.open(self.on_host(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            inode = os.fstat(namespace).st_ino
            return NetnsRef(path, inode) if _is_network_namespace(namespace) else None
        finally:
            os.close(namespace)

    @contextmanager
    def opened(self, netns: NetnsRef) -> Iterator[int | None]:
        """Open exactly this namespace, if it still exists.

        KernelError when that is unknown, because the path cannot be accessed from here.
        """
        namespace = self._held_descriptor(netns)
        if namespace is None:
            namespace = self._open(netns)
        try:
            yield namespace
        finally:
            if namespace is not None:
                os.close(namespace)

    @contextmanager
    def existing(self, netns: NetnsRef) -> Iterator[int]:
        """Open exactly this namespace. KernelError also when it no longer exists."""
        with self.opened(netns) as namespace:
            if namespace is None:
                msg = f"namespace {netns.path} (inode {netns.inode}): no longer exists"
                raise KernelError(msg)
            yield namespace

    def alive(self, netns: NetnsRef) -> bool:
        """Report whether exactly this namespace exists; True when unknown, because a pod may run in it."""
        try:
            with self.opened(netns) as namespace:
                return namespace is not None
        except KernelError:
            return True

    def _held_descriptor(self, netns: NetnsRef) -> int | None:
        """Duplicate a held descriptor, so that a `release` on another thread cannot close it in use."""
        with self._lock:
            descriptors = self._descriptors.get(netns)
            try:
                return os.dup(descriptors[-1]) if descriptors else None
            except OSError as error:
                raise _untold(netns, error.strerror or str(error)) from error

    def _open(self, netns: NetnsRef) -> int | None:
        path = self.on_host(netns.path)
        try:
            # O_NONBLOCK: the file may be a FIFO as well.
            namespace = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ESRCH) and self._would_be_found(path):
                return None
            raise _untold(netns, error.strerror or str(error)) from error
        if not _is_network_namespace(namespace):
            os.close(namespace)
            raise _untold(netns, "no namespace is mounted on that file, or not where the agent can see it")
        if os.fstat(namespace).st_ino != netns.inode:
            os.close(namespace)
            return None
        return namespace

    def on_host(self, path: str) -> Path:
        """Return the path, as seen by this process, of a path of the node."""
        return _below(self._host_root, path)

    def _would_be_found(self, path: Path) -> bool:
        """Report whether only the file is missing, and its directory is visible from here."""
        processes = self._host_root / "proc"
        if path.is_relative_to(processes):
            return (processes / "1").exists()
        return path.parent.is_dir()


@lru_cache(maxsize=1024)
def _below(host_root: Path, path: str) -> Path:
    """Return a path of the node below its root; remembered, because all namespaces are checked often."""
    # On the node `/var/run` is an absolute link to `/run` (FHS 3.0, 5.13), which would lead out of
    # the host's root into our own.
    if path.startswith("/var/run/"):
        path = path.removeprefix("/var")
    return host_root / path.lstrip("/")


def _is_network_namespace(descriptor: int) -> bool:
    try:
        return fcntl.ioctl(descriptor, _NS_GET_NSTYPE) == _CLONE_NEWNET
    except OSError:
        return False


def _untold(netns: NetnsRef, why: str) -> KernelError:
    return KernelError(f"namespace {netns.path} (inode {netns.inode}): cannot be accessed: {why}")


def _call(name: str, *arguments: int) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        msg = f"{name}: {error_name(number)}: {os.strerror(number)}"
        raise KernelError(
            msg, details="network namespaces need CAP_SYS_ADMIN over the user namespace that owns them"
        )
