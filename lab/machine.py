"""Machines: guests that run, which commands are given to, whose cables are pulled and whose power is cut."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lab.channel import Channel
from lab.command import Background, Completed, ended, request
from lab.errors import CommandTimedOut, LabError, MachineDied
from lab.image import build
from lab.layers import REPOSITORY
from lab.monitor import Monitor
from lab.qemu import Hosting, Wiring, command_line
from lab.shape import Shape

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lab.cache import Cache
    from lab.image import Image

__all__ = ["Background", "Completed", "Machine", "Shape", "start", "start_fabric"]

BOOTED_WITHIN_S = 180.0
"""An emulated machine among many needs a minute."""
POWERED_OFF_WITHIN_S = 60.0
CONSOLE_LINES = 40
PFS = ("eth0", "eth1")
_STREAMS = ".streams"
_KILLED_WITHIN_S = 20.0


class Machine:
    """One guest. shared: a folder of the host that the guest has as /lab; the repository is its /src."""

    def __init__(self, image: Image, shape: Shape, hosting: Hosting, fabric: socket.socket | None) -> None:
        self.name = hosting.name
        self.shape = shape
        self.shared = hosting.shared
        self._image = image
        self._hosting = hosting
        self._fabric = fabric
        self._qemu: subprocess.Popen[bytes] | None = None
        self._stack = ExitStack()

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

        CommandFailed with what it said if it fails and is checked; CommandTimedOut when its time is over: then
        its process group is killed. MachineDied if the guest ends.
        """
        number = self._channel.number()
        streams = {name: f"{_STREAMS}/{self._boots}.{number}.{name}" for name in ("stdout", "stderr", "stdin")}
        if input is not None:
            (self.shared / streams["stdin"]).write_text(input)
        guest = {name: f"/lab/{path}" for name, path in streams.items()}
        guest |= {} if input is not None else {"stdin": "/dev/null"}
        with self._console_told():
            self._channel.send(**request(number, argv, env, cwd), **guest)
            status = self._channel.await_status(number, timeout_s)
            if status is None:
                self._channel.send(id=number, signal=9)
                self._channel.await_status(number, _KILLED_WITHIN_S)
        completed = Completed(status or 0, self._take(streams["stdout"]), self._take(streams["stderr"]))
        (self.shared / streams["stdin"]).unlink(missing_ok=True)
        if status is None:
            said = completed.stdout + completed.stderr
            raise CommandTimedOut(f"{' '.join(argv)}: killed after {timeout_s:g} s\n{said}")
        return ended(argv, completed, check=check)

    def start(
        self, *argv: str, name: str, env: Mapping[str, str] | None = None, cwd: str = "/lab"
    ) -> Background:
        """Start a command as root, which goes on; what it says is in `shared/NAME.log`, after what it said before."""
        number = self._channel.number()
        log = f"{name}.log"
        streams = {"stdin": "/dev/null", "stdout": f"/lab/{log}", "stderr": f"/lab/{log}"}
        self._channel.send(**request(number, argv, env, cwd), **streams)
        return Background(self._channel, number, argv, self.shared / log)

    def write(self, path: str, text: str, *, mode: int = 0o644) -> None:
        """A file of the guest, and the folders that it is in."""
        script = 'mkdir -p "$(dirname "$1")" && cat >"$1" && chmod "$2" "$1"'
        self.run("bash", "-c", script, "write", path, f"{mode:o}", input=text)

    def read(self, path: str) -> str:
        """A file of the guest."""
        return self.run("cat", path).stdout

    # Cables and power

    def cable(self, pf: str, plugged: bool) -> None:  # noqa: FBT001
        """Plug or pull the cable of eth0 or eth1."""
        if pf not in PFS:
            raise LabError(f"no PF {pf!r} has a cable: {', '.join(PFS)}")
        self._monitor.execute("set_link", name=pf, up=plugged)

    def crash(self) -> None:
        """Cut the power at once, and boot again with the same disk and shared folder."""
        self.power_off(at_once=True)
        self.boot()

    def reboot(self) -> None:
        """End all processes, write the disk, and boot again with it."""
        self.power_off(at_once=False)
        self.boot()

    def power_off(self, *, at_once: bool) -> None:
        """Nothing can be asked of it until `boot`."""
        assert self._qemu is not None
        if at_once:
            self._qemu.kill()
        else:
            self._channel.send(off=True)
        try:
            self._qemu.wait(POWERED_OFF_WITHIN_S)
        except subprocess.TimeoutExpired as error:
            raise LabError(f"{self.name} did not power off within {POWERED_OFF_WITHIN_S:g} s") from error
        self.close()

    def boot(self) -> None:
        """Switch it on, and wait until it takes commands."""
        self.switch_on()
        self.await_boot()

    def switch_on(self) -> None:
        """Begin to boot."""
        (self.shared / _STREAMS).mkdir(exist_ok=True)
        self._boots = getattr(self, "_boots", 0) + 1
        if self._fabric is not None:
            _drain(self._fabric)
        pairs = [socket.socketpair() for _ in range(4)]
        ours, theirs = zip(*pairs, strict=True)
        channel, monitor, cable, terminal = theirs
        wiring = Wiring(
            channel=channel.fileno(), monitor=monitor.fileno(), cable=cable.fileno(), terminal=terminal.fileno(),
            fabric=self._fabric.fileno() if self._fabric else None,
        )  # fmt: skip
        self._qemu = self._stack.enter_context(self._running(wiring))
        for each in theirs:
            each.close()
        self._channel = Channel(ours[0])
        self._monitor = Monitor(ours[1])
        self.terminal = ours[3]
        cables = threading.Thread(target=self._serve_cables, args=(ours[2],), name="lab cables", daemon=True)
        cables.start()
        # In the order of the stack: QEMU ends first, then what is connected with it.
        self._stack.callback(self._qemu.kill)

        def close_all() -> None:
            self._channel.close()
            self._monitor.close()
            cables.join()
            ours[2].close()
            self.terminal.close()

        self._after = close_all

    def await_boot(self) -> None:
        """MachineDied with the console if it does not come up."""
        self.uptime_s = self._channel.await_ready(BOOTED_WITHIN_S)
        if self.uptime_s is None:
            raise MachineDied(f"{self.name} did not come up\n{self.console()}")

    def close(self) -> None:
        """End it, whatever it does."""
        if self._qemu is None:
            return
        self._stack.close()
        self._after()
        self._qemu = None

    def console(self) -> str:
        """The last lines of it."""
        lines = self._hosting.console.read_text(errors="replace").splitlines()
        return "\n".join(f"  console| {line}" for line in lines[-CONSOLE_LINES:])

    @contextmanager
    def _running(self, wiring: Wiring) -> Iterator[subprocess.Popen[bytes]]:
        """QEMU, which the kernel kills when this process ends, however it does."""
        command = command_line(self._image, self.shape, self._hosting, wiring)
        environ = os.environ | {"QEMU_MODULE_DIR": f"{self._image.qemu}/usr/lib/x86_64-linux-gnu/qemu"}
        with self._hosting.console.open("ab") as console:
            qemu = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                pass_fds=wiring.descriptors(),
                start_new_session=True,  # Ctrl-C at the terminal is for us alone
            )
        try:
            yield qemu
        finally:
            qemu.kill()
            qemu.wait()

    def _serve_cables(self, requests: socket.socket) -> None:
        """Tests inside the guest pull cables too, by `lab-cable`."""
        with requests.makefile("rb") as lines:
            try:
                for line in lines:
                    requests.sendall(self._cable_answer(line.decode().split()))
            except OSError:
                pass  # QEMU was killed

    def _cable_answer(self, words: list[str]) -> bytes:
        try:
            pf, state = words
            self.cable(pf, {"on": True, "off": False}[state])
        except (LabError, ValueError, KeyError) as error:
            return f"refused: {' '.join(words)}: {error}\n".encode()
        return b"ok\n"

    @contextmanager
    def _console_told(self) -> Iterator[None]:
        try:
            yield
        except MachineDied as error:
            raise MachineDied(f"{self.name}: {error}\n{self.console()}") from error

    def _take(self, path: str) -> str:
        file = self.shared / path
        if not file.exists():
            return ""
        text = file.read_text(errors="replace")
        file.unlink()
        return text


