"""`k8s-rdma gather --report`: what a maintainer needs of a node in one archive, secrets left out."""

from __future__ import annotations

import io
import sys
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from k8s_rdma.cli.doctor import document
from k8s_rdma.cli.doctor_node import DIRECTORIES, look_at
from k8s_rdma.cli.version import versions
from k8s_rdma.config.yaml_text import read_yaml
from k8s_rdma.doctor.looking.processes import ask_agent
from k8s_rdma.errors import K8sRdmaError, MalformedError, visible
from k8s_rdma.linux.discovery.gather import gather
from k8s_rdma.linux.discovery.netlink_queries import NetlinkQueries
from k8s_rdma.linux.sysfs import Sysfs
from k8s_rdma.wire.doctor import encode_doctor
from k8s_rdma.wire.machine import encode_machine
from k8s_rdma.wire.redaction import redacted, redacted_text
from k8s_rdma.wire.rest import encode_report
from k8s_rdma.wire.versions import encode_version

if TYPE_CHECKING:
    from k8s_rdma.cli.doctor_node import NodeOptions
    from k8s_rdma.doctor.looking.node import NodeLook

MOST_OF_A_LOG_BYTES = 4 << 20
"""Its end."""

_Part = tuple[str, Callable[[], bytes]]


def gather_report(output: Path, options: NodeOptions, logs: tuple[Path, ...]) -> None:
    """Write the archive; what cannot be had is told in it, and on standard error.

    K8sRdmaError when the archive cannot be written, or there is no node to be looked at.
    """
    missing: list[str] = []
    try:
        with NetlinkQueries() as queries, tarfile.open(output, "w:gz") as archive:
            look = look_at(options, queries)
            for name, make in _parts(look, queries, logs):
                try:
                    _add(archive, name, make())
                except (K8sRdmaError, OSError, ValueError, yaml.YAMLError) as error:
                    missing.append(f"{name}: {error}")
            _add(archive, "missing.txt", "".join(f"{each}\n" for each in missing).encode())
    except OSError as error:
        msg = f"--report {output}: {error.strerror or error}"
        raise K8sRdmaError(msg) from error
    for each in missing:
        sys.stderr.write(f"k8s-rdma: not in the report: {visible(each)}\n")
    sys.stderr.write(
        f"k8s-rdma: read {output} through before it leaves your hands: names of nodes, pods and namespaces "
        "are in it; docs/gather.md says what it holds\n"
    )


def _parts(look: NodeLook, queries: NetlinkQueries, logs: tuple[Path, ...]) -> Iterator[_Part]:
    yield "version.json", lambda: encode_version(versions())
    yield "doctor.json", lambda: encode_doctor(document("node", tuple(look.findings())))
    yield "machine.yaml", lambda: encode_machine(gather(Sysfs(look.host.root / "sys"), queries)).encode()
    yield "state.json", lambda: _state(Path(look.agent.run_dir) / "state.sock")
    for path in _configurations():
        yield f"configuration/{path.name}", partial(_configuration_of, path)
    for name, text in look.networks():
        yield f"networks/{name}", partial(_configuration, text)
    for path in logs:
        yield f"logs/{path.name}", partial(_log, path)


def _configurations() -> Iterator[Path]:
    for directory in DIRECTORIES:
        yield from sorted(directory.glob("*.yaml"))


def _configuration_of(path: Path) -> bytes:
    return _configuration(path.read_text(encoding="utf-8"))


def _configuration(text: str) -> bytes:
    """YAML, or JSON, which is YAML as well; what is neither is left out: nobody knows what it holds."""
    return yaml.safe_dump(redacted(read_yaml(text)), sort_keys=False).encode()


def _state(socket: Path) -> bytes:
    report, why = ask_agent(socket)
    if report is None:
        raise MalformedError(why)
    return encode_report(report)


def _log(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - MOST_OF_A_LOG_BYTES))
        return redacted_text(file.read().decode(errors="replace")).encode()


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(f"k8s-rdma-report/{name}")
    entry.size, entry.mode = len(data), 0o600
    archive.addfile(entry, io.BytesIO(data))
