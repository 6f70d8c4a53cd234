"""One boot of a guest: QEMU from power on to power off, and the connections of this process to it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from typing import TYPE_CHECKING

from lab.channel import Channel
from lab.errors import LabError
from lab.monitor import Monitor
from lab.qemu import Hosting, Wiring, command_line

if TYPE_CHECKING:
    from lab.image import Image
    from lab.shape import Shape

PFS = ("eth0", "eth1")
REAPED_WITHIN_S = 5.0


class Boot:
    """QEMU runs when this is made."""

    terminal: socket.socket
    """Connected with the guest's hvc0, on which a shell may run."""

    def __init__(self, image: Image, shape: Shape, hosting: Hosting, fabric: socket.socket | None) -> None:
        pairs = [socket.socketpair() for _ in range(4)]
        (channel, monitor, self._cables, self.terminal), theirs = zip(*pairs, strict=True)
        shared = () if fabric is None else (fabric,)
        wiring = Wiring(*(each.fileno() for each in (*theirs, *shared)))
        self._qemu = _started(image, command_line(image, shape, hosting, wiring), hosting, wiring)
        for each in theirs:
            each.close()
        self.channel = Channel(channel)
        self.monitor = Monitor(monitor)
        self._serving = threading.Thread(target=self._serve_cables, name="lab cables", daemon=True)
        self._serving.start()

    def cable(self, pf: str, *, plugged: bool) -> None:
        """Plug or pull a cable; raise LabError if there is no such PF."""
        if pf not in PFS:
            raise LabError(f"no PF {pf!r} has a cable: {', '.join(PFS)}")
        self.monitor.execute("set_link", name=pf, up=plugged)

    def await_end(self, timeout_s: float) -> bool:
        """Report whether the guest switched itself off in time."""
        try:
            self._qemu.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def aborted(self) -> bool:
        """Report whether QEMU ended by an assertion of its own."""
        return self.await_end(REAPED_WITHIN_S) and self._qemu.returncode == -signal.SIGABRT

    def close(self) -> None:
        """Cut the power, if it is on."""
        self._qemu.kill()
        self._qemu.wait()
        self._serving.join()
        self.channel.close()
        self.monitor.close()
        self._cables.close()
        self.terminal.close()

    def _serve_cables(self) -> None:
        """Serve tests inside the guest, which pull cables too, by `lab-cable`."""
        with self._cables.makefile("rb") as lines:
            try:
                for line in lines:
                    self._cables.sendall(self._cable_answer(line.decode().split()))
            except OSError:
                pass  # QEMU was killed

    def _cable_answer(self, words: list[str]) -> bytes:
        try:
            pf, state = words
            self.cable(pf, plugged={"on": True, "off": False}[state])
        except (LabError, ValueError, KeyError) as error:
            return f"refused: {' '.join(words)}: {error}\n".encode()
        return b"ok\n"


def _started(image: Image, command: list[str], hosting: Hosting, wiring: Wiring) -> subprocess.Popen[bytes]:
    """Start QEMU, which the kernel kills when this process ends, for any reason."""
    environ = os.environ | {"QEMU_MODULE_DIR": f"{image.qemu}/usr/lib/x86_64-linux-gnu/qemu"}
    with hosting.console.open("ab") as console:
        return subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *command],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            pass_fds=wiring.descriptors(),
            start_new_session=True,  # Ctrl-C at the terminal is for us alone
        )
