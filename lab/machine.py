"""Machines: running guests, with commands, cables and power."""

from __future__ import annotations

import shutil
import signal
import socket
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from lab.boot import Boot
from lab.command import Background, Completed, ended, request
from lab.errors import CommandTimedOut, LabError, MachineDied
from lab.image import Image, build
from lab.layers import REPOSITORY
from lab.qemu import Hosting
from lab.say import say
from lab.shape import Shape
from lab.tsc import tsc_khz

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from lab.cache import Cache

__all__ = ["Background", "Completed", "Machine", "Shape", "start", "start_fabric"]

BOOTED_WITHIN_S = 300.0
"""An emulated machine among many needs a minute, and much more if others use its processors."""
BOOTS = 3
"""QEMU 10.0.2 sometimes fails by an assertion of its own (`iotlb_to_section`) while a guest boots."""
POWERED_OFF_WITHIN_S = 120.0
CONSOLE_LINES = 100
_STREAMS = ".streams"
_KILLED_WITHIN_S = 20.0


class Machine:
    """One guest. shared: a folder of the host that the guest has as /lab; the repository is its /src."""

    def __init__(self, image: Image, shape: Shape, hosting: Hosting, fabric: socket.socket | None) -> None:
        self.name = hosting.name
        self.shape = shape
        self.shared = hosting.shared
        self.uptime_s = 0.0
        """The uptime of the guest when it took its first command."""
        self._image = image
        self._hosting = hosting
        self._fabric = fabric
        self._on: Boot | None = None

    # Commands

    def run(
        self,
        *argv: str,
        timeout_s: float = 60,
        check: bool = True,
        input: str | None = None,  # noqa: A002 # as subprocess.run has it
        env: Mapping[str, str] | None = None,
        cwd: str = "/lab",
    ) -> Completed:
        """Run a command as root, to its end; other ones may run at the same time.

        Raises CommandFailed with its output if it fails and is checked; CommandTimedOut if its time is over:
        then its process group is killed. MachineDied if the guest ends.
        """
        channel = self._boot.channel
        number = channel.number()
        streams = {
            name: self.shared / _STREAMS / f"{number}.{name}" for name in ("stdin", "stdout", "stderr")
        }
        guest = {name: f"/lab/{_STREAMS}/{path.name}" for name, path in streams.items()}
        if input is None:
            guest["stdin"] = "/dev/null"
        else:
            streams["stdin"].write_text(input)
        with self._console_told():
            channel.send(**request(number, argv, env, cwd), **guest)
            status = channel.await_status(number, timeout_s)
            if status is None:
                channel.send(id=number, signal=signal.SIGKILL)
                channel.await_status(number, _KILLED_WITHIN_S)
        completed = Completed(status or 0, _taken(streams["stdout"]), _taken(streams["stderr"]))
        streams["stdin"].unlink(missing_ok=True)
        if status is None:
            said = completed.stdout + completed.stderr
            raise CommandTimedOut(f"{' '.join(argv)}: killed after {timeout_s:g} s\n{said}")
        return ended(argv, completed, check=check)

    def start(
        self, *argv: str, name: str, env: Mapping[str, str] | None = None, cwd: str = "/lab"
    ) -> Background:
        """Start a command as root, which goes on; its output is appended to `shared/NAME.log`."""
        channel = self._boot.channel
        number = channel.number()
        log = self.shared / f"{name}.log"
        streams = {"stdin": "/dev/null", "stdout": f"/lab/{log.name}", "stderr": f"/lab/{log.name}"}
        channel.send(**request(number, argv, env, cwd), **streams)
        return Background(channel, number, argv, log)

    def start_on_terminal(self, *argv: str, env: Mapping[str, str] | None = None) -> Background:
        """Start a command as root on the guest's terminal hvc0, which `terminal` is connected with."""
        channel = self._boot.channel
        number = channel.number()
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), "/dev/hvc0")
        channel.send(**request(number, argv, env, "/lab", tty=True), **streams)
        return Background(channel, number, argv, self.shared / "terminal.log")

    def write(self, path: str, text: str, *, mode: int = 0o644) -> None:
        """Write a file of the guest, and make its folders."""
        script = 'mkdir -p "$(dirname "$1")" && cat >"$1" && chmod "$2" "$1"'
        self.run("bash", "-c", script, "write", path, f"{mode:o}", input=text)

    def read(self, path: str) -> str:
        """Return a file of the guest."""
        return self.run("cat", path).stdout

    # Cables and power

    def cable(self, pf: str, plugged: bool) -> None:
        """Plug or pull the cable of eth0 or eth1."""
        self._boot.cable(pf, plugged=plugged)

    def crash(self) -> None:
        """Cut the power at once, and boot again with the same disk and shared folder."""
        self.close()
        self.boot()

    def reboot(self) -> None:
        """End all processes, write the disk, and boot again with it."""
        self._boot.channel.send(off=True)
        if not self._boot.await_end(POWERED_OFF_WITHIN_S):
            raise LabError(
                f"{self.name} did not power off within {POWERED_OFF_WITHIN_S:g} s\n{self.console()}"
            )
        self.crash()

    def boot(self) -> None:
        """Switch it on, and wait until it takes commands."""
        self.switch_on()
        self.await_boot()

    def switch_on(self) -> None:
        """Begin to boot."""
        (self.shared / _STREAMS).mkdir(exist_ok=True)
        if self._fabric is not None:
            _drain(self._fabric)
        self._on = Boot(self._image, self.shape, self._hosting, self._fabric)

    def await_boot(self) -> None:
        """Wait until it is up; raise MachineDied with the console if it does not come up."""
        uptime_s = self._boot.channel.await_ready(BOOTED_WITHIN_S)
        for _ in range(BOOTS - 1):
            if uptime_s is not None or not self._boot.aborted():
                break
            say(f"{self.name}: the emulator failed, once more\n{self.console()}")
            self.close()
            self.switch_on()
            uptime_s = self._boot.channel.await_ready(BOOTED_WITHIN_S)
        if uptime_s is None:
            raise MachineDied(f"{self.name} did not come up\n{self.console()}")
        self.uptime_s = uptime_s

    def close(self) -> None:
        """Cut the power."""
        if self._on is not None:
            self._on.close()
            self._on = None

    def console(self) -> str:
        """Return the last lines of the console."""
        lines = self._hosting.console.read_text(errors="replace").splitlines()
        return "\n".join(f"  console| {line}" for line in lines[-CONSOLE_LINES:])

    @property
    def terminal(self) -> socket.socket:
        """Return a socket that is connected with the guest's hvc0, on which a shell may run."""
        return self._boot.terminal

    @property
    def _boot(self) -> Boot:
        if self._on is None:
            raise MachineDied(f"{self.name} is off")
        return self._on

    @contextmanager
    def _console_told(self) -> Iterator[None]:
        try:
            yield
        except MachineDied as error:
            raise MachineDied(f"{self.name}: {error}\n{self.console()}") from error


