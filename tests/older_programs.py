"""Programs of before, out of the history of this repository: the real behaviour of an older agent."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@cache
def last_without(text: str, path: str) -> str | None:
    """Return the last commit before one brought this into a file, if the history reaches so far."""
    commits = _git("log", "--reverse", "--format=%H", f"-S{text}", "--", path).split()
    return _git("rev-parse", "--quiet", "--verify", f"{commits[0]}^").strip() or None if commits else None


def unpack(commit: str, directory: Path, *paths: str) -> Path:
    """Unpack a commit's files at these paths; return their folder."""
    place = directory / commit[:12]
    place.mkdir(parents=True)
    archive = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "-C", ROOT, "archive", commit, *paths],
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    subprocess.run(["tar", "--extract", f"--directory={place}"], input=archive, check=True)
    return place


def _git(*arguments: str) -> str:
    """Return its output; empty if it fails, as in a checkout without history."""
    try:
        done = subprocess.run(
            ["git", "-c", f"safe.directory={ROOT}", "-C", ROOT, *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return ""
    return done.stdout if done.returncode == 0 else ""
