"""Signals that end a command do not end its cleanup."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.verify.interruption import ENDS, undisturbed

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    """Handlers as the command has them."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = [signal.signal(number, interrupt) for number in ENDS]
    yield
    for number, handler in zip(ENDS, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("number", ENDS, ids=lambda number: number.name)
def test_signal_comes_after_the_block(number: signal.Signals) -> None:
    done = []

    def block() -> None:
        with undisturbed():
            signal.raise_signal(number)
            done.append("block")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == ["block"]
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & set(ENDS)


def test_signal_interrupts_at_once_if_allowed_and_not_within_the_cleanup() -> None:
    done = []

    def undo() -> None:
        signal.raise_signal(signal.SIGINT)
        done.append("undo")

    def block() -> None:
        with undisturbed() as disturbed, ExitStack() as stack, disturbed:
            stack.callback(undo)
            signal.raise_signal(signal.SIGINT)
            done.append("never")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == ["undo"]


def test_pending_signal_interrupts_once_allowed() -> None:
    done = []

    def block() -> None:
        with undisturbed() as disturbed, ExitStack() as stack:
            stack.callback(done.append, "undo")
            signal.raise_signal(signal.SIGINT)
            with disturbed:
                done.append("never")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == ["undo"]


def test_program_that_gives_back_is_not_ended_by_the_terminal() -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGINT); print('given back')"
    with undisturbed():
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "given back\n")
