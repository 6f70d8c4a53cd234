"""Put the demo into namespaces of its own, so that no part of it stays in any case.

`unshare(1)` makes new network, mount and PID namespaces (and a user namespace for an ordinary user);
the demo runs in them as init. When it ends, or is killed, the kernel ends every process and takes down
every device and mount that it made.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.install.directory import PROGRAM, find_program

if TYPE_CHECKING:
    from collections.abc import Iterable

PROGRAMS = {"unshare": "util-linux", "nsenter": "util-linux", "ip": "iproute2", "tc": "iproute2"}
"""Programs the demo needs, and the package of each in Debian and Ubuntu."""

IPERF3 = "iperf3"
"""The program and the package that measure throughput; without it these checks are omitted."""

CNI_PLUGINS = ("bridge", "host-local")
CNI_PACKAGE = "containernetworking-plugins"
CNI_DIRECTORIES = ("/usr/lib/cni", "/usr/libexec/cni", "/opt/cni/bin")
"""The directories of the packages of Debian and of Fedora, and of the plugins' releases."""
MAX_SCRATCH = 36

INIT_PID = "init.pid"
"""The file with the demo's PID outside, for the printed commands."""

ISOLATION = ("--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
AS_USER = ("--user", "--map-root-user")


def launch(*, json_file: Path | None, keep: bool, web: bool, over_time_s: float = 0) -> int:
    """Run the demo; return its exit status: 0 if no check failed.

    web: whether to serve pages on loopback. over_time_s: the seconds of a phase, if one link
    is to be recorded instead of playing all scenes.
    """
    plugins, shim = _requirements()
    isolation = (*ISOLATION, *(AS_USER if os.geteuid() else ()))
    _probe(isolation)
    if not shutil.which(IPERF3):
        sys.stderr.write(f"without {IPERF3}, throughput is not measured: {_installation([IPERF3])}\n")
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="k8s-rdma-demo-", dir=_scratch()))
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0))) if web else None
        command = [
            "unshare",
            *isolation,
            sys.executable,
            "-m",
            "k8s_rdma_demo",
            *("--directory", directory, "--plugins", str(plugins), "--shim", str(shim)),
            *(("--json", str(json_file.absolute())) if json_file else ()),
            *(("--keep",) if keep or web else ()),
            *(("--over-time", str(over_time_s)) if over_time_s else ()),
            *(("--web", str(listener.fileno())) if listener else ()),
            *(() if shutil.which(IPERF3) else ("--no-throughput", f"needs {IPERF3}")),
        ]
        return _run(command, Path(directory), (listener.fileno(),) if listener else ())


def _scratch() -> str:
    """Return the directory for the demo's files: a socket's path has at most 107 bytes."""
    directory = tempfile.gettempdir()
    return directory if len(directory) <= MAX_SCRATCH else "/tmp"  # noqa: S108 - a fresh directory is made in it


def _run(command: list[str], directory: Path, descriptors: tuple[int, ...]) -> int:
    """Wait for the demo. Ctrl-C reaches it by the terminal, a SIGTERM is passed on; it cleans up itself."""
    signal.signal(signal.SIGINT, lambda *_: None)  # a handler, unlike SIG_IGN, is not inherited
    environment = os.environ | ({"K8S_RDMA_DEMO_ROOT": "1"} if os.geteuid() == 0 else {})
    process = subprocess.Popen(command, env=environment, pass_fds=descriptors)
    init = _child_of(process)
    if init is not None:
        signal.signal(signal.SIGTERM, lambda *_: os.kill(init, signal.SIGINT))
        (directory / INIT_PID).write_text(str(init))
    return process.wait()


def _child_of(process: subprocess.Popen[bytes]) -> int | None:
    """Return the PID of unshare's child, which is init inside, unless unshare ends without one."""
    while process.poll() is None:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        if children:
            return int(children[0])
        time.sleep(0.01)
    return None


def _requirements() -> tuple[Path, Path]:
    """Find the CNI plugins and the executable; K8sRdmaError names everything that is missing."""
    programs = [program for program in PROGRAMS if not shutil.which(program)]
    plugins, shim = _plugin_directory(), find_program()
    missing = [*programs, *([] if plugins else [f"the CNI plugins {' and '.join(CNI_PLUGINS)}"])]
    packages = {*(PROGRAMS[program] for program in programs), *([] if plugins else [CNI_PACKAGE])}
    advice = [_installation(packages)] if packages else []
    if shim is None:
        missing.append(PROGRAM)
        advice.append(f"{PROGRAM} is in the wheel; `make cni` builds it, K8S_RDMA_CNI names it")
    if plugins is None or shim is None or missing:
        msg = f"the demo needs {', '.join(missing)}: {'; '.join(advice)}"
        raise K8sRdmaError(msg)
    return plugins, shim


def _installation(packages: Iterable[str]) -> str:
    """Say how to install packages, by the names that they have in Debian and Ubuntu."""
    names = " ".join(sorted(packages))
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    if not {"debian", "ubuntu"} & {release.get("ID"), *release.get("ID_LIKE", "").split()}:
        return f"install what Debian has as {names}"
    sudo = "sudo " if os.geteuid() else ""
    return f"{sudo}apt-get update && {sudo}apt-get install {names}"


def _plugin_directory() -> Path | None:
    candidates = [*os.environ.get("CNI_PATH", "").split(":"), *CNI_DIRECTORIES]
    for directory in map(Path, filter(None, candidates)):
        if all(os.access(directory / plugin, os.X_OK) for plugin in CNI_PLUGINS):
            return directory
    return None


def _probe(isolation: tuple[str, ...]) -> None:
    """Make namespaces once; K8sRdmaError if this machine does not permit it."""
    attempt = subprocess.run(["unshare", *isolation, "true"], capture_output=True, text=True, check=False)
    if attempt.returncode == 0:
        return
    user = "root" if os.geteuid() == 0 else "this user"
    msg = (
        f"the demo needs network, mount and PID namespaces, which {user} may not make here "
        f"({attempt.stderr.strip()}); run it as root, or allow user namespaces "
        "(sysctl kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0; "
        "in a container: --privileged)"
    )
    raise K8sRdmaError(msg)
