"""The first process of a guest: runs commands for the host, reaps all processes, ends the machine.

Requests and reports are lines of JSON on the virtio port `lab.agent`. The output of commands goes to files,
which the host has at the same time: they are in the folder that both share.
Imports no slow modules: this process starts at each boot of an emulated machine.
"""

import contextlib
import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

PORT = "lab.agent"
GRACE_S = 5
ENDED = 127
"""The status of a command that could not be started."""


def main() -> None:
    """Serve until the machine is to end."""
    waking, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    port = os.open(f"/dev/{_port_device()}", os.O_RDWR | os.O_CLOEXEC)
    agent = Agent(port)
    agent.report({"ready": float(Path("/proc/uptime").read_text().split()[0])})
    poll = select.poll()
    poll.register(port, select.POLLIN)
    poll.register(waking, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == waking:
                os.read(waking, 4096)
            else:
                agent.read()
        agent.reap()


class Agent:
    """port: the descriptor of a virtio port."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._unread = b""
        self._running: dict[int, int] = {}

    def report(self, what: dict[str, object]) -> None:
        """Write one line."""
        data = json.dumps(what).encode() + b"\n"
        while data:
            data = data[os.write(self._port, data) :]

    def read(self) -> None:
        """Carry out the requests of whole lines."""
        data = os.read(self._port, 65536)
        if not data:  # the host is not there yet
            time.sleep(0.05)
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._do(json.loads(line))

    def reap(self) -> None:
        """Report ended commands; orphans are only reaped."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid in self._running:
                    self.report({"id": self._running.pop(pid), "status": os.waitstatus_to_exitcode(status)})

    def _do(self, request: dict[str, Any]) -> None:
        if "argv" in request:
            self._running[_start(request)] = request["id"]
        elif "signal" in request:
            for pid, number in self._running.items():
                if number == request["id"]:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(pid, request["signal"])
        elif "off" in request:
            _end_machine()


def _start(request: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGINT, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(request["stdin"], os.O_RDWR if request["tty"] else os.O_RDONLY), 0)
        for fd, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(request[name], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644), fd)
        os.chdir(request["cwd"])
        os.environ.update(request["env"])
        os.execvp(request["argv"][0], request["argv"])  # noqa: S606
    except BaseException as error:
        os.write(2, f"lab: {request['argv'][0]}: {error}\n".encode())
    os._exit(ENDED)


def _end_machine() -> None:
    """End it as a node is shut down: processes are asked to end, then killed; the disk is written."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, number)
        deadline = time.monotonic() + GRACE_S
        with contextlib.suppress(ChildProcessError):
            while time.monotonic() < deadline:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    time.sleep(0.02)
    for command in ("umount /disk 2>/dev/null", "sync", "busybox poweroff -f"):
        os.system(command)  # noqa: S605


def _port_device() -> str:
    for _ in range(200):
        for port in Path("/sys/class/virtio-ports").glob("*"):
            name = port / "name"  # a console has no name
            if name.exists() and name.read_text().strip() == PORT:
                return port.name
        time.sleep(0.05)
    sys.exit(f"no virtio port {PORT}")


main()
