"""Installation of the CNI plugin by `k8s-rdma install-cni`."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING

import typer

from k8s_rdma import process
from k8s_rdma.config.bounded_files import read_named_file
from k8s_rdma.errors import K8sRdmaError, MalformedError
from k8s_rdma.install.directory import LOCK_WAIT_S, NodeDirectory, require_program
from k8s_rdma.install.installation import Installation, follow
from k8s_rdma.install.network import DesiredConflist
from k8s_rdma.install.network_mode import NetworkMode
from k8s_rdma.wire.cni_result import check_version
from k8s_rdma.wire.conflist import plugin_section

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SUFFIX = ".conflist"


def desired_conflist(
    *, network: NetworkMode, file: str, plugin: str, name: str, version: str
) -> DesiredConflist:
    """Make the network of the options. MalformedError names the option that cannot be used."""
    if not file.endswith(SUFFIX) or "/" in file or file.startswith("."):
        msg = f"--conf-name: {file}: must be a file's name that ends in {SUFFIX}"
        raise MalformedError(msg)
    check_version(version)
    section = plugin_section(_text(plugin), chained=network is NetworkMode.CHAINED)
    return DesiredConflist(network=network, file=file, section=section, name=name, version=version)


def _text(plugin: str) -> bytes:
    """Return the option itself, or the content of the file that it names."""
    if plugin.lstrip().startswith("{"):
        return plugin.encode()
    try:
        return read_named_file(plugin)
    except OSError as error:
        msg = f"--plugin: {plugin}: neither a JSON object nor a file: {error.strerror}"
        raise MalformedError(msg) from error


def install_cni(  # noqa: PLR0913 - options
    *,
    desired: DesiredConflist,
    binaries: Path,
    confs: Path,
    following: bool,
    until_in_place: bool,
    remove: bool,
    grace_s: float,
) -> None:
    """Install executable and network once, keep them in place while this runs, or remove them.

    K8sRdmaError if they are not in place at the end.
    """
    if until_in_place and (following or remove):
        raise MalformedError("--wait does not go together with --follow and --remove")
    installation = Installation(binaries=NodeDirectory(binaries), confs=NodeDirectory(confs), desired=desired)
    if following or until_in_place:
        directories = [binaries, *([confs] if installation.has_network else [])]
        process.configure_logging("install-cni")
        asyncio.run(follow(installation, require_program(), directories, until_in_place=until_in_place))
    if remove:
        _remove(installation, grace_s)
    elif not (following or until_in_place):
        _install(installation)


def _install(installation: Installation) -> None:
    program = require_program()
    with _only_one(installation.locked(LOCK_WAIT_S)):
        outcome = installation.install(program)
    if outcome.problems:
        raise K8sRdmaError("; ".join(outcome.problems))
    for path in installation.paths(outcome):
        typer.echo(path)


def _remove(installation: Installation, grace_s: float) -> None:
    with _only_one(installation.locked_to_remove(LOCK_WAIT_S)):
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
