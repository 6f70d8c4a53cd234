"""Check of the container runtime: version, annotations, CDI."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.core.node_paths import CDI_DIR
from k8s_rdma.doctor.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.doctor.finding import Finding


RUNTIME = Subject(
    "runtime",
    "Container runtime",
    "The runtime whose socket kubelet uses. If none runs with it, the first containerd or CRI-O.",
)
RUNTIME_OK = RUNTIME.ok()
NONE = RUNTIME.warning("none")
VERSION_UNKNOWN = RUNTIME.note("version-unknown")
TOO_OLD = RUNTIME.warning("too-old")
NO_ANNOTATIONS = RUNTIME.error("no-annotations")
ASKED_ANNOTATIONS = RUNTIME.warning("asked-annotations")
BAD_CONFIGURATION = RUNTIME.error("configuration")
NO_CDI = RUNTIME.error("no-cdi")
CDI_DIRECTORY = RUNTIME.error("cdi-directory")

OLDEST = {"containerd": (1, 6), "crio": (1, 28)}
"""Older versions are untested. CRI-O has Kubernetes' version numbers."""
ANNOTATIONS_SINCE = {"containerd": (1, 6), "crio": (1, 29)}
"""The first versions that pass pods' annotations to CNI plugins; CRI-O's by its source code."""
CDI_SINCE = {"containerd": (1, 7), "crio": (1, 23)}
CDI_BY_DEFAULT = {"containerd": (2, 0), "crio": (1, 23)}
DEFAULT_CDI_DIRS = ("/etc/cdi", CDI_DIR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """A runtime that runs, or is set up.

    name: `containerd` or `crio`.
    version: as the program prints it, or from `source`; empty if unknown.
    config: the path of its configuration, which need not exist.
    fault: why it cannot be read.
    enable_cdi: the setting, if there is one.
    cdi_dirs: empty if not set.
    memlock: the limit in its `default_ulimits`, `soft:hard`; empty if not set.
    """

    name: str
    version: str = ""
    source: str = ""
    config: str = ""
    fault: str = ""
    enable_cdi: bool | None = None
    cdi_dirs: tuple[str, ...] = ()
    memlock: str = ""

    @property
    def version_source(self) -> str:
        """Return the source of the version."""
        return self.source or f"{self.name} --version"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeFacts:
    """Runtimes of a node.

    credentials: whether the agent has some for the API server, if its file is visible.
    needs_cdi: the resources of the device plugin that come by CDI.
    cdi_dir: the directory to which the agent writes.
    """

    runtimes: tuple[Runtime, ...]
    credentials: bool | None = None
    needs_cdi: tuple[str, ...] = ()
    cdi_dir: str = CDI_DIR


def version_of(text: str) -> tuple[int, int] | None:
    """Return major and minor of the first version in a text, if it has one."""
    found = re.search(r"(\d+)\.(\d+)(?:\.\d+)?", text)
    return (int(found[1]), int(found[2])) if found else None


@RUNTIME.check(RuntimeFacts)
def check_runtime(facts: RuntimeFacts) -> Iterator[Finding]:
    """Check each runtime."""
    if not facts.runtimes:
        yield NONE(
            "neither containerd nor CRI-O runs here",
            source="/proc",
            expected="the runtime that kubelet uses",
            fix="run it on the node, or with the node's /proc below --host-root",
        )
    for runtime in facts.runtimes:
        yield from _check(facts, runtime)


def _check(facts: RuntimeFacts, runtime: Runtime) -> Iterator[Finding]:
    if runtime.fault:
        yield BAD_CONFIGURATION(
            f"unreadable: {runtime.fault}",
            about=runtime.name,
            source=runtime.config,
            expected="TOML",
            fix=f"correct {runtime.config}",
        )
        return
    version = version_of(runtime.version)
    if version is None:
        yield VERSION_UNKNOWN("does not print its version", about=runtime.name, source=runtime.version_source)
    elif version < OLDEST[runtime.name]:
        oldest = _format_version(OLDEST[runtime.name])
        yield TOO_OLD(
            f"version {runtime.version}",
            about=runtime.name,
            source=runtime.version_source,
            expected=f"{oldest} or newer, see docs/compatibility-versions.md",
            fix=f"update {runtime.name}",
        )
    found = (*_check_annotations(facts, runtime, version), *_check_cdi(facts, runtime, version))
    yield from found
    if not found and version is not None and version >= OLDEST[runtime.name]:
        devices = "CDI is read" if _reads_cdi(runtime, version) else "CDI is not read, and nothing needs it"
        yield RUNTIME_OK(
            f"version {runtime.version}; {devices}",
            about=runtime.name,
            source=f"{runtime.version_source}; {runtime.config}",
        )


def delivers_annotations(name: str, version: tuple[int, int]) -> bool:
    """Report whether that runtime passes annotations, if the network configuration enables it."""
    return version >= ANNOTATIONS_SINCE[name]


def _check_annotations(
    facts: RuntimeFacts, runtime: Runtime, version: tuple[int, int] | None
) -> Iterator[Finding]:
    if version is None or version < OLDEST[runtime.name] or delivers_annotations(runtime.name, version):
        return
    kind = ASKED_ANNOTATIONS
    costs = ": every pod waits for the agent, which queries the API server"
    fix = f"update {runtime.name}"
    if facts.credentials is False:
        kind = NO_ANNOTATIONS
        costs = ", and the agent has no credentials for them: pods do not start"
        fix = f"update {runtime.name}, or give the agent inCluster: true or kubeconfig: FILE"
    yield kind(
        f"version {runtime.version} passes no pod annotations{costs}",
        about=runtime.name,
        source=runtime.version_source,
        expected=f"{_format_version(ANNOTATIONS_SINCE[runtime.name])} or newer",
        fix=fix,
    )


def _check_cdi(facts: RuntimeFacts, runtime: Runtime, version: tuple[int, int] | None) -> Iterator[Finding]:
    if not facts.needs_cdi or version is None:
        return
    needed = ", ".join(facts.needs_cdi)
    if not _reads_cdi(runtime, version):
        minimum = _format_version(CDI_SINCE[runtime.name])
        supported = version >= CDI_SINCE[runtime.name]
        yield NO_CDI(
            f"version {runtime.version} reads no CDI specifications: containers with {needed} do not start",
            about=runtime.name,
            source=runtime.config,
            expected="enable_cdi = true" if supported else f"{runtime.name} {minimum}",
            fix=(
                '[plugins."io.containerd.grpc.v1.cri"] enable_cdi = true, then restart containerd'
                if supported
                else f"update {runtime.name} to {minimum} or newer"
            ),
        )
        return
    directories = runtime.cdi_dirs or DEFAULT_CDI_DIRS
    if not {_plain(directory) for directory in directories} & {_plain(facts.cdi_dir)}:
        yield CDI_DIRECTORY(
            f"reads CDI specifications in {', '.join(directories)}; the agent writes to {facts.cdi_dir}",
            about=runtime.name,
            source=runtime.config,
            expected=f"{facts.cdi_dir} among cdi_spec_dirs",
            fix=f"cdiDir: {directories[-1]} in the agent's file",
        )


def _reads_cdi(runtime: Runtime, version: tuple[int, int]) -> bool:
    if version < CDI_SINCE[runtime.name]:
        return False
    if runtime.enable_cdi is not None:
        return runtime.enable_cdi
    return version >= CDI_BY_DEFAULT[runtime.name]


def _plain(directory: str) -> str:
    """Return the path with `/run` for `/var/run`, because they are the same on every distribution."""
    return directory.rstrip("/").replace("/var/run/", "/run/")


def _format_version(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
