"""Which network configuration the container runtime chooses, whether ours is in it, and whether it can run.

The runtime takes the first file by name of those that end in .conf, .conflist or .json (libcni, `ConfFiles`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from k8s_rdma.doctor.finding import Subject
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.netconf import POD_ANNOTATIONS, decode_netconf

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.doctor.finding import Finding

CNI = Subject("cni", "CNI plugin")
OK = CNI.ok()
NO_FILE = CNI.error("no-file")
UNREADABLE = CNI.error("unreadable")
OTHER_FIRST = CNI.error("other-file-first")
NOT_OURS = CNI.error("not-chained")
MULTUS = CNI.note("multus")
NOTHING_BEFORE = CNI.error("nothing-before")
NO_CAPABILITY = CNI.warning("no-capability")
REFUSED = CNI.error("configuration-refused")
OTHER_RUN_DIR = CNI.error("other-run-dir")
PLUGIN_MISSING = CNI.error("plugin-missing")
PROGRAM = CNI.error("program")

OUR_PLUGINS = frozenset({"k8s-rdma-cni", "rit-k8s-rdma-cni-linux-amd64"})
SUFFIXES = (".conf", ".conflist", ".json")
_MULTUS = frozenset({"multus", "multus-shim"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CniFile:
    """A file of the configuration directory; text is None where it could not be read, for `why`."""

    name: str
    text: str | None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CniFacts:
    """files: of `directory`. programs: what `bin_dirs` hold. broken: why ours, by its name, does not run.

    run_dir: the agent's.
    """

    directory: str
    files: tuple[CniFile, ...]
    bin_dirs: tuple[str, ...]
    programs: frozenset[str]
    broken: Mapping[str, str]
    run_dir: str


def check_cni(facts: CniFacts) -> Iterator[Finding]:
    """Everything about the file that the runtime would choose."""
    files = sorted((each for each in facts.files if each.name.endswith(SUFFIXES)), key=lambda each: each.name)
    if not files:
        yield NO_FILE(
            "there is no network configuration",
            about=facts.directory,
            source=facts.directory,
            wanted="a file of the cluster's network plugin, and ours made of it",
            fix="install the cluster's network plugin, then: k8s-rdma install-cni",
        )
        return
    first, path = files[0], f"{facts.directory}/{files[0].name}"
    try:
        document, plugins = _plugins(first)
    except ValueError as error:
        yield UNREADABLE(
            f"the first file by name cannot be used: {error}",
            about=first.name,
            source=path,
            wanted="a network configuration",
            fix=f"correct or remove {path}",
        )
        return
    ours = [index for index, plugin in enumerate(plugins) if plugin.get("type") in OUR_PLUGINS]
    if not ours:
        yield _without_us(facts, first.name, plugins, files[1:])
        return
    findings = tuple(_check_chain(facts, path, document, plugins, ours[0]))
    yield from findings
    if not findings:
        chain = ", ".join(str(plugin.get("type")) for plugin in plugins)
        yield OK(
            f"the runtime chooses {first.name}: {chain}; all of their programs are there",
            about=first.name,
            source=path,
        )


def _plugins(file: CniFile) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The file and its plugins; ValueError when the runtime could not read it."""
    if file.text is None:
        raise ValueError(file.why)
    document = json.loads(file.text)
    if not isinstance(document, dict):
        msg = "it holds no JSON object"
        raise ValueError(msg)  # noqa: TRY004 - as the JSON decoder says it
    plugins = document.get("plugins", []) if file.name.endswith(".conflist") else [document]
    if not isinstance(plugins, list) or not plugins or not all(isinstance(each, dict) for each in plugins):
        msg = "plugins: wanted a list of objects"
        raise ValueError(msg)
    return document, plugins


