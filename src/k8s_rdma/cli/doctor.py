"""`k8s-rdma doctor node` and `doctor cluster`: the findings as a table or as JSON, and the exit status."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
from rich.text import Text

from k8s_rdma import __version__
from k8s_rdma.cli.extender_address import ExtenderAddress
from k8s_rdma.cli.extender_client import ExtenderReader, extender_reader, node_verdicts
from k8s_rdma.cli.formats import CommandAnswer
from k8s_rdma.cli.service_proxy import NoAnswerError
from k8s_rdma.cli.tables import Column, Table
from k8s_rdma.config.agent import AgentConfig, load_device_plugin
from k8s_rdma.config.devices import load_device_config
from k8s_rdma.config.files import load_config
from k8s_rdma.config.server import ServerConfig
from k8s_rdma.doctor.checks import subjects
from k8s_rdma.doctor.cluster.components import ExtenderFacts
from k8s_rdma.doctor.collectors.cluster import ClusterCollector
from k8s_rdma.doctor.collectors.host import Host
from k8s_rdma.doctor.collectors.node import NodeCollector
from k8s_rdma.doctor.collectors.processes import in_metrics, key_usage_in_metrics
from k8s_rdma.doctor.finding import Finding, Severity, exit_status, worst
from k8s_rdma.doctor.node.configuration import ConfigurationFacts
from k8s_rdma.errors import K8sRdmaError, visible
from k8s_rdma.kube.documents import Documents
from k8s_rdma.kube.selection import USUAL_KUBECONFIG, KubeconfigSelection
from k8s_rdma.linux.discovery.netlink_queries import NetlinkQueries
from k8s_rdma.linux.sysfs import Sysfs
from k8s_rdma.wire.doctor import DoctorDocument, FindingDocument, encode_doctor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rich.console import RenderableType

    from k8s_rdma.cli.formats import Output
    from k8s_rdma.config.devices import DevicePluginConfig

COULD_NOT_LOOK = 2
"""The exit status if the node or the cluster could not be examined."""

_STYLES = {
    Severity.OK: "green",
    Severity.NOTE: "cyan",
    Severity.WARNING: "bold yellow",
    Severity.ERROR: "bold red",
}

_WIDEST_MARK = 7

_CONTROL_PLANE = "kube-system"
"""Namespace of an extender set up beside kube-scheduler (deploy/rbac/extender.yaml)."""

DIRECTORIES = (Path("/etc/k8s-rdma/config"), Path("/etc/k8s-rdma"))
"""Directories of configuration files: the chart's mounts, and those of a node set up by hand."""
_NODE_NAME = "NODE_NAME"
"""The environment variable that has the node's name in the chart's pods."""
_NAMELESS = "this node"
_AGENT_FILE = "agent.yaml"
_API_TIMEOUT_S = 5.0
"""Time limit of each request; most checks of a node work without an answer."""


def print_findings(
    subject: Literal["node", "cluster"], findings: Sequence[Finding], output: Output, *, strict: bool
) -> int:
    """Print the findings, and return the exit status."""
    output.write(
        CommandAnswer(
            document=lambda: encode_doctor(document(subject, findings)),
            names=(finding.id for finding in findings if finding.severity is not Severity.OK),
            show=lambda terminal: terminal.print(*page(findings), sep=""),
        )
    )
    return exit_status(findings, strict=strict)


def document(subject: Literal["node", "cluster"], findings: Sequence[Finding]) -> DoctorDocument:
    """Return the document that `--json` prints."""
    return DoctorDocument(
        of=subject,
        version=__version__,
        worst=worst(findings).value,
        findings=tuple(
            msgspec.convert(finding, FindingDocument, strict=False, from_attributes=True)
            for finding in findings
        ),
    )


def page(findings: Sequence[Finding]) -> Iterator[RenderableType]:
    """Yield findings by subject, the worst first, each with its evidence, the right state and the remedy."""
    titles = {subject.name: subject.title for subject in subjects()}
    for subject in dict.fromkeys(finding.subject for finding in findings):
        yield Text(f"\n{titles.get(subject, subject)}", style="bold")
        matching = sorted(
            (finding for finding in findings if finding.subject == subject),
            key=lambda finding: -finding.severity.rank,
        )
        shown = Table(Column("  LABEL   "), Column("TEXT", prose=True), headings=False)
        for finding in matching:
            for mark, text in _rows(finding):
                mark.pad_right(_WIDEST_MARK - mark.cell_len)
                shown.add(Text("  ").append_text(mark), text)
        yield shown
    yield Text()
    yield _summary(findings)


