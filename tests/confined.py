"""Processes of this checkout with the rights that the chart gives their containers, without an image.

Each has a mount namespace and a root of its own, with the image's files (`docs/image.md`), Python and the
program, and with the container's volumes. A security context's words on seccomp are a runtime's to do.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import k8s_rdma

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Json = dict[str, Any]
NODE = "w1"
PROGRAM = ("/usr", sys.base_prefix, sys.prefix, str(Path(k8s_rdma.__file__).parent))
FURNITURE = ("/dev", "/proc", "/sys")
"""Runtimes furnish every container with these."""
_DONE = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
_SAID = {*_DONE, "runAsNonRoot", "runAsUser", "runAsGroup", "seccompProfile"}


def start(
    container: Json,
    volumes: Mapping[str, Path],
    directory: Path,
    *,
    log: IO[bytes],
    environment: Mapping[str, str] = {},
) -> subprocess.Popen[bytes]:
    """Run a container's process, which has the pid of the returned process.

    volumes: the paths of those that it mounts, by name; others are in memory. directory: an empty one.
    AssertionError if the container has a privilege: it is not known then how much this would show.
    """
    security = container["securityContext"]
    assert {key: security.get(key) for key in _DONE} == _DONE
    assert security.keys() <= _SAID
    user, group = security["runAsUser"], security.get("runAsGroup", 0)
    script = "\n".join(_commands(container["volumeMounts"], volumes, directory))
    rights = (f"--reuid={user}", f"--regid={group}", "--clear-groups", "--no-new-privs")
    nothing = ("--inh-caps=-all", "--bounding-set=-all")
    arguments = [each.replace("$(NODE_NAME)", NODE) for each in container["args"]]
    return subprocess.Popen(
        [
            *("unshare", "--mount", "sh", "-ec", script, "sh"),
            *("chroot", directory, "setpriv", *rights, *nothing),
            *(sys.executable, "-m", "k8s_rdma", *arguments),
        ],
        env={"PATH": "/usr/sbin:/usr/bin", **environment},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
    )


def writable_volumes(container: Json) -> set[str]:
    """The paths of a container's volumes that it may write to."""
    return {each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly", False)}


def writable(pid: int) -> set[str]:
    """Paths of file systems that a process can write to, below its own root (proc_pid_mountinfo(5))."""
    lines = [line.split() for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
    return {words[4] for words in lines if "rw" in words[5].split(",")}


def _commands(mounted: list[Json], volumes: Mapping[str, Path], root: Path) -> Iterator[str]:
    """In sh, until the command after it is run."""
    yield f"mount -t tmpfs -o mode=0755 tmpfs {root}"
    yield f"cp --no-dereference /bin /sbin /lib* {root}"  # links into /usr
    for path in FURNITURE:
        yield from _bound(path, f"{root}{path}", read_only=path == "/sys")
    for each in mounted:
        place = f"{root}{each['mountPath']}"
        if each["name"] in volumes:
            yield from _bound(str(volumes[each["name"]]), place, read_only=each.get("readOnly", False))
        else:
            yield f"mkdir -p {place}"
            yield f"mount -t tmpfs -o mode=1777 tmpfs {place}"
    for path in PROGRAM:  # last, as this checkout may be below /tmp, which is a volume
        yield from _bound(path, f"{root}{path}", read_only=True)
    yield f"mount -o remount,ro {root}"
    yield 'exec "$@"'


def _bound(source: str, place: str, *, read_only: bool) -> Iterator[str]:
    yield f"mkdir -p {place}"
    yield f"mount --rbind {source} {place}"
    if read_only:
        yield f"mount -o remount,bind,ro {place}"
