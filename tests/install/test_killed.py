"""Whenever the installer is killed, the node has one network, whole, whose plugins are there."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from install.node_files import BRIDGE, OURS, PORTMAP, BrokenNetworkError, NodeFiles, conflist

if TYPE_CHECKING:
    from collections.abc import Callable

CHANGES = ("open", "os.rename", "os.remove", "os.symlink", "os.chmod", "os.rmdir", "os.mkdir")
"""Audit events (docs.python.org/3/library/audit_events.html), each before its change is made."""

OTHERS = {
    "10-pods.conflist": [conflist(BRIDGE), conflist(BRIDGE, PORTMAP, version="0.4.0")],
    "20-more.conf": ['{"cniVersion": "0.3.1", "name": "more", "type": "ptp"}'],
}


def killed_at(event: int, action: Callable[[], object]) -> bool:
    """Do it in a process that is killed before its n-th change; whether it came so far."""
    child = os.fork()
    if not child:
        seen = count(1)

        def audit(name: str, arguments: tuple[object, ...]) -> None:
            if name in CHANGES and next(seen) == event:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(audit)
        try:
            action()
        except BaseException:
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def others(node: NodeFiles) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in node.confs.iterdir() if path.name in OTHERS}


def taken_without_us(node: NodeFiles) -> list[str]:
    """The plugins of the network that the node would have, were we never there."""
    with tempfile.TemporaryDirectory() as directory:
        alone = NodeFiles(bin=node.bin, confs=Path(directory))
        for name, data in others(node).items():
            (alone.confs / name).write_bytes(data)
        return alone.types()


def require_sound(node: NodeFiles, programs: set[bytes]) -> None:
    """Assert the conditions that hold at every moment."""
    types = node.types()
    if OURS in types:
        assert (node.bin / OURS).read_bytes() in programs
        types.remove(OURS)
    assert types == taken_without_us(node)


@pytest.mark.parametrize(
    ("before", "action", "repaired"),
    [
        ("nothing", "install", False),
        ("nothing", "install", True),
        ("ours of another time", "install", True),
        ("ours of another time", "remove", False),
    ],
)
def test_node_has_a_whole_network_when_killed_before_any_change(
    tmp_path: Path, program: Path, before: str, action: str, *, repaired: bool
) -> None:
    older = tmp_path / "older"
    older.write_text("#!/bin/sh\necho older\n")
    for event in count(1):
        node = NodeFiles.made(tmp_path / str(event))
        (node.confs / "10-pods.conflist").write_text(conflist(BRIDGE, PORTMAP))
        pristine = node.state()
        if before != "nothing":
            node.installation(plugin='{"timeoutMs": 1000}').install(older)
        installation = node.installation()
        killed = killed_at(
            event,
            lambda done=installation: (
                done.install(program) if action == "install" else done.remove(0, lambda _: None)
            ),
        )
        require_sound(node, {older.read_bytes(), program.read_bytes()})
        if repaired:
            installation.install(program)
            assert node.types() == ["bridge", "portmap", OURS]
        installation.remove(0, lambda _: None)
        assert node.state() == pristine
        if not killed:
            break
    assert event > 5  # so many changes there are at least


steps = st.lists(
    st.one_of(
        st.tuples(st.just("install"), st.integers(1, 14)),
        st.tuples(st.just("remove"), st.integers(1, 8)),
        st.tuples(st.just("change"), st.integers(0, 1)),
        st.tuples(st.just("more"), st.booleans()),
    ),
    max_size=8,
)


@settings(max_examples=20, deadline=None)
@given(steps=steps)
def test_node_has_a_whole_network_whatever_happens_and_is_as_it_was_in_the_end(
    steps: list[tuple[str, int]],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory) / "program"
        program.write_text("#!/bin/sh\n")
        node = NodeFiles.made(Path(directory) / "node")
        clean = set(node.state())
        first, more = node.confs / "10-pods.conflist", node.confs / "20-more.conf"
        first.write_text(OTHERS[first.name][0])
        installation = node.installation()
        for step, number in steps:
            if step == "install":
                killed_at(number, lambda: installation.install(program))
            elif step == "remove":
                killed_at(number, lambda: installation.remove(0, lambda _: None))
            else:
                change(first, more, step, number)
                installation.install(program)
            require_sound(node, {program.read_bytes()})
        installation.remove(0, lambda _: None)
        assert set(node.state()) - clean == {str(node.confs / name) for name in others(node)}


def change(first: Path, more: Path, step: str, number: int) -> None:
    if step == "change":
        first.write_text(OTHERS[first.name][number])
    elif number:
        more.write_text(OTHERS[more.name][0])
    else:
        more.unlink(missing_ok=True)


def test_runtime_of_these_tests_fails_without_a_plugin(node: NodeFiles) -> None:
    shutil.copy(node.confs / "10-pods.conflist", node.confs / "00.conflist")
    (node.bin / "portmap").unlink()
    with pytest.raises(BrokenNetworkError, match="portmap"):
        node.types()