def _rows(finding: Finding) -> Iterator[tuple[Text, Text]]:
    about = f"{finding.about}: " if finding.about else ""
    mark = Text(finding.severity.value, style=_STYLES[finding.severity])
    yield mark, Text(visible(f"{about}{finding.found} ")) + Text(f"[{finding.id}]", style="dim")
    if finding.severity is Severity.OK:
        return
    for label, text in (("seen in", finding.source), ("wanted", finding.expected), ("fix", finding.fix)):
        if text:
            yield Text(label, style="dim"), Text(visible(text))


def _summary(findings: Sequence[Finding]) -> Text:
    counts = (
        (severity, sum(finding.severity is severity for finding in findings))
        for severity in reversed(Severity)
    )
    summary = Text(", ").join(
        Text(_counted(count, severity), style=_STYLES[severity]) for severity, count in counts
    )
    return summary + Text("; docs/doctor.md has each by its id")


def _counted(count: int, severity: Severity) -> str:
    return f"{count} {severity.value}{'' if count == 1 or severity is Severity.OK else 's'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """Options of the command.

    scheduler, extender: configuration files.
    address: the extender's.
    """

    kubeconfig: KubeconfigSelection
    namespace: str
    scheduler: Path | None
    extender: Path | None
    host_root: Path
    address: ExtenderAddress | None


def doctor_cluster(options: ClusterOptions, output: Output, *, strict: bool) -> int:
    """Print the findings of the cluster.

    The exit status is 0, 1, or 2 if the API server cannot be queried.
    """
    try:
        with Documents(options.kubeconfig) as api:
            collector = _collector(options, api)
            collector.version  # noqa: B018 - whether there is an API server at all
            findings = tuple(collector.findings())
    except (K8sRdmaError, OSError) as error:
        sys.stderr.write(f"k8s-rdma: could not look: {visible(str(error))}\n")
        return COULD_NOT_LOOK
    return print_findings("cluster", findings, output, strict=strict)


def _collector(options: ClusterOptions, api: Documents) -> ClusterCollector:
    address = options.address
    return ClusterCollector(
        api=api,
        host=Host(options.host_root),
        namespaces=tuple(dict.fromkeys((options.namespace, _CONTROL_PLANE))),
        scheduler_file=options.scheduler,
        extender_file=options.extender,
        ask_extender=None if address is None else lambda: query_extender(address),
    )


def query_extender(address: ExtenderAddress) -> ExtenderFacts:
    """Query the extender for its readiness. MalformedError names an option that cannot be used."""
    with extender_reader(address) as extender:
        try:
            ready = extender.get("/readyz", {}).decode(errors="replace")
        except NoAnswerError as error:
            return ExtenderFacts(url=extender.url, why=error.message)
        except K8sRdmaError as error:
            return ExtenderFacts(url=extender.url, refused=error.message)
        warning, metrics = ready.partition("warning: ")[2].strip(), _metrics(extender)
        return ExtenderFacts(
            url=extender.url,
            warning=warning,
            version=in_metrics(metrics),
            nodes=_verdicts(extender),
            key_usage=key_usage_in_metrics(metrics) if metrics else None,
        )


def _verdicts(extender: ExtenderReader) -> Mapping[str, str] | None:
    """Read why the extender refuses nodes, if it reports that to this client."""
    try:
        return node_verdicts(extender)
    except K8sRdmaError:
        return None


def _metrics(extender: ExtenderReader) -> str:
    """Read the metrics; empty if this client may not read them."""
    try:
        return extender.get("/metrics", {}).decode(errors="replace")
    except K8sRdmaError:
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """Options of the command, if they are present.

    agent, plugin: configuration files.
    host_root: the node's root file system.
    node: its name.
    server, plugin_url: the URLs of these processes; empty if they should not run.
    """

    agent: Path | None = None
    node: str | None = None
    kubeconfig: KubeconfigSelection = USUAL_KUBECONFIG
    plugin: Path | None = None
    host_root: Path | None = None
    server: str | None = None
    plugin_url: str | None = None
    conf_dir: str | None = None
    bin_dir: str | None = None


def doctor_node(options: NodeOptions, output: Output, *, strict: bool) -> int:
    """Print the findings of the node.

    The exit status is 0, 1, or 2 if this is no node's root file system, or a file cannot be used.
    """
    try:
        with NetlinkQueries() as queries:
            findings = tuple(collect_node(options, queries).findings())
    except (K8sRdmaError, OSError) as error:
        sys.stderr.write(f"k8s-rdma: could not look: {visible(str(error))}\n")
        return COULD_NOT_LOOK
    return print_findings("node", findings, output, strict=strict)


def collect_node(options: NodeOptions, queries: NetlinkQueries) -> NodeCollector:
    """Make a collector of the named node. K8sRdmaError if it is no node, or a file cannot be used."""
    agent_file = options.agent or _usual(_AGENT_FILE)
    agent = _agent(options, agent_file)
    root = options.host_root or Path(agent.host_root)
    if not (root / "proc" / "1").is_dir():
        msg = f"--host-root {root}: there is no /proc below it; wanted a node's root file system"
        raise K8sRdmaError(msg)
    plugin, plugin_file = _plugin(agent, options.plugin)
    return NodeCollector(
        host=Host(root),
        sysfs=Sysfs(root / "sys"),
        queries=queries,
        agent=agent,
        files=ConfigurationFacts(
            file=None if agent_file is None else str(agent_file),
            looked_for=tuple(str(directory / _AGENT_FILE) for directory in DIRECTORIES),
        ),
        plugin=plugin,
        plugin_file=plugin_file,
        server_url=_server_url() if options.server is None else options.server or None,
        plugin_url=_plugin_url(plugin) if options.plugin_url is None else options.plugin_url or None,
        conf_dir=options.conf_dir,
        bin_dirs=(options.bin_dir,) if options.bin_dir else None,
        connect=_connect(agent, options.kubeconfig),
    )


def _agent(options: NodeOptions, file: Path | None) -> AgentConfig:
    """Read the agent's configuration; without a file, its defaults."""
    node = options.node or os.environ.get(_NODE_NAME) or None
    if file is None:
        return AgentConfig(node=node or _NAMELESS)
    return load_config(AgentConfig, str(file), {"node": node})