@contextmanager
def start(shape: Shape, *, cache: Cache, shared: Path, name: str = "node") -> Iterator[Machine]:
    """One machine, booted; ended with the block. shared: an existing folder."""
    image = build(cache)
    with _machine(image, shape, shared, name, 0, None) as machine:
        machine.boot()
        yield machine


@contextmanager
def start_fabric(shape: Shape, *, cache: Cache, shared: Path) -> Iterator[tuple[Machine, Machine]]:
    """Two machines whose PFs share an Ethernet; `shared` gets a folder for each, a and b."""
    image = build(cache)
    with ExitStack() as stack:
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        machines = []
        for number, (name, end) in enumerate(zip(("a", "b"), ends, strict=True)):
            stack.callback(end.close)
            (shared / name).mkdir(exist_ok=True)
            made = _machine(image, shape, shared / name, name, 10 + number, end)
            machines.append(stack.enter_context(made))
        for machine in machines:
            machine.switch_on()
        for machine in machines:
            machine.await_boot()
        yield machines[0], machines[1]


@contextmanager
def _machine(
    image: Image, shape: Shape, shared: Path, name: str, number: int, fabric: socket.socket | None
) -> Iterator[Machine]:
    disk = None
    if shape.disk_mb is not None:
        disk = shared / "disk.img"
        with disk.open("wb") as file:
            file.truncate(shape.disk_mb * 2**20)
    hosting = Hosting(
        name=name, number=number, shared=shared.resolve(), source=REPOSITORY, console=shared.resolve() / "console.txt", disk=disk
    )
    machine = Machine(image, shape, hosting, fabric)
    try:
        yield machine
    finally:
        machine.close()
        shutil.rmtree(shared / _STREAMS, ignore_errors=True)


def _drain(fabric: socket.socket) -> None:
    """Frames that were sent to a machine without power are lost."""
    fabric.setblocking(False)
    try:
        while True:
            fabric.recv(2**17)
    except BlockingIOError:
        pass
    finally:
        fabric.setblocking(True)
