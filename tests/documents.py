"""Every document of the repository, and its blocks of commands."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("docs", "examples", "tests", "lab", "bench", "deploy", "cni")
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *(path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.md"))),
]

_BLOCK = re.compile(
    r"^(?: *<!-- (?P<above>[^\n]*) -->\n)?(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^ *```$"
    r"(?:\n *<!-- (?P<below>(?:run|not run)[^\n]*) -->$)?",
    re.DOTALL | re.MULTILINE,
)
_COMMAND = re.compile(
    r"^(?:\$ |# )?(?:sudo )?(?:[A-Z0-9_]+=\S+ )*"
    r"(?:k8s-rdma|make|scripts/\w+|kubectl|kubeadm|helm|crictl|skopeo|buildah|python3?|curl|openssl|git|ip|rdma|tc|dcb"
    r"|devlink|mlxconfig|modprobe|systemctl|mount|nsenter|cat|cp|mkdir|sed|grep|find|echo|printf|cd|export) ",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block of commands. mark: the comment beside it; empty without one."""

    document: str
    mark: str
    text: str


def commands_of(document: str, text: str) -> list[Block]:
    """Return blocks in a shell's language, and those without one in which a line begins with a command."""
    return [
        Block(document=document, mark=found["above"] or found["below"] or "", text=typed)
        for found in _BLOCK.finditer(text)
        for typed in [re.sub(f"^{found['indent']}", "", found["text"], flags=re.MULTILINE)]
        if found["language"] in {"sh", "bash", "console"}
        or (not found["language"] and _COMMAND.search(typed))
    ]


BLOCKS = [
    block for path in DOCUMENTS for block in commands_of(path.relative_to(ROOT).as_posix(), path.read_text())
]
