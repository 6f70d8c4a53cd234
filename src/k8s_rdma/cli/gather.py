"""`k8s-rdma gather`: this machine as a file; with `--report` an archive for maintainers, without secrets.

`cli.publishable` says which parts of files and logs are written.
"""

from __future__ import annotations

import io
import sys
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from k8s_rdma.cli.console import require_writable
from k8s_rdma.cli.doctor import DIRECTORIES, NodeOptions, collect_node, document
from k8s_rdma.cli.formats import Format, Output
from k8s_rdma.cli.publishable import redacted, redacted_text
from k8s_rdma.cli.version import versions
from k8s_rdma.config.bounded_files import read_end_of_file, read_named_text
from k8s_rdma.core.node_paths import STATE_SOCKET
from k8s_rdma.doctor.collectors.processes import ask_agent
from k8s_rdma.errors import K8sRdmaError, MalformedError, printable, visible
from k8s_rdma.linux.discovery.gather import gather
from k8s_rdma.linux.discovery.netlink_queries import NetlinkQueries
from k8s_rdma.linux.sysfs import Sysfs
from k8s_rdma.wire.doctor import encode_doctor, encode_version
from k8s_rdma.wire.machine import Machine, encode_machine, encode_machine_json
from k8s_rdma.wire.report import encode_report
from k8s_rdma.wire.yaml import read_yaml, yaml_words

if TYPE_CHECKING:
    from k8s_rdma.doctor.collectors.node import NodeCollector
    from k8s_rdma.doctor.node.cni import CniFile

MOST_OF_A_LOG_BYTES = 4 << 20
"""The limit of a log; only its end is kept."""

_Part = tuple[str, Callable[[], bytes]]


def gather_report(file: Path, options: NodeOptions, logs: tuple[Path, ...]) -> None:
    """Write the archive; list missing parts in it, and on standard error.

    K8sRdmaError if the archive cannot be written, or there is no node to examine.
    """
    missing: list[str] = []
    try:
        with NetlinkQueries() as queries, tarfile.open(file, "w:gz") as archive:
            collector = collect_node(options, queries)
            for name, build in _parts(collector, queries, logs):
                try:
                    _add(archive, name, build())
                except (K8sRdmaError, OSError, ValueError) as error:
                    missing.append(printable(f"{name}: {error}"))
            _add(archive, "missing.txt", "".join(f"{item}\n" for item in missing).encode())
    except OSError as error:
        msg = f"--report {file}: {error.strerror or error}"
        raise K8sRdmaError(msg) from error
    for item in missing:
        sys.stderr.write(f"k8s-rdma: not in the report: {visible(item)}\n")
    sys.stderr.write(
        f"k8s-rdma: read {file} through before it leaves your hands: names of nodes, pods and namespaces "
        "are in it; docs/gather.md says what it holds\n"
    )


def _parts(collector: NodeCollector, queries: NetlinkQueries, logs: tuple[Path, ...]) -> Iterator[_Part]:
    yield "version.json", lambda: encode_version(versions())
    yield "doctor.json", lambda: encode_doctor(document("node", tuple(collector.findings())))
    yield "machine.yaml", lambda: encode_machine(gather(Sysfs(collector.host.root / "sys"), queries)).encode()
    yield "state.json", lambda: _state(Path(collector.agent.run_dir) / STATE_SOCKET)
    for path in _configurations():
        yield f"configuration/{path.name}", partial(_configuration_of, path)
    for file in collector.networks():
        yield f"networks/{printable(file.name)}", partial(_network, file)
    for path in logs:
        yield f"logs/{path.name}", partial(_log, path)


def _configurations() -> Iterator[Path]:
    for directory in DIRECTORIES:
        yield from sorted(directory.glob("*.yaml"))


def _configuration_of(path: Path) -> bytes:
    return _configuration(read_named_text(path))


def _configuration(text: str) -> bytes:
    """Redact YAML, or JSON, which is YAML as well; omit other text, because its content is unknown."""
    try:
        document = read_yaml(text)
    except yaml.YAMLError as error:
        raise MalformedError(yaml_words(error)) from error  # its own text shows a part of the file
    return yaml.safe_dump(redacted(document), sort_keys=False).encode()


def _network(file: CniFile) -> bytes:
    if file.text is None:
        raise MalformedError(file.why)
    return _configuration(file.text)


def _state(socket: Path) -> bytes:
    report, why = ask_agent(socket)
    if report is None:
        raise MalformedError(why)
    return encode_report(report)


def _log(path: Path) -> bytes:
    return redacted_text(read_end_of_file(path, MOST_OF_A_LOG_BYTES).decode(errors="replace")).encode()


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(f"k8s-rdma-report/{name}")
    entry.size, entry.mode = len(data), 0o600
    archive.addfile(entry, io.BytesIO(data))


def gather_machine(file: Path | None, output: Output) -> None:
    """Write the machine to a file or to standard output, and a line of advice to standard error.

    K8sRdmaError if it cannot be written, or the kernel cannot be queried at all.
    """
    require_writable(file, "--file")
    with NetlinkQueries() as queries:
        machine = gather(Sysfs(), queries)
    text = _machine_text(machine, output.format)
    if file is None:
        sys.stdout.write(text)
    else:
        try:
            file.write_text(text, encoding="utf-8")
        except OSError as error:
            msg = f"--file {file}: {error.strerror}"
            raise K8sRdmaError(msg) from error
    for problem in machine.about.unreadable:
        sys.stderr.write(f"k8s-rdma: could not be looked at: {visible(problem)}\n")
    if output.format is Format.NAME:
        return
    destination = file or "what was printed"
    sys.stderr.write(
        f"k8s-rdma: read {destination} through, then attach it to your report;"
        " docs/gather.md says what it holds\n"
    )


def _machine_text(machine: Machine, form: Format | None) -> str:
    """Return the document, YAML for people; or the names of netdevs of PCI devices."""
    match form:
        case Format.JSON:
            return encode_machine_json(machine).decode()
        case Format.NAME:
            return "".join(f"link/{visible(link.name)}\n" for link in machine.links if link.device)
        case _:
            return encode_machine(machine)
