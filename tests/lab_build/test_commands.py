"""The lab's commands, as they are mistyped."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from lab.layers import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "the following arguments are required: COMMAND"),
        (("run", "/nonexistent"), "argument script: /nonexistent is no file"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else "",
)
def test_impossible_command_says_so_and_boots_no_guest(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    command = (sys.executable, "-m", "lab", "--cache", str(tmp_path), *words)
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert ended.returncode
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
