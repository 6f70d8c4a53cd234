"""`k8s-rdma install-cni`: what its options mean."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from k8s_rdma import logs
from k8s_rdma.errors import K8sRdmaError, MalformedError
from k8s_rdma.install.directory import NodeDirectory
from k8s_rdma.install.following import follow
from k8s_rdma.install.installation import Installation
from k8s_rdma.install.network import Network, Wanted
from k8s_rdma.install.program import require_program
from k8s_rdma.wire.cni_result import check_version
from k8s_rdma.wire.conflist import plugin_section

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

WAIT_S = 2.0
"""How long another one may take that is at work in the same directory."""

SUFFIX = ".conflist"


def wanted(*, network: str, file: str, plugin: str, name: str, version: str) -> Wanted:
    """MalformedError names the option that cannot be."""
    if not file.endswith(SUFFIX) or "/" in file or file.startswith("."):
        msg = f"--conf-name: {file}: must be a file's name that ends in {SUFFIX}"
        raise MalformedError(msg)
    check_version(version)
    section = plugin_section(_text(plugin), chained=network == Network.CHAINED)
    return Wanted(network=Network(network), file=file, section=section, name=name, version=version)


def _text(plugin: str) -> bytes:
    """The option itself, or what is in the file that it names."""
    if plugin.lstrip().startswith("{"):
        return plugin.encode()
    try:
        return Path(plugin).read_bytes()
    except OSError as error:
        msg = f"--plugin: {plugin}: neither a JSON object nor a file: {error.strerror}"
        raise MalformedError(msg) from error


def install_cni(  # noqa: PLR0913 - options
    *,
    wanted: Wanted,
    binaries: Path,
    confs: Path,
    following: bool,
    until_in_place: bool,
    remove: bool,
    grace_s: float,
) -> None:
    """Do it once, or for as long as this runs; K8sRdmaError when it is not in place at the end."""
    if until_in_place and (following or remove):
        raise MalformedError("--wait does not go together with --follow and --remove")
    installation = Installation(binaries=NodeDirectory(binaries), confs=NodeDirectory(confs), wanted=wanted)
    if following or until_in_place:
        directories = [binaries, *([confs] if installation.has_network else [])]
        logs.configure("install-cni")
        asyncio.run(follow(installation, require_program(), directories, until_in_place=until_in_place))
    if remove:
        _remove(installation, grace_s)
    elif not (following or until_in_place):
        _install(installation)


def _install(installation: Installation) -> None:
    program = require_program()
    with _only_one(installation.locked(WAIT_S)):
        outcome = installation.install(program)
    if outcome.problems:
        raise K8sRdmaError("; ".join(outcome.problems))
    for path in installation.paths(outcome):
        typer.echo(path)


def _remove(installation: Installation, grace_s: float) -> None:
    with _only_one(installation.locked_to_remove(WAIT_S)):
        installation.remove(grace_s, typer.echo)


@contextmanager
def _only_one(locked: AbstractContextManager[None]) -> Iterator[None]:
    with ExitStack() as stack:
        try:
            stack.enter_context(locked)
        except OSError as error:
            msg = f"{error.filename}: {error.strerror}"
            raise K8sRdmaError(msg) from error
        yield