def _without_us(facts: CniFacts, name: str, plugins: list[dict[str, Any]], later: list[CniFile]) -> Finding:
    path = f"{facts.directory}/{name}"
    if plugins[0].get("type") in _MULTUS:
        return MULTUS(
            "Multus is first; ours is then a network attachment definition, or in the file of Multus' main "
            "network, which is not looked at here",
            about=name,
            source=path,
        )
    for file in later:
        if file.text is not None and any(f'"{plugin}"' in file.text for plugin in OUR_PLUGINS):
            return OTHER_FIRST(
                f"the runtime chooses {name}, and ours is in {file.name}, which it never reads",
                about=name,
                source=path,
                wanted="the file with our plugin to be the first by name",
                fix="k8s-rdma install-cni, which keeps 00-k8s-rdma.conflist; and remove "
                f"{facts.directory}/{file.name}",
            )
    return NOT_OURS(
        f"the runtime chooses {name}, and no plugin in it is ours: pods get no RDMA interfaces",
        about=name,
        source=path,
        wanted="k8s-rdma-cni behind the other plugins",
        fix="k8s-rdma install-cni",
    )


def _check_chain(
    facts: CniFacts, path: str, document: dict[str, Any], plugins: list[dict[str, Any]], index: int
) -> Iterator[Finding]:
    section = plugins[index]
    yield from _check_section(facts, path, document, section)
    if index == 0 and not section.get("delegate") and not section.get("emptyResult"):
        yield NOTHING_BEFORE(
            "no plugin stands before ours, and it has no delegate: pods get no ordinary interface",
            about=f"plugins[{index}]",
            source=path,
            wanted="an ordinary plugin before ours, or `delegate`, or `emptyResult: true`",
            fix="k8s-rdma install-cni, which puts ours behind the node's own network",
        )
    capabilities = section.get("capabilities")
    if not isinstance(capabilities, dict) or capabilities.get(POD_ANNOTATIONS) is not True:
        yield NO_CAPABILITY(
            "the runtime does not tell our plugin the pods' annotations: the agent has to ask the API "
            "server, and every pod waits for the agent",
            about=f"plugins[{index}].capabilities",
            source=path,
            wanted=f"{POD_ANNOTATIONS}: true",
            fix=f'"capabilities": {{"{POD_ANNOTATIONS}": true}}',
        )
    yield from _check_programs(facts, path, plugins)


def _check_section(
    facts: CniFacts, path: str, document: dict[str, Any], section: dict[str, Any]
) -> Iterator[Finding]:
    whole = {"cniVersion": document.get("cniVersion", "0.1.0"), "name": document.get("name", ""), **section}
    try:
        conf = decode_netconf(json.dumps(whole).encode())
    except MalformedError as error:
        yield REFUSED(
            error.message,
            about=str(section["type"]),
            source=path,
            wanted="keys and values of docs/cni.md",
            fix="correct what the message names",
        )
        return
    if conf.run_dir != facts.run_dir:
        yield OTHER_RUN_DIR(
            f"our plugin looks for the agent in {conf.run_dir}, which is in {facts.run_dir}",
            about="runDir",
            source=path,
            wanted=facts.run_dir,
            fix=f'"runDir": "{facts.run_dir}"',
        )


def _check_programs(facts: CniFacts, path: str, plugins: list[dict[str, Any]]) -> Iterator[Finding]:
    where = ":".join(facts.bin_dirs)
    for name in dict.fromkeys(_programs(plugins)):
        if name not in facts.programs:
            yield PLUGIN_MISSING(
                f"there is no {name} in {where}",
                about=name,
                source=path,
                wanted="every plugin that the file names, where the runtime looks",
                fix="k8s-rdma install-cni"
                if name in OUR_PLUGINS
                else f"install {name} to {facts.bin_dirs[0]}",
            )
        elif why := facts.broken.get(name):
            yield PROGRAM(
                f"{name} does not run: {why}",
                about=name,
                source=where,
                wanted="an executable that answers VERSION",
                fix="k8s-rdma install-cni, of this node's architecture",
            )


def _programs(plugins: list[dict[str, Any]]) -> Iterator[str]:
    """Of plugins, their delegates and what gives them addresses."""
    for plugin in plugins:
        nested = [plugin, plugin.get("delegate"), plugin.get("ipam")]
        if isinstance(plugin.get("delegate"), dict):
            nested.append(plugin["delegate"].get("ipam"))
        for each in nested:
            if isinstance(each, dict) and isinstance(each.get("type"), str) and each["type"]:
                yield each["type"]
