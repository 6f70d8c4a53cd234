"""Real container runtimes with an image made here, in a mount namespace of their own.

Their files in `/run` go with that namespace; their processes and cgroups are taken away.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import tarfile
import time
from abc import ABC, abstractmethod
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

HOLD = "mount -t tmpfs tmpfs /run && {prepare} echo made && exec sleep infinity"


class ContainerRuntime(ABC):
    """Runs while the block lasts, in the caller's network namespace; it can be started again within.

    directory: for all of its files. plugins: directories of CNI plugins. programs: the directory of
    programs that go before those on PATH. prepare: shell commands that make the mount namespace as it
    should be, ended by `&&`. sources: in C, of more programs in the image.
    alone: in a PID namespace of its own, so that a program run by `entering` sees no runtime of another test.
    CriError when it does not start.
    """

    name: str
    """Of its socket, `NAME.sock`."""

    def __init__(
        self,
        directory: Path,
        *,
        plugins: Sequence[Path],
        deadline_s: float,
        programs: Path | None = None,
        prepare: str = "",
        sources: Mapping[str, bytes] | None = None,
        alone: bool = False,
    ) -> None:
        self.directory, self.deadline_s = directory, deadline_s
        self.environment = os.environ | ({"PATH": f"{programs}:{os.environ['PATH']}"} if programs else {})
        self._prepare, self._sources = prepare, {"pause": PAUSE} | dict(sources or {})
        self._alone = alone
        self.cgroup = f"/k8srdma-{secrets.token_hex(4)}"
        for name in ("bin", "net.d"):
            (directory / name).mkdir(parents=True)
        for plugin in (plugin for path in reversed(plugins) if path.is_dir() for plugin in path.iterdir()):
            link = directory / "bin" / plugin.name
            link.unlink(missing_ok=True)
            link.symlink_to(plugin)
        self.socket = directory / f"{self.name}.sock"
        self.cdi = directory / "cdi"
        self.cri = CriRuntime(self.socket, cgroup_parent=self.cgroup, deadline_s=deadline_s)

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command that starts it."""

    @abstractmethod
    def import_image(self, archive: Path) -> None:
        """Make the image of an archive known to it; CriError."""

    @abstractmethod
    def import_oci(self, archive: Path, name: str) -> None:
        """Make the image of an OCI archive known by a name; CriError."""

    @property
    def entering(self) -> list[str]:
        """The command that runs a program in namespaces in which those of the sandboxes are visible."""
        namespaces = f"/proc/{self._holder.pid}/ns"
        if not self._alone:
            return ["nsenter", f"--mount={namespaces}/mnt"]
        # There `nsenter` is the parent of the program, and is to take it along when it is killed.
        entered = [f"--mount={namespaces}/mnt", f"--pid={namespaces}/pid_for_children"]
        return ["nsenter", *entered, "setpriv", "--pdeathsig", "KILL"]

    def run(self, *command: str | Path) -> str:
        """Run a program beside it and return its output. Raise CriError with the program's message."""
        done = subprocess.run(
            [*self.entering, *map(str, command)],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise CriError(f"{command[0]}: {done.stderr}")
        return done.stdout

    def use(self, conflist: Path) -> None:
        """Take this network for the sandboxes to come."""
        staging = self.directory / "net.d" / ".new"  # from another directory, containerd would not notice it
        staging.write_text(conflist.read_text())
        staging.replace(self.directory / "net.d" / "10-net.conflist")

    def netns(self, sandbox: str) -> str:
        """Return the path of a sandbox's network namespace, for programs run by `entering`."""
        namespaces = self.cri.sandbox_info(sandbox)["runtimeSpec"]["linux"]["namespaces"]
        (path,) = (each["path"] for each in namespaces if each["type"] == "network")
        return path

    def log(self) -> str:
        return (self.directory / "log").read_text()

    def start(self) -> None:
        """Run it; it serves when this returns."""
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self.entering, *self.command()],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.wait(self._serves, f"{self.name} does not serve")

    def kill(self) -> None:
        """`kill -9`; programs in sandboxes go on."""
        self.process.kill()
        self.process.wait(self.deadline_s)

    def __enter__(self) -> Self:
        self._hold()
        try:
            archive = self.directory / "image.tar"
            programs = compiled(self.directory, self._sources)
            archive.write_bytes(image_archive(IMAGE, programs, entrypoint=["/pause"]))
            self.start()
            self.import_image(archive)
            # It hears of new images by events, and until then would look for this one on the Internet.
            self.wait(lambda: self.cri.has_image(IMAGE), f"{self.name} does not know {IMAGE}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(CriError, OSError):
            for sandbox in self.cri.list_sandboxes():
                self.cri.stop_sandbox(sandbox)
                self.cri.remove_sandbox(sandbox)
        for pid in list(self._processes()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(self.deadline_s)
        self._holder.wait(self.deadline_s)
        self._remove_cgroups()

    def _hold(self) -> None:
        """Make the namespaces, and a process that keeps them while the runtime is away."""
        unshared = ["--mount", "--pid", "--fork", "--mount-proc"] if self._alone else ["--mount"]
        with (self.directory / "log").open("ab") as log:
            self.process = self._holder = subprocess.Popen(
                ["unshare", *unshared, "bash", "-c", HOLD.format(prepare=self._prepare)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        with self._holder.stdout as told:
            if not told.readline():
                self._holder.wait(self.deadline_s)
                raise CriError(f"no mount namespace for {self.name}: {self.log()}")

    def _serves(self) -> bool:
        with suppress(CriError, OSError):
            self.cri.list_sandboxes()
            return True
        return False

    def wait(self, holds: Callable[[], bool], otherwise: str) -> None:
        """Wait until it holds. Raise CriError if the runtime ends or that takes too long."""
        end = time.monotonic() + self.deadline_s
        while not holds():
            if self.process.poll() is not None or time.monotonic() > end:
                raise CriError(f"{otherwise}: {self.log()[-1000:]}")
            time.sleep(0.05)

    def _processes(self) -> Iterator[int]:
        """Of the mount namespace (the runtime, its shims) and of the cgroups (processes in sandboxes)."""
        ours = _mount_namespace(self._holder.pid)
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                here = ours is not None and _mount_namespace(int(path.name)) == ours
                if here or self.cgroup in (path / "cgroup").read_text():
                    yield int(path.name)

    def _remove_cgroups(self) -> None:
        name = self.cgroup.strip("/")
        end = time.monotonic() + self.deadline_s
        while left := [*CGROUPS.glob(f"*/{name}"), *CGROUPS.glob(name)]:
            for top in left:
                for path in [*sorted(top.rglob("*/"), reverse=True), top]:
                    with suppress(OSError):  # busy until the kernel is done with the killed processes
                        path.rmdir()
            if time.monotonic() > end:
                raise CriError(f"cgroups stay: {left}")


def name_in(archive: Path) -> str:
    """Return the image's name in an OCI archive (OCI image specification 1.1, "annotations")."""
    with tarfile.open(archive) as layout:
        index = json.load(layout.extractfile("index.json"))
    return index["manifests"][0]["annotations"]["org.opencontainers.image.ref.name"]


def _mount_namespace(pid: int) -> int | None:
    """Return its inode, unless the process has ended."""
    try:
        return os.stat(f"/proc/{pid}/ns/mnt").st_ino  # noqa: PTH116 (the kernel follows this link)
    except OSError:
        return None


def compiled(directory: Path, sources: Mapping[str, bytes]) -> dict[str, bytes]:
    """Compile programs in C that need no library; a program by its name."""
    programs = {}
    for name, source in sources.items():
        program = directory / name
        compiler = os.environ.get("CC", "cc")
        subprocess.run([compiler, "-static", "-x", "c", "-o", program, "-"], input=source, check=True)
        programs[name] = program.read_bytes()
    return programs
