"""Containerd and runc (Debian's, or newer ones) with an image made here, in a mount namespace of their own.

What they keep in `/run` goes with that namespace; what else they leave (processes, cgroups) is taken away.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from e2e.cri import CriError, CriRuntime
from image_archive import image_archive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

IMAGE = "docker.io/local/pause:1"
PAUSE = b"#include <unistd.h>\nint main(void) { for (;;) pause(); }\n"
CGROUPS = Path("/sys/fs/cgroup")

START = "mount -t tmpfs tmpfs /run && {prepare} exec containerd --config {config}"
CONFIG = """
version = 2
root = "{directory}/root"
state = "{directory}/state"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
  address = "{directory}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  enable_cdi = true
  cdi_spec_dirs = ["{directory}/cdi"]
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{directory}/bin"
    conf_dir = "{directory}/net.d"
"""


class Containerd:
    """Runs while the block lasts, in the caller's network namespace.

    directory: where it keeps everything. plugins: directories of CNI plugins. programs: the directory of a
    containerd to be run instead of the one on PATH. prepare: shell commands that make the mount namespace
    what it should be, ended by `&&`. sources: in C, of more programs in the image.
    CriError when it does not start.
    """

    def __init__(
        self,
        directory: Path,
        *,
        plugins: Sequence[Path],
        deadline_s: float,
        programs: Path | None = None,
        prepare: str = "",
        sources: Mapping[str, bytes] | None = None,
    ) -> None:
        self._directory, self._deadline_s = directory, deadline_s
        self._environment = os.environ | ({"PATH": f"{programs}:{os.environ['PATH']}"} if programs else {})
        self._prepare, self._sources = prepare, {"pause": PAUSE} | dict(sources or {})
        self.cgroup = f"/k8srdma-{secrets.token_hex(4)}"
        for name in ("bin", "net.d"):
            (directory / name).mkdir(parents=True)
        for plugin in (plugin for path in reversed(plugins) if path.is_dir() for plugin in path.iterdir()):
            link = directory / "bin" / plugin.name
            link.unlink(missing_ok=True)
            link.symlink_to(plugin)
        self._config = directory / "config.toml"
        self._config.write_text(CONFIG.format(directory=directory, image=IMAGE))
        self.socket = directory / "containerd.sock"
        self.cdi = directory / "cdi"
        self.cri = CriRuntime(self.socket, cgroup_parent=self.cgroup, deadline_s=deadline_s)

    @property
    def entering(self) -> list[str]:
        """What runs a program where the sandboxes' namespaces are to be seen."""
        return ["nsenter", f"--mount=/proc/{self._process.pid}/ns/mnt"]

    def use(self, conflist: Path) -> None:
        """Take this network for the sandboxes to come."""
        staging = self._directory / "net.d" / ".new"
        staging.write_text(conflist.read_text())
        staging.replace(self._directory / "net.d" / "10-net.conflist")

    def log(self) -> str:
        return (self._directory / "log").read_text()

    def __enter__(self) -> Self:
        start = START.format(prepare=self._prepare, config=self._config)
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["unshare", "--mount", "bash", "-c", start],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            self._wait(self._serves, "containerd does not serve")
            self._import_image()
            # It hears of new images by events, and until then would look for this one on the Internet.
            self._wait(lambda: self.cri.has_image(IMAGE), f"containerd does not know {IMAGE}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(CriError, OSError):
            for sandbox in self.cri.list_sandboxes():
                self.cri.stop_sandbox(sandbox)
                self.cri.remove_sandbox(sandbox)
        left = [pid for pid in self._processes() if pid != self._process.pid]
        self._process.kill()
        self._process.wait(self._deadline_s)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._remove_cgroups()

    def _serves(self) -> bool:
        with suppress(CriError, OSError):
            self.cri.list_sandboxes()
            return True
        return False

    def _wait(self, holds: Callable[[], bool], otherwise: str) -> None:
        end = time.monotonic() + self._deadline_s
        while not holds():
            if self._process.poll() is not None or time.monotonic() > end:
                raise CriError(f"{otherwise}: {self.log()[-1000:]}")
            time.sleep(0.05)

    def _processes(self) -> Iterator[int]:
        """Of the mount namespace (containerd and its shims) and of the cgroups (what runs in sandboxes)."""
        ours = _mount_namespace(self._process.pid)
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                here = ours is not None and _mount_namespace(int(path.name)) == ours
                if here or self.cgroup in (path / "cgroup").read_text():
                    yield int(path.name)

    def _remove_cgroups(self) -> None:
        name = self.cgroup.strip("/")
        end = time.monotonic() + self._deadline_s
        while left := [*CGROUPS.glob(f"*/{name}"), *CGROUPS.glob(name)]:
            for top in left:
                for path in [*sorted(top.rglob("*/"), reverse=True), top]:
                    with suppress(OSError):  # busy until the kernel is done with what was killed
                        path.rmdir()
            if time.monotonic() > end:
                raise CriError(f"cgroups stay: {left}")

    def _import_image(self) -> None:
        archive = self._directory / "image.tar"
        programs = _compiled(self._directory, self._sources)
        archive.write_bytes(image_archive(IMAGE, programs, entrypoint=["/pause"]))
        command = ["ctr", "--address", str(self.socket), "--namespace", "k8s.io", "images", "import"]
        done = subprocess.run(
            [*self.entering, *command, "--no-unpack", str(archive)],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise CriError(f"the image cannot be imported: {done.stderr}")


def _mount_namespace(pid: int) -> int | None:
    """Its inode; None of a process that has ended."""
    try:
        return os.stat(f"/proc/{pid}/ns/mnt").st_ino  # noqa: PTH116 (the kernel follows this link)
    except OSError:
        return None


def _compiled(directory: Path, sources: Mapping[str, bytes]) -> dict[str, bytes]:
    programs = {}
    for name, source in sources.items():
        program = directory / name
        compiler = os.environ.get("CC", "cc")
        subprocess.run([compiler, "-static", "-x", "c", "-o", program, "-"], input=source, check=True)
        programs[name] = program.read_bytes()
    return programs
