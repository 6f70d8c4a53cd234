"""The commands `explain`, `top`, `doctor` and `gather`.

`explain`, `top` and `doctor` import their implementation when they run. `gather` writes this machine as a
file; with `--report` an archive for maintainers, without secrets.

Secrets are known by the names of keys, as nothing else distinguishes a secret from a value. Our own files
name files that hold secrets, and hold none themselves; those of other network plugins may.
"""

from __future__ import annotations

import io
import re
import sys
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from k8s_rdma.cli.console import versions
from k8s_rdma.cli.doctor import DIRECTORIES, NodeOptions, collect_node, document
from k8s_rdma.config.files import read_yaml
from k8s_rdma.doctor.collectors.processes import ask_agent
from k8s_rdma.errors import K8sRdmaError, MalformedError, visible
from k8s_rdma.linux.discovery.gather import gather
from k8s_rdma.linux.discovery.netlink_queries import NetlinkQueries
from k8s_rdma.linux.sysfs import Sysfs
from k8s_rdma.wire.doctor import encode_doctor, encode_version
from k8s_rdma.wire.machine import encode_machine
from k8s_rdma.wire.rest import encode_report
from k8s_rdma.wire.views import Sort

if TYPE_CHECKING:
    from k8s_rdma.cli.extender_client import ExtenderAddress
    from k8s_rdma.doctor.collectors.node import NodeCollector


Extender = Annotated[
    str | None,
    typer.Option(
        "--extender",
        metavar="URL",
        envvar="K8S_RDMA_EXTENDER",
        help="The extender's URL; default http://127.0.0.1:8888.",
    ),
]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", metavar="FILE", help="The extender's bearer token.")
]
CertFile = Annotated[
    Path | None,
    typer.Option("--cert-file", metavar="FILE", help="PEM: the client certificate."),
]
KeyFile = Annotated[
    Path | None, typer.Option("--key-file", metavar="FILE", help="PEM: the client certificate's key.")
]
CaFile = Annotated[
    Path | None,
    typer.Option(
        "--ca-file",
        metavar="FILE",
        help="PEM: the CA of the extender's certificate; default the system's CAs.",
    ),
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Trust any certificate.")]
Json = Annotated[bool, typer.Option("--json", help="Print the extender's document.")]
DoctorJson = Annotated[bool, typer.Option("--json", help="Print a document; docs/doctor.md has its form.")]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with status 1 on warnings, too.")]
explain_app = typer.Typer(no_args_is_help=True, help="Explain decisions of the extender.")
doctor_app = typer.Typer(
    no_args_is_help=True, help="Find problems of a node or a cluster, and their remedies."
)


@explain_app.callback()
def explain() -> None:
    """Explain a decision."""


@explain_app.command("pod")
def explain_pod(  # noqa: PLR0913 - typer's options
    pod: Annotated[str, typer.Argument(metavar="NAMESPACE/NAME", help="The pod.")],
    *,
    node: Annotated[
        list[str] | None, typer.Option("--node", metavar="NAME", help="This node in detail; may be repeated.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every node in detail, not in groups.")] = False,
    as_json: Json = False,
    extender: Extender = None,
    token_file: TokenFile = None,
    cert_file: CertFile = None,
    key_file: KeyFile = None,
    ca_file: CaFile = None,
    insecure: Insecure = False,
) -> None:
    """Show where a pod is, and why each node accepts or refuses it, PF by PF. Queries the extender."""
    from k8s_rdma.cli.explain import explain as show

    endpoint = extender_address(
        extender=extender,
        token_file=token_file,
        cert_file=cert_file,
        key_file=key_file,
        ca_file=ca_file,
        insecure=insecure,
    )
    show(endpoint, pod, nodes=node or [], every=every, as_json=as_json)


def top(  # noqa: PLR0913 - typer's options
    *,
    one_shot: Annotated[
        bool,
        typer.Option("--once", help="Print once and exit; the default when the output is not a terminal."),
    ] = False,
    sort: Annotated[
        Sort, typer.Option(help="The order of nodes.", show_choices=True, case_sensitive=False)
    ] = Sort.RESERVED,
    as_json: Json = False,
    extender: Extender = None,
    token_file: TokenFile = None,
    cert_file: CertFile = None,
    key_file: KeyFile = None,
    ca_file: CaFile = None,
    insecure: Insecure = False,
) -> None:
    """Nodes, PFs, reservations and the pods that wait, every 2 s until Ctrl-C; asks the extender."""
    from k8s_rdma.cli.top import top as show

    endpoint = extender_address(
        extender=extender,
        token_file=token_file,
        cert_file=cert_file,
        key_file=key_file,
        ca_file=ca_file,
        insecure=insecure,
    )
    show(endpoint, one_shot=one_shot, as_json=as_json, sort=sort)


@doctor_app.callback()
def doctor() -> None:
    """Show problems with evidence and remedies. Changes nothing."""


@doctor_app.command("node")
def doctor_node(  # noqa: PLR0913 - typer's options
    *,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="The agent's file; default as below.")
    ] = None,
    device_plugin_config: Annotated[
        Path | None, typer.Option("--device-plugin-config", metavar="FILE", help="The device plugin's file.")
    ] = None,
    node: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The node's name; default the variable NODE_NAME, or the name in the agent's file.",
        ),
    ] = None,
    kubeconfig: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="For the cluster's versions; default the agent's kubeconfig."),
    ] = None,
    host_root: Annotated[
        Path | None, typer.Option("--host-root", metavar="DIR", help="The node's root file system.")
    ] = None,
    server_url: Annotated[
        str | None,
        typer.Option(
            "--server", metavar="URL", help="The node's server; default from its file; empty for none."
        ),
    ] = None,
    device_plugin_url: Annotated[
        str | None,
        typer.Option(
            "--device-plugin", metavar="URL", help="The device plugin; default from its file; empty for none."
        ),
    ] = None,
    conf_dir: Annotated[
        str | None, typer.Option("--cni-conf-dir", metavar="DIR", help="Default from the runtime's file.")
    ] = None,
    bin_dir: Annotated[
        str | None, typer.Option("--cni-bin-dir", metavar="DIR", help="Default from the runtime's file.")
    ] = None,
    as_json: DoctorJson = False,
    strict: Strict = False,
) -> None:
    """Check this node: cards, kernel, runtime, CNI configuration, our processes, versions.

    Files that are not named are looked for in /etc/k8s-rdma. The exit status is 0 when nothing is wrong, 1
    with errors, and 2 when it could not look.
    """
    from k8s_rdma.cli.doctor import NodeOptions
    from k8s_rdma.cli.doctor import doctor_node as run

    options = NodeOptions(
        agent=config,
        node=node,
        kubeconfig=kubeconfig,
        plugin=device_plugin_config,
        host_root=host_root,
        server=server_url,
        plugin_url=device_plugin_url,
        conf_dir=conf_dir,
        bin_dir=bin_dir,
    )
    raise typer.Exit(run(options, as_json=as_json, strict=strict))


