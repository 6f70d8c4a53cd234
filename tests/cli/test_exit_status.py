"""Exit statuses by one rule, by command as docs/kubectl.md has them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cli.on_terminal import runs
from cli.test_options import COMMANDS, RECORDED

PAGE = Path(__file__).parents[2] / "docs" / "kubectl.md"
ABSENT = "/nowhere"
FROM = ("--from", ABSENT)

COULD_NOT = {
    "top": ("--once", "--extender", "http://127.0.0.1:1"),
    "who": (),
    "recommend": ("--for", "1s"),
    "explain pod": ("p", "--extender", "http://127.0.0.1:1"),
    "rates set": ("p", "--min", "5G"),
    "doctor node": ("--host-root", ABSENT),
    "doctor cluster": (),
    "verify node": ("--run-dir", ABSENT),
    "verify cluster": ("w1", "w2"),
    "whatif fit": FROM,
    "whatif headroom": FROM,
    "whatif without": (*FROM, "--node", "w1"),
    "whatif with": (*FROM, "--vfs", "2"),
    "snapshot": (),
    "simulate": (ABSENT,),
    "agent adopt": ("--all", "--run-dir", ABSENT),
    "init": ("--config", ABSENT),
    "install-cni": (ABSENT,),
    "uninstall": ("--host-root", ABSENT),
    "server": ("--config", ABSENT),
    "extender": ("--config", ABSENT),
    "webhook": ("--config", ABSENT),
    "web": ("--config", ABSENT),
    "device-plugin": ("--config", ABSENT),
    "demo": ("--json", f"{ABSENT}/x"),
    "gather": ("--file", f"{ABSENT}/x"),
    "claim": (ABSENT,),
    "version": ("--output", "xml"),
    "completion": ("tcsh",),
}
"""Command lines by which each command cannot do its work."""

NO = {
    "whatif fit": ("--from", RECORDED),
    "whatif without": ("--node", "w1", "--from", RECORDED),
    "whatif with": ("--vfs", "1", "--from", RECORDED),
}
"""Command lines whose answer is no; tests of `rates`, `doctor`, `verify`, `adopt` and `init` have others."""

YES = {
    "whatif headroom": ("--from", RECORDED),
    "version": (),
    "completion": ("bash",),
    "claim": ("--annotation", '[{"min_tx_rate": 1}]'),
}


def rows() -> dict[str, str]:
    """When the answer is no, by command."""
    section = PAGE.read_text().partition("## Exit statuses")[2].partition("\n## ")[0]
    cells = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    named = [(re.findall(r"`([a-z -]+)`", names), when.strip()) for names, when in cells]
    return {name: when for names, when in named for name in names}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("lines", "status"), [(COULD_NOT, 2), (NO, 1), (YES, 0)], ids=["could-not", "no", "yes"]
)
async def test_status_of_each_command_is_by_the_rule(lines: dict[str, tuple[str, ...]], status: int):
    ran = await runs([(80, (*name.split(), *options)) for name, options in lines.items()])
    assert {name: each.status for name, each in zip(lines, ran, strict=True)} == dict.fromkeys(lines, status)
    for each in ran:
        assert "Traceback" not in each.out


def test_each_command_has_its_row_and_its_test():
    names = {name.removesuffix(" ") for name in COMMANDS} | {"agent"}
    assert set(rows()) == names
    assert set(COULD_NOT) == names - {"agent"}


def test_row_with_an_answer_that_may_be_no_says_when():
    no = {name for name, when in rows().items() if when}
    assert set(NO) <= no
    assert no >= {"doctor node", "doctor cluster", "verify node", "verify cluster", "rates set", "init"}