@contextmanager
def start(shape: Shape, *, cache: Cache, shared: Path, name: str = "node") -> Iterator[Machine]:
    """Boot one machine, which ends with the block. shared: an existing folder."""
    with _machine(build(cache), shape, _hosting(shape, shared, name, 0)) as machine:
        machine.boot()
        yield machine


@contextmanager
def start_fabric(shape: Shape, *, cache: Cache, shared: Path) -> Iterator[tuple[Machine, Machine]]:
    """Boot two machines with PFs on one Ethernet; `shared` gets a folder for each, a and b."""
    image = build(cache)
    with ExitStack() as stack:
        ends = [stack.enter_context(end) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)]
        machines = []
        for number, (name, end) in enumerate(zip(("a", "b"), ends, strict=True), 10):
            (shared / name).mkdir(exist_ok=True)
            hosting = _hosting(shape, shared / name, name, number)
            machines.append(stack.enter_context(_machine(image, shape, hosting, end)))
        for machine in machines:
            machine.switch_on()
        for machine in machines:
            machine.await_boot()
        yield machines[0], machines[1]


def _hosting(shape: Shape, shared: Path, name: str, number: int) -> Hosting:
    folder = shared.resolve()
    disk = None
    if shape.disk_mb is not None:
        disk = folder / "disk.img"
        with disk.open("wb") as file:
            file.truncate(shape.disk_mb * 2**20)
    return Hosting(
        name=name,
        number=number,
        shared=folder,
        source=REPOSITORY,
        console=folder / "console.txt",
        disk=disk,
        tsc_khz=tsc_khz(),
    )


@contextmanager
def _machine(
    image: Image, shape: Shape, hosting: Hosting, fabric: socket.socket | None = None
) -> Iterator[Machine]:
    machine = Machine(image, shape, hosting, fabric)
    try:
        yield machine
    finally:
        machine.close()
        shutil.rmtree(hosting.shared / _STREAMS, ignore_errors=True)


def _taken(file: Path) -> str:
    if not file.exists():
        return ""
    text = file.read_text(errors="replace")
    file.unlink()
    return text


def _drain(fabric: socket.socket) -> None:
    """Drop the frames that were sent to a machine without power."""
    fabric.setblocking(False)
    try:
        while True:
            fabric.recv(2**17)
    except BlockingIOError:
        pass
    finally:
        fabric.setblocking(True)
