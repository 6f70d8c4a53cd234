"""Debian's packages of the lab: downloaded with an apt state of its own, never installed."""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING

from lab.apt_sources import RELEASE, debian_sources
from lab.errors import CannotRun

if TYPE_CHECKING:
    from pathlib import Path

    from lab.cache import Cache

HOST = ("qemu-system-x86",)
"""From the backports: the release's own QEMU is older than its `igb`."""

GUEST = (
    "busybox-static", "bash", "coreutils", "util-linux", "mount", "grep", "sed", "findutils", "procps",
    "kmod", "e2fsprogs", "ncurses-base",
    "iproute2", "ethtool", "iputils-ping", "iperf3", "iptables", "strace",
    "ibverbs-providers", "ibverbs-utils", "rdmacm-utils", "perftest",
    "containerd", "runc", "crun", "conmon", "containernetworking-plugins",
    "python3.11-minimal", "python3.11", "libstdc++6",
)  # fmt: skip

KERNEL = "linux-image-amd64"

CONFIGURATION = """
Dir::State "{0}/state";
Dir::State::lists "{0}/lists";
Dir::State::status "{0}/status";
Dir::Cache "{0}/cache";
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "{0}/sources.d";
APT::Install-Recommends "false";
APT::Sandbox::User "";
Acquire::Languages "none";
Debug::NoLocking "true";
"""


class Apt:
    """apt with a state of its own in a folder, as if no package were installed."""

    def __init__(self, folder: Path, sources: str) -> None:
        for name in ("lists/partial", "cache/archives/partial", "sources.d", "state"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "status").touch()
        (folder / "sources.d/lab.sources").write_text(sources)
        self._configuration = folder / "apt.conf"
        self._configuration.write_text(CONFIGURATION.format(folder))
        self._run("apt-get", "update", "-qq", "--error-on=any")

    def install(self, into: Path, *arguments: str) -> None:
        """Download packages and all that they need."""
        into.mkdir()
        (into / "partial").mkdir()
        self._run("apt-get", "install", "-qq", "-d", "-y", "-o", f"Dir::Cache::archives={into}", *arguments)

    def download(self, into: Path, *packages: str) -> None:
        """Download these packages alone."""
        into.mkdir()
        self._run("apt-get", "download", "-qq", *packages, cwd=into)

    def kernel(self) -> str:
        """Return the version of the release's kernel, as `uname -r` will show it."""
        depends = self._run("apt-cache", "depends", KERNEL)
        match = re.search(r"Depends: linux-image-(\S+-amd64)$", depends, re.MULTILINE)
        if match is None:
            raise CannotRun(f"{KERNEL} of apt's sources depends on no kernel")
        return match[1]

    def _run(self, *command: str, cwd: Path | None = None) -> str:
        environ = os.environ | {"APT_CONFIG": str(self._configuration), "LC_ALL": "C"}
        try:
            ended = subprocess.run(command, env=environ, cwd=cwd, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            raise CannotRun(f"this machine has no {command[0]}") from error
        if ended.returncode != 0:
            why = _complaint(ended.stderr or ended.stdout) or f"status {ended.returncode}"
            raise CannotRun(f"Debian's packages could not be had: {command[0]}: {why}")
        return ended.stdout


def _complaint(said: str) -> str:
    """Return the first error: the next ones follow from it, and the last only says that there were errors."""
    lines = said.strip().splitlines()
    return next((line for line in lines if line.startswith("E: ")), "".join(lines[-1:]))


def packages(cache: Cache) -> Path:
    """Download the folders `host`, `guest`, `kernel` and `build`, and write the file `kernel-version`."""
    sources = debian_sources()

    def make(product: Path) -> None:
        apt = Apt(product / "apt", sources)
        apt.install(product / "host", "-t", f"{RELEASE}-backports", *HOST)
        apt.install(product / "guest", *GUEST)
        version = apt.kernel()
        (product / "kernel-version").write_text(version)
        apt.download(product / "kernel", f"linux-image-{version}")
        apt.download(product / "build", *_build_set(version))
        subprocess.run(("rm", "-r", product / "apt"), check=True)

    return cache.product("packages", sources, HOST, GUEST, KERNEL, make=make)


def kernel_version(debs: Path) -> str:
    """Return the output of `uname -r` in a guest of these packages."""
    return (debs / "kernel-version").read_text()


def source_version(kernel: str) -> str:
    """Return the version of its package of sources: 6.1 for 6.1.0-40-amd64."""
    return kernel.partition(".0-")[0]


def _build_set(kernel: str) -> tuple[str, ...]:
    """Return the packages that modules are built with, out of tree."""
    source = source_version(kernel)
    common = kernel.removesuffix("-amd64") + "-common"
    return (
        f"linux-source-{source}",
        f"linux-headers-{kernel}",
        f"linux-headers-{common}",
        f"linux-kbuild-{source}",
        "libelf1",
    )


def archives(debs: Path, folder: str) -> list[str]:
    """Return the names of a folder's archives, which have their versions."""
    return sorted(path.name for path in (debs / folder).glob("*.deb"))


def unpack(folder: Path, into: Path) -> None:
    """Unpack all archives of a folder into one tree."""
    into.mkdir(parents=True, exist_ok=True)
    for archive in sorted(folder.glob("*.deb")):
        subprocess.run(("dpkg-deb", "--extract", archive, into), check=True)
