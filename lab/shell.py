"""A person's shell in a guest: this terminal joined with the guest's, or commands from stdin without one."""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import termios
import threading
import tty
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lab.say import step

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from lab.machine import Background, Machine

SHELL = "/opt/lab/lab-shell"
SET_UP_WITHIN_S = 600


def set_up(machine: Machine) -> None:
    """Make it a node, as the documentation says."""
    with step("a node is set up: init, agent, server"):
        machine.run("lab-node", timeout_s=SET_UP_WITHIN_S)


def shell(machine: Machine) -> int:
    """Run a shell to its end; return its status."""
    if sys.stdin.isatty():
        return _on_terminal(machine)
    (machine.shared / "commands").write_bytes(sys.stdin.buffer.read())
    running = machine.start("bash", "-c", f"exec {SHELL} </lab/commands", name="shell")
    return follow(running)


def follow(running: Background) -> int:
    """Show a command's output while it runs; return its status."""
    shown = 0
    ends = False
    while True:
        if running.log.exists():
            with running.log.open("rb") as log:
                log.seek(shown)
                said = log.read()
            shown += len(said)
            sys.stdout.buffer.write(said)
            sys.stdout.flush()
        if ends:
            return running.wait()
        ends = not running.running(within_s=0.2)


def _on_terminal(machine: Machine) -> int:
    env = {"TERM": os.environ.get("TERM", "linux")}
    _resize(machine)
    with _raw(), _resized(machine):
        running = machine.start_on_terminal(SHELL, env=env)
        _relay(machine.terminal, running)
    return running.wait()


def _resize(machine: Machine) -> None:
    size = shutil.get_terminal_size()
    machine.run("stty", "-F", "/dev/hvc0", "rows", str(size.lines), "cols", str(size.columns), check=False)


@contextmanager
def _resized(machine: Machine) -> Iterator[None]:
    """Have the guest's terminal follow the size of ours."""

    def follow_size(*_: object) -> None:
        threading.Thread(target=_resize, args=(machine,), daemon=True).start()

    before = signal.signal(signal.SIGWINCH, follow_size)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)


@contextmanager
def _raw() -> Iterator[None]:
    """Send every key to the guest, Ctrl-C too."""
    before = termios.tcgetattr(sys.stdin)
    tty.setraw(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _relay(terminal: socket.socket, running: Background) -> None:
    ends = False
    while True:
        ready, _, _ = select.select([terminal, sys.stdin], [], [], 0.1)
        if terminal in ready:
            os.write(sys.stdout.fileno(), terminal.recv(65536))
        elif ends:
            return
        if sys.stdin in ready:
            terminal.sendall(os.read(sys.stdin.fileno(), 4096))
        ends = not running.running()
