"""The commit that a release is made of, and what it must say about its version before anything is built."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

VERSION = re.compile(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}")
"""X.Y.Z: Python's packages (PEP 440) and charts (SemVer) spell pre-releases differently."""

UNPUBLISHED = "https://unpublished.invalid"
"""The address of a repository that has none: names below .invalid never resolve (RFC 2606)."""


class ReleaseError(Exception):
    """A release that cannot be made, or one that is not what it claims to be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A clean work tree. time: of its commit, in seconds; address: where the repository is published."""

    root: Path
    version: str
    commit: str
    time: int
    address: str


def read_source(root: Path, version: str, address: str = "") -> Source:
    """Read the commit of a work tree; ReleaseError when it is no commit of this version."""
    if not VERSION.fullmatch(version):
        msg = f"VERSION={version}: must be X.Y.Z, such as 0.1.0"
        raise ReleaseError(msg)
    found = re.search(
        r'^__version__ = "(.*)"$', (root / "src/k8s_rdma/__init__.py").read_text(), re.MULTILINE
    )
    if found is None or found[1] != version:
        stated = found[1] if found else "none"
        msg = f"VERSION={version}: src/k8s_rdma/__init__.py has {stated}; change it, then `make chart`"
        raise ReleaseError(msg)
    if not re.search(
        rf"^## \[?{re.escape(version)}\b(?!\.)", (root / "CHANGELOG.md").read_text(), re.MULTILINE
    ):
        msg = f"VERSION={version}: CHANGELOG.md has no heading `## [{version}]`"
        raise ReleaseError(msg)
    if changes := git(root, "status", "--porcelain"):
        msg = f"the work tree differs from its commit; commit or remove:\n{changes}"
        raise ReleaseError(msg)
    commit = git(root, "rev-parse", "HEAD")
    _check_tags(root, version, commit)
    return Source(
        root=root,
        version=version,
        commit=commit,
        time=int(git(root, "log", "-1", "--format=%ct")),
        address=_address(root, address),
    )


def git(root: Path, *arguments: str) -> str:
    """Run git in a work tree; ReleaseError with its message."""
    ended = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    if ended.returncode:
        msg = f"git {arguments[0]}: {ended.stderr.strip()}"
        raise ReleaseError(msg)
    return ended.stdout.strip()


def _check_tags(root: Path, version: str, commit: str) -> None:
    """Check that the version's tag is on this commit if there is one, and no other version's is."""
    tag = f"v{version}"
    here = [name for name in git(root, "tag", "--points-at", commit).split() if VERSION.fullmatch(name[1:])]
    if here and tag not in here:
        msg = f"VERSION={version}: the commit is tagged {', '.join(here)}"
        raise ReleaseError(msg)
    if tag not in here and git(root, "tag", "--list", tag):
        msg = f"VERSION={version}: the tag {tag} is on another commit"
        raise ReleaseError(msg)


def _address(root: Path, address: str) -> str:
    """Return the repository's address without credentials: as asked for, else that of the remote `origin`."""
    if address and not address.startswith("https://"):
        msg = f"SOURCE={address}: must be https://HOST/PATH"
        raise ReleaseError(msg)
    remotes = git(root, "remote").split()
    address = address or (git(root, "remote", "get-url", "origin") if "origin" in remotes else "")
    parts = urlsplit("" if address == UNPUBLISHED else address)
    if parts.scheme != "https" or not parts.hostname:
        return UNPUBLISHED
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path.rstrip("/").removesuffix(".git"), "", ""))
