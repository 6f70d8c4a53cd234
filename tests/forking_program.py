"""Loads all of the program, forks for each request of `warm_program.py`, and reports how the fork ended.

A request is JSON: arguments, environment, directory, user. Five files come with it: the standard streams, the
network namespace, and a socket for reports. These are two: the fork's pid, with a pidfd, and its status.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import selectors
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from k8s_rdma import cli
from k8s_rdma.cli.entry import main
from k8s_rdma.linux.netns import entered

if TYPE_CHECKING:
    from collections.abc import Sequence

STREAMS = 3
FILES = STREAMS + 2
MAX_REQUEST_BYTES = 1 << 17

LOADED_LATER = (
    *("anyio.streams.tls", "anyio.to_thread", "encodings.idna", "h2.connection", "httpcore2"),
    *("rich._emoji_codes", "typer._click.decorators"),
)
"""Modules that libraries load only when they use them."""

PROCESSES = tuple(f"k8s_rdma.{name}.main" for name in ("agent", "deviceplugin", "extender", "server"))
"""Modules that the entry of the program loads only for the process that it starts."""


class _Fork(NamedTuple):
    """A process that runs, and the socket for reports on it."""

    pid: int
    reports: socket.socket


def _fork_for_requests(channel: socket.socket) -> tuple[bytes, Sequence[int]]:
    """Return in forks alone, with their request and its files; exit if no more requests will come."""
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if isinstance(key.data, _Fork):
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    _report_end(key.data)
                    continue
                request, files, _, _ = socket.recv_fds(channel, MAX_REQUEST_BYTES, FILES)
                if not request:
                    sys.exit()
                pid = os.fork()
                if not pid:
                    return request, files
                *others, reports = files
                for file in others:
                    os.close(file)
                fork = _Fork(pid, socket.socket(fileno=reports))
                pidfd = os.pidfd_open(pid)
                with suppress(BrokenPipeError):
                    socket.send_fds(fork.reports, [str(pid).encode()], [pidfd])
                selector.register(pidfd, selectors.EVENT_READ, fork)


def _report_end(fork: _Fork) -> None:
    _, status = os.waitpid(fork.pid, 0)
    with suppress(BrokenPipeError), fork.reports:
        fork.reports.send(str(os.waitstatus_to_exitcode(status)).encode())


def _become(request: bytes, files: Sequence[int]) -> NoReturn:
    """Make this process the one that a request describes, and run the program."""
    *streams, namespace, _ = files
    if os.path.samestat(os.fstat(namespace), Path("/proc/self/ns/net").stat()):
        _run(request, streams)
    with entered(namespace):
        _run(request, streams)


def _run(request: bytes, streams: Sequence[int]) -> NoReturn:
    """Run the program, and end without the interpreter's dismantling, which visits all that is loaded."""
    arguments, environment, directory, user = json.loads(request)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(STREAMS, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    if user is not None:
        os.setgroups(())
        os.setgid(user)
        os.setuid(user)
    sys.argv = ["k8s-rdma", *arguments]
    sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115 - descriptors, until the end
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace")  # noqa: SIM115
    status: str | int | None = 0
    try:
        main()
    except SystemExit as end:
        status = end.code
        if not isinstance(status, int | None):
            sys.stderr.write(f"{status}\n")
            status = 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or 0)


def _load() -> None:
    modules = [module.name for module in pkgutil.walk_packages(cli.__path__, f"{cli.__name__}.")]
    for name in [*modules, *LOADED_LATER, *PROCESSES]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # no collection of a fork copies the memory of these objects


if __name__ == "__main__":
    _load()
    _become(*_fork_for_requests(socket.socket(fileno=int(sys.argv[1]))))