def _connect(agent: AgentConfig, kubeconfig: KubeconfigSelection) -> Callable[[], Documents] | None:
    """Connect with credentials that the command line names, else with the agent's, if there are any."""
    if kubeconfig.is_explicit:
        return partial(Documents, kubeconfig, timeout_s=_API_TIMEOUT_S)
    if agent.kubeconfig:
        return partial(Documents, agent.kubeconfig, timeout_s=_API_TIMEOUT_S)
    return partial(Documents, timeout_s=_API_TIMEOUT_S, in_cluster=True) if agent.in_cluster else None


def _plugin(agent: AgentConfig, path: Path | None) -> tuple[DevicePluginConfig | None, str]:
    """Read the device plugin's configuration, and name its file."""
    if path is None and agent.device_plugin is not None:
        return load_device_plugin(agent), agent.device_plugin
    found = path or _usual("device-plugin.yaml")
    if found is None:
        return None, str(DIRECTORIES[0] / "device-plugin.yaml")
    return load_device_config(str(found), {}).config, str(found)


def _usual(name: str) -> Path | None:
    return next((directory / name for directory in DIRECTORIES if (directory / name).exists()), None)


def _server_url() -> str:
    """Return the server's URL, by its file in the usual place, else by its defaults."""
    found = _usual("server.yaml")
    config = load_config(ServerConfig, str(found), {}) if found else ServerConfig()
    return _url("http" if config.tls is None else "https", config.listen, config.port)


def _plugin_url(plugin: DevicePluginConfig | None) -> str | None:
    if plugin is None or not plugin.port:
        return None
    return _url("http" if plugin.tls is None else "https", plugin.listen, plugin.port)


def _url(scheme: str, listen: str, port: int) -> str:
    host = listen or "127.0.0.1"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