@doctor_app.command("cluster")
def doctor_cluster(  # noqa: PLR0913 - typer's options
    *,
    kubeconfig: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Default: the service account, KUBECONFIG, ~/.kube/config."),
    ] = None,
    namespace: Annotated[str, typer.Option(metavar="NAME", help="The chart's namespace.")] = "k8s-rdma",
    scheduler_config: Annotated[
        Path | None, typer.Option("--scheduler-config", metavar="FILE", help="kube-scheduler's file.")
    ] = None,
    extender_config: Annotated[
        Path | None,
        typer.Option("--extender-config", metavar="FILE", help="The extender's file; default the chart's."),
    ] = None,
    host_root: Annotated[
        Path, typer.Option("--host-root", metavar="DIR", help="This machine's root, for kubeadm's files.")
    ] = Path("/"),
    extender: Annotated[
        str | None,
        typer.Option(
            "--extender", metavar="URL", envvar="K8S_RDMA_EXTENDER", help="Also query this extender."
        ),
    ] = None,
    token_file: TokenFile = None,
    cert_file: CertFile = None,
    key_file: KeyFile = None,
    ca_file: CaFile = None,
    insecure: Insecure = False,
    as_json: DoctorJson = False,
    strict: Strict = False,
) -> None:
    """Check the cluster: scheduler, extender, versions, CRD, rights, policies, nodes, stuck pods.

    By the API server, with whatever credentials one has. On a control-plane node of kubeadm's the
    scheduler's configuration is found, elsewhere name it. The exit status is as that of `doctor node`.
    """
    from k8s_rdma.cli.doctor import ClusterOptions
    from k8s_rdma.cli.doctor import doctor_cluster as run

    endpoint = extender_address(
        extender=extender,
        token_file=token_file,
        cert_file=cert_file,
        key_file=key_file,
        ca_file=ca_file,
        insecure=insecure,
    )
    options = ClusterOptions(
        kubeconfig=kubeconfig,
        namespace=namespace,
        scheduler=scheduler_config,
        extender=extender_config,
        host_root=host_root,
        address=endpoint if extender else None,
    )
    raise typer.Exit(run(options, as_json=as_json, strict=strict))


def extender_address(  # noqa: PLR0913 - as many as there are options
    *,
    extender: str | None,
    token_file: Path | None,
    cert_file: Path | None,
    key_file: Path | None,
    ca_file: Path | None,
    insecure: bool,
) -> ExtenderAddress:
    """Combine the options."""
    from k8s_rdma.cli.extender_client import DEFAULT_URL, ExtenderAddress

    return ExtenderAddress(
        url=extender or DEFAULT_URL,
        token_file=token_file,
        cert_file=cert_file,
        key_file=key_file,
        ca_file=ca_file,
        insecure=insecure,
    )


OMITTED = "(left out)"

