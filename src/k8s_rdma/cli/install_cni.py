"""`k8s-rdma install-cni` and `k8s-rdma uninstall`."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from k8s_rdma import process
from k8s_rdma.config.agent import AgentConfig
from k8s_rdma.config.bounded_files import read_named_file
from k8s_rdma.errors import K8sRdmaError, MalformedError
from k8s_rdma.install.directory import InstalledProgram, NodeDirectory, all_locked, require_program
from k8s_rdma.install.installation import Installation, follow
from k8s_rdma.install.network import ConfDirectory, DesiredConflist, Network
from k8s_rdma.install.uninstallation import NodePaths, Uninstalling
from k8s_rdma.linux.host_root import below
from k8s_rdma.wire.cni_result import check_version
from k8s_rdma.wire.conflist import plugin_section

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT_S = 2.0
"""Time that another writer of the network configuration or the executable may take."""
CRIO = Path("/run/crio/crio.sock")

SUFFIX = ".conflist"


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The node's paths, as the node has them.

    host_root: our directory of its root file system.
    """

    host_root: Path
    bin_dir: Path
    conf_dir: Path
    conf_name: str
    run_dir: Path
    state_dir: Path
    cdi_dir: Path

    def own_path(self, path: Path) -> Path:
        """Translate a path of the node to ours. K8sRdmaError if it is not absolute."""
        if not path.is_absolute():
            msg = f"{path}: must be an absolute path of the node"
            raise K8sRdmaError(msg)
        return below(self.host_root, path)

    def directory(self, path: Path) -> NodeDirectory:
        """Open a directory of the node, in which links have the same targets as on the node."""
        return NodeDirectory(
            self.own_path(path), leads=lambda ours: self.own_path(Path("/", ours.relative_to(self.host_root)))
        )


def uninstall(places: Places, grace_s: float) -> int:
    """Remove everything from the node; the exit status is 1 while something is left for another run.

    K8sRdmaError if pods hold interfaces, or a path cannot be used.
    """
    if not places.host_root.is_dir():
        msg = f"--host-root {places.host_root}: no such directory; mount the node's root file system there"
        raise K8sRdmaError(msg)
    confs, binaries = (places.directory(path) for path in (places.conf_dir, places.bin_dir))
    caches = AgentConfig(node="-").cni_cache_dirs
    paths = NodePaths(
        run_dir=places.own_path(places.run_dir),
        state_dir=places.own_path(places.state_dir),
        cdi_dir=places.own_path(places.cdi_dir),
        crio=places.own_path(CRIO),
        caches=tuple(places.own_path(Path(path)) for path in caches),
    )
    work = Uninstalling(
        paths,
        conf=ConfDirectory(confs, places.conf_name),
        program=InstalledProgram(binaries),
        report=typer.echo,
    )
    work.check()
    with all_locked([directory for directory in (binaries, confs) if directory.path.is_dir()], WAIT_S):
        return 0 if work.run(grace_s) else 1


def desired_conflist(*, network: str, file: str, plugin: str, name: str, version: str) -> DesiredConflist:
    """Make the network of the options. MalformedError names the option that cannot be used."""
    if not file.endswith(SUFFIX) or "/" in file or file.startswith("."):
        msg = f"--conf-name: {file}: must be a file's name that ends in {SUFFIX}"
        raise MalformedError(msg)
    check_version(version)
    section = plugin_section(_text(plugin), chained=network == Network.CHAINED)
    return DesiredConflist(network=Network(network), file=file, section=section, name=name, version=version)


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
