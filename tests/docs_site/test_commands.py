"""Every command that the documents show is run by a test, or says why not, in a comment beside it.

<!-- run -->                        here, as it is, in an empty folder
<!-- run by tests/some_test.py -->  there
<!-- not run: why -->
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from documents import BLOCKS, FOLDERS, ROOT, Block, commands_of

HERE = [block for block in BLOCKS if block.mark == "run"]


def accounted_for(block: Block) -> bool:
    """Report whether the mark says who runs the block, or why it is not run; files that it names exist."""
    told = block.mark == "run" or re.fullmatch(r"run by \S+.*|not run: .{10,}", block.mark)
    return bool(told) and all((ROOT / path).is_file() for path in re.findall(r"tests/[\w/]+\.py", block.mark))


def test_documents_of_every_folder_are_looked_at():
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")}
    others = folders - {*FOLDERS, "build"}
    assert not [each for each in others if any((ROOT / each).rglob("*.md"))]


def test_commands_are_run_or_say_why_not():
    assert len(BLOCKS) > 10
    assert not [block for block in BLOCKS if not accounted_for(block)]


def test_objects_of_applied_manifests_are_not_created_before():
    """`kubectl apply` warns of a namespace that `kubectl create` made: it lacks the last applied manifest."""
    applied = [block for block in BLOCKS if "kubectl apply --kustomize" in block.text]
    assert len(applied) > 1
    assert not [block for block in applied if "kubectl create namespace" in block.text]


@pytest.mark.parametrize("block", HERE, ids=lambda block: block.document)
def test_command_runs(block: Block, tmp_path: Path):
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    typed = "\n".join(line.removeprefix("$ ") for line in block.text.splitlines())
    subprocess.run(["bash", "-eu", "-c", typed], cwd=tmp_path, env=environment, check=True, timeout=60)


@pytest.mark.parametrize(
    ("mark", "enough"),
    [
        ("run", True),
        ("run by tests/docs_site/test_commands.py", True),
        ("run by tests/docs_site/test_nothing.py", False),
        ("not run: it needs a cluster", True),
        ("not run: no", False),
        ("", False),
        ("runs", False),
    ],
)
def test_mark_names_the_test_of_a_block_or_the_reason_for_none(mark: str, enough: bool):
    fenced, comment = "```\nkubectl apply\n```", f"<!-- {mark} -->"
    for text in (f"{comment}\n{fenced}\n", f"{fenced}\n{comment}\n"):
        [block] = commands_of("docs/install.md", f"Text.\n\n{text}")
        assert accounted_for(block) == enough


def test_blocks_that_are_no_commands_are_left_alone():
    assert not commands_of("x.md", "```\nnode  PFs\n```\n```yaml\nkey: make it\n```\n")
    assert len(commands_of("x.md", "```\n$ kubectl get nodes\n```\n```sh\nanything\n```\n")) == 2
    for typed in ("HERE=/x make e2e", "mkdir --parents /etc/x", "x=1\nsudo kubectl get pods", "# ip link"):
        assert len(commands_of("x.md", f"```\n{typed}\n```\n")) == 1
        assert len(commands_of("x.md", f"- Item\n\n  ```\n  {typed}\n  ```\n")) == 1