_SECRET = re.compile(
    r"(?i)pass(word|wd|phrase)?$|secret|token|credential|authorization|(?<!k)key(-?data)?$|-data$"
)
_PLACE = re.compile(r"(?i)(file|dir|path|name|namespace)$")
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{6,}")
_IN_TEXT = re.compile(
    r"""(?ix) (?P<key>["']?[\w-]*(?:pass(?:word|wd|phrase)?|secret|token|credential|authorization)[\w-]*["']?
    \s*[:=]\s*) (?P<value>"(?:[^"\\]|\\.)*"|'[^']*'|[^\s,;}"']+)"""
)
_PEM = re.compile(r"-----BEGIN [A-Z0-9 ]+-----.*?(-----END [A-Z0-9 ]+-----|\Z)", re.DOTALL)
_JWT = re.compile(r"\beyJ[\w-]{10,}\.[\w-]+\.[\w-]+")


def redacted(document: Any) -> Any:
    """A document of any depth; of keys that name a secret the value is left out, whatever it is."""
    match document:
        case dict():
            return {key: OMITTED if is_secret(str(key)) else redacted(item) for key, item in document.items()}
        case list():
            return [redacted(item) for item in document]
        case str():
            return redacted_text(document)
        case _:
            return document


def is_secret(key: str) -> bool:
    """Report whether a key holds a secret; a secret's path is not secret."""
    return bool(_SECRET.search(key)) and not _PLACE.search(key)


def redacted_text(text: str) -> str:
    """A log, or any text: tokens, PEM blocks, and values beside words that name a secret."""
    text = _PEM.sub(OMITTED, text)
    text = _JWT.sub(OMITTED, text)
    text = _BEARER.sub(lambda found: f"{found[1]} {OMITTED}", text)
    return _IN_TEXT.sub(_without_value, text)


def _without_value(found: re.Match[str]) -> str:
    name = re.sub(r"[^\w-]", "", found["key"])
    if _PLACE.search(name) or OMITTED.startswith(found["value"].strip("\"'")[:5]):
        return found[0]
    quote = found["value"][0] if found["value"][0] in "\"'" else ""
    return f"{found['key']}{quote}{OMITTED}{quote}"


MOST_OF_A_LOG_BYTES = 4 << 20
"""Its end."""

_Part = tuple[str, Callable[[], bytes]]


def gather_report(output: Path, options: NodeOptions, logs: tuple[Path, ...]) -> None:
    """Write the archive; list missing parts in it, and on standard error.

    K8sRdmaError when the archive cannot be written, or there is no node to be looked at.
    """
    missing: list[str] = []
    try:
        with NetlinkQueries() as queries, tarfile.open(output, "w:gz") as archive:
            collector = collect_node(options, queries)
            for name, build in _parts(collector, queries, logs):
                try:
                    _add(archive, name, build())
                except (K8sRdmaError, OSError, ValueError, yaml.YAMLError) as error:
                    missing.append(f"{name}: {error}")
            _add(archive, "missing.txt", "".join(f"{item}\n" for item in missing).encode())
    except OSError as error:
        msg = f"--report {output}: {error.strerror or error}"
        raise K8sRdmaError(msg) from error
    for item in missing:
        sys.stderr.write(f"k8s-rdma: not in the report: {visible(item)}\n")
    sys.stderr.write(
        f"k8s-rdma: read {output} through before it leaves your hands: names of nodes, pods and namespaces "
        "are in it; docs/gather.md says what it holds\n"
    )


def _parts(collector: NodeCollector, queries: NetlinkQueries, logs: tuple[Path, ...]) -> Iterator[_Part]:
    yield "version.json", lambda: encode_version(versions())
    yield "doctor.json", lambda: encode_doctor(document("node", tuple(collector.findings())))
    yield "machine.yaml", lambda: encode_machine(gather(Sysfs(collector.host.root / "sys"), queries)).encode()
    yield "state.json", lambda: _state(Path(collector.agent.run_dir) / "state.sock")
    for path in _configurations():
        yield f"configuration/{path.name}", partial(_configuration_of, path)
    for name, text in collector.networks():
        yield f"networks/{name}", partial(_configuration, text)
    for path in logs:
        yield f"logs/{path.name}", partial(_log, path)


def _configurations() -> Iterator[Path]:
    for directory in DIRECTORIES:
        yield from sorted(directory.glob("*.yaml"))


def _configuration_of(path: Path) -> bytes:
    return _configuration(path.read_text(encoding="utf-8"))


def _configuration(text: str) -> bytes:
    """Redact YAML, or JSON, which is YAML as well; leave out other text, whose content is unknown."""
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


def gather_machine(output: Path | None) -> None:
    """Write the machine to a file or to standard output, and a line of advice to standard error.

    K8sRdmaError when it cannot be written, or the kernel cannot be asked anything.
    """
    with NetlinkQueries() as queries:
        machine = gather(Sysfs(), queries)
    text = encode_machine(machine)
    if output is None:
        sys.stdout.write(text)
    else:
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            msg = f"--output {output}: {error.strerror}"
            raise K8sRdmaError(msg) from error
    for problem in machine.about.unreadable:
        sys.stderr.write(f"k8s-rdma: could not be looked at: {visible(problem)}\n")
    destination = output or "what was printed"
    sys.stderr.write(
        f"k8s-rdma: read {destination} through, then attach it to your report;"
        " docs/gather.md says what it holds\n"
    )
