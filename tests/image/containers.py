"""Containers of the image, run by runc: read-only root, only the privileges and mounts that are named.

They are in the caller's network namespace, as pods with `hostNetwork` are in the node's. Their system
calls are filtered if a profile for that is installed. Programs for another architecture are
emulated, but for those that a program of the image executes itself.
Source: OCI runtime specification 1.0.2, "config" and "config-linux".
"""

from __future__ import annotations

import json
import platform
import secrets
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from image.oci_image import MACHINES, Image
from image.seccomp import filter_for

if TYPE_CHECKING:
    from collections.abc import Sequence

DEADLINE_S, EMULATED_DEADLINE_S = 60, 200
EMULATOR = "/emulator"
SETS = ("bounding", "effective", "permitted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A file or directory of the machine, at the same path unless `at` is given. follows: HostToContainer."""

    source: Path
    at: str = ""
    writable: bool = False
    follows: bool = False

    def document(self) -> dict[str, Any]:
        options = ["rbind", "rw" if self.writable else "ro", "rslave" if self.follows else "rprivate"]
        return {"destination": self.at or str(self.source), "source": str(self.source), "options": options}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """As a pod's securityContext says it; capabilities that are not named are dropped.

    user: by default the image's. groups: supplemental ones.
    """

    user: int | None = None
    capabilities: tuple[str, ...] = ()
    groups: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Containers:
    """Runs the image's containers; keeps their descriptions below a directory. emulator: QEMU's user mode."""

    image: Image
    directory: Path
    emulator: tuple[str, ...] = ()
    started: list[str] = field(default_factory=list)

    @property
    def deadline_s(self) -> float:
        """For a process to begin or to end."""
        return EMULATED_DEADLINE_S if self.emulator else DEADLINE_S

    def start(
        self,
        arguments: Sequence[str],
        rights: Rights,
        mounts: Sequence[Mount] = (),
        *,
        log: IO[bytes] | int,
        program: Sequence[str] = (),
        environment: Sequence[str] = (),
    ) -> subprocess.Popen[bytes]:
        """Start it; the returned process passes signals on. program: instead of the image's own."""
        name = f"k8srdma-{secrets.token_hex(6)}"
        bundle = self.directory / name
        bundle.mkdir()
        command = self._command([*(program or self.image.command), *arguments])
        document = self._document(name, command, rights, mounts) | {"ociVersion": "1.0.2"}
        document["process"]["env"] += environment
        (bundle / "config.json").write_text(json.dumps(document))
        self.started.append(name)
        return subprocess.Popen(
            [*self._runc(), "run", "--bundle", str(bundle), name],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )

    def run(self, arguments: Sequence[str], rights: Rights, **more: Any) -> str:
        """Run one that ends by itself, with status 0; return its output."""
        with self.start(arguments, rights, log=subprocess.PIPE, **more) as process:
            out, errors = process.communicate(timeout=self.deadline_s)
        assert process.returncode == 0, errors.decode()
        return out.decode()

    def execute(self, name: str, command: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
        """Run a command in a container that runs, with its rights: as `kubectl exec` does it."""
        return subprocess.run(
            [*self._runc(), "exec", name, *self._command(command)],
            capture_output=True,
            check=False,
            timeout=self.deadline_s,
        )

    def remove_all(self) -> None:
        for name in self.started:
            subprocess.run([*self._runc(), "delete", "--force", name], check=False, capture_output=True)

    def _command(self, command: Sequence[str]) -> list[str]:
        """The command as this machine executes it."""
        if not self.emulator:
            return list(command)
        with (self.image.root / command[0].removeprefix("/")).open("rb") as program:
            begin = program.readline()
        interpreter = [begin[2:].decode().strip()] if begin.startswith(b"#!") else []
        return [EMULATOR, *interpreter, *command]

    def _runc(self) -> list[str]:
        return ["runc", "--root", str(self.directory / "runc")]

    def _document(
        self, name: str, command: list[str], rights: Rights, mounts: Sequence[Mount]
    ) -> dict[str, Any]:
        user = self.image.user if rights.user is None else rights.user
        capabilities = [f"CAP_{capability}" for capability in rights.capabilities]
        architecture = next(name for name, machine in MACHINES.items() if machine == platform.machine())
        seccomp = filter_for(architecture, capabilities)
        mounts = [*mounts, *(Mount(source=Path(each), at=EMULATOR) for each in self.emulator)]
        return {
            "process": {
                "args": command,
                "cwd": "/",
                "env": list(self.image.environment),
                "user": {"uid": user, "gid": user, "additionalGids": list(rights.groups)},
                "noNewPrivileges": True,
                "capabilities": dict.fromkeys(SETS, capabilities),
            },
            "root": {"path": str(self.image.root), "readonly": True},
            "mounts": [*_furniture(), *(mount.document() for mount in mounts)],
            "linux": {
                "namespaces": [{"type": kind} for kind in ("mount", "pid", "ipc", "uts")],
                "cgroupsPath": f"/{name}",
                "rootfsPropagation": "rslave",
                **({"seccomp": seccomp} if seccomp else {}),
                # As runtimes do: the machine's part of these is not for containers.
                "maskedPaths": ["/proc/kcore", "/proc/keys", "/sys/firmware"],
                "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
            },
        }


def _furniture() -> list[dict[str, Any]]:
    tight = ["nosuid", "noexec", "nodev"]
    return [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {
            "destination": "/dev",
            "type": "tmpfs",
            "source": "tmpfs",
            "options": ["nosuid", "strictatime", "mode=755"],
        },
        {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": [*tight, "ro"]},
    ]
