"""Checks of CNI: the network configuration that the runtime chooses, our plugin in it, and its executable.

The runtime takes the first file by name of those that end in .conf, .conflist or .json (libcni, `ConfFiles`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from k8s_rdma.doctor.subject import Subject
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.cni_request import POD_ANNOTATIONS, decode_netconf, meaningless_keys
from k8s_rdma.wire.cni_result import SINCE_CHECK
from k8s_rdma.wire.conflist import (
    LEGACY_PLUGIN,
    PLUGIN,
    ConfList,
    decode_conf,
    gives_no_interface,
    is_read,
    read_origin,
)
from k8s_rdma.wire.conflist import MULTUS as MULTUS_PLUGINS

if TYPE_CHECKING:
    from k8s_rdma.doctor.finding import Finding

CNI = Subject(
    "cni",
    "CNI plugin",
    "The runtime uses the first file by name. It must find each plugin, and ours must answer VERSION.",
)
OK = CNI.ok()
NO_FILE = CNI.error("no-file")
UNREADABLE = CNI.error("unreadable")
OTHER_FIRST = CNI.error("other-file-first")
NOT_OURS = CNI.error("not-chained")
MULTUS = CNI.note("multus")
NOTHING_BEFORE = CNI.error("nothing-before")
NO_CAPABILITY = CNI.warning("no-capability")
CHECKED = CNI.error("checked")
REFUSED = CNI.error("configuration-refused")
OTHER_RUN_DIR = CNI.error("other-run-dir")
MEANINGLESS = CNI.warning("meaningless-keys")
PLUGIN_MISSING = CNI.error("plugin-missing")
PROGRAM = CNI.error("program")

OUTDATED = CNI.warning("outdated")

OUR_PLUGINS = frozenset({PLUGIN, LEGACY_PLUGIN})
TAKE_ALL_ADDRESSES = frozenset(
    {"bridge", "dummy", "host-device", "ipvlan", "macvlan", "ptp", "tap", "vlan"},
)
"""Plugins whose CHECK looks for every address of the result at their own interface (plugins 1.9,
`ValidateExpectedInterfaceIPs`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CniFile:
    """A file of the configuration directory. text: its text, if it could be read; otherwise `why`."""

    name: str
    text: str | None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CniFacts:
    """The network configuration and the plugins.

    files: the files of `directory`.
    programs: the files of `bin_dirs`.
    broken: why our plugins, by name, do not run.
    run_dir: the agent's.
    calls_check: whether the runtime calls CHECK. For example, CRI-O calls it for each pod that it starts.
    """

    directory: str
    files: tuple[CniFile, ...]
    bin_dirs: tuple[str, ...]
    programs: frozenset[str]
    broken: Mapping[str, str]
    run_dir: str
    calls_check: bool


@CNI.check(CniFacts)
def check_cni(facts: CniFacts) -> Iterator[Finding]:
    """Check the file that the runtime uses."""
    files = sorted((file for file in facts.files if is_read(file.name)), key=lambda file: file.name)
    if not any(_may_give_interfaces(file) for file in files):
        only = f" but {', '.join(file.name for file in files)}" if files else ""
        yield NO_FILE(
            f"there is no network configuration{only}",
            about=facts.directory,
            source=facts.directory,
            expected="a file of the cluster's network plugin, and ours made from it",
            fix="install the cluster's network plugin, then k8s-rdma install-cni --network chained",
        )
        return
    path = f"{facts.directory}/{files[0].name}"
    try:
        chosen = _read(files[0])
    except MalformedError as error:
        yield UNREADABLE(
            f"cannot be used: {error.message}",
            about=files[0].name,
            source=path,
            expected="a network configuration",
            fix=f"correct or remove {path}",
        )
        return
    if not OUR_PLUGINS.intersection(chosen.types):
        yield _without_us(facts, files[0].name, chosen, files[1:])
        return
    findings = (*_check_chain(facts, path, chosen), *_check_source(facts, files))
    yield from findings
    if not findings:
        yield OK(
            f"the runtime uses {files[0].name}: {', '.join(chosen.types)}; all of these exist",
            about=files[0].name,
            source=path,
        )


def _may_give_interfaces(file: CniFile) -> bool:
    text = file.text
    return text is None or not gives_no_interface(file.name, text.encode(errors="surrogateescape"))


def _read(file: CniFile) -> ConfList:
    """Read a file. MalformedError if the runtime could not read it."""
    if file.text is None:
        raise MalformedError(f"{file.name}: {file.why}")
    return decode_conf(file.name, file.text.encode(errors="surrogateescape"))


def _check_source(facts: CniFacts, files: list[CniFile]) -> Iterator[Finding]:
    """Check that a first file made by `install-cni` matches the network that it was made of."""
    origin = read_origin((files[0].text or "").encode(errors="surrogateescape"))
    if origin is None or not origin.file:
        return
    source = next((file for file in files[1:] if file.name == origin.file), None)
    try:
        types = _read(source).types if source else ()
    except MalformedError:
        return  # `install-cni` waits for it as well
    if types != origin.types:
        state = f"now has {', '.join(types)}" if source else "no longer exists"
        yield OUTDATED(
            f"made from {origin.file} with {', '.join(origin.types)}; that file {state}",
            about=files[0].name,
            source=f"{facts.directory}/{origin.file}",
            expected="what the other network plugin's file holds",
            fix="k8s-rdma install-cni --network chained; --follow keeps it current",
        )


def _without_us(facts: CniFacts, name: str, chosen: ConfList, later: list[CniFile]) -> Finding:
    path = f"{facts.directory}/{name}"
    if chosen.types[0] in MULTUS_PLUGINS:
        return MULTUS(
            "Multus is first: our plugin below it is not checked",
            about=name,
            source=path,
        )
    for file in later:
        if file.text is not None and any(f'"{plugin}"' in file.text for plugin in OUR_PLUGINS):
            return OTHER_FIRST(
                f"the runtime uses this file; our plugin is in {file.name}",
                about=name,
                source=path,
                expected="the file with our plugin to be the first by name",
                fix=f"k8s-rdma install-cni --network chained; remove {facts.directory}/{file.name}",
            )
    return NOT_OURS(
        f"the runtime uses {name}, which does not have our plugin: pods get no RDMA interfaces",
        about=name,
        source=path,
        expected="k8s-rdma-cni behind the other plugins",
        fix="k8s-rdma install-cni --network chained",
    )


def _check_chain(facts: CniFacts, path: str, chosen: ConfList) -> Iterator[Finding]:
    plugins = [msgspec.json.decode(plugin) for plugin in chosen.plugins]
    index = next(number for number, kind in enumerate(chosen.types) if kind in OUR_PLUGINS)
    section = plugins[index]
    yield from _check_section(facts, path, chosen, section)
    if index == 0 and not section.get("delegate") and not section.get("emptyResult"):
        yield NOTHING_BEFORE(
            "our plugin is first, without delegate: pods get no ordinary interface",
            about=f"plugins[{index}]",
            source=path,
            expected="an ordinary plugin before ours, or `delegate`, or `emptyResult: true`",
            fix="k8s-rdma install-cni --network chained",
        )
    capabilities = section.get("capabilities")
    if not isinstance(capabilities, dict) or capabilities.get(POD_ANNOTATIONS) is not True:
        yield NO_CAPABILITY(
            "no pod annotations are passed: every pod waits for the agent, which queries the API server",
            about=f"plugins[{index}].capabilities",
            source=path,
            expected=f"{POD_ANNOTATIONS}: true",
            fix=f'"capabilities": {{"{POD_ANNOTATIONS}": true}}',
        )
    if facts.calls_check:
        yield from _check_check(path, chosen, chosen.types[:index])
    yield from _check_programs(facts, path, plugins)


def _check_check(path: str, chosen: ConfList, earlier: tuple[str, ...]) -> Iterator[Finding]:
    """Check that CRI-O's CHECK calls succeed; it does not call lists with disableCheck or an old version."""
    version = msgspec.json.decode(chosen.fields.get("cniVersion", b'""'))
    disabled = msgspec.json.decode(chosen.fields.get("disableCheck", b"false"))
    failing = [plugin for plugin in earlier if plugin in TAKE_ALL_ADDRESSES]
    if failing and version in SINCE_CHECK and disabled is not True:
        yield CHECKED(
            f"in CRI-O's CHECK {failing[0]} refuses our addresses: pods with RDMA interfaces do not start",
            about="disableCheck",
            source=path,
            expected="true",
            fix='"disableCheck": true in the list',
        )


def _check_section(
    facts: CniFacts, path: str, chosen: ConfList, section: dict[str, Any]
) -> Iterator[Finding]:
    fields = {key: chosen.fields[key] for key in ("cniVersion", "name") if key in chosen.fields}
    netconf = msgspec.json.encode({**fields, **section})
    try:
        conf = decode_netconf(netconf)
    except MalformedError as error:
        yield REFUSED(
            error.message,
            about=str(section["type"]),
            source=path,
            expected="keys and values of docs/cni.md",
            fix="correct what the message names",
        )
        return
    for key in meaningless_keys(netconf):
        yield MEANINGLESS(
            "says nothing here: placements choose PFs and VFs",
            about=key,
            source=path,
            expected="keys of docs/cni.md",
            fix=f"remove {key}; a pod names its PF by `pf` in its annotation",
        )
    if conf.run_dir != facts.run_dir:
        yield OTHER_RUN_DIR(
            f"is {conf.run_dir}; the agent's is {facts.run_dir}",
            about="runDir",
            source=path,
            expected=facts.run_dir,
            fix=f'"runDir": "{facts.run_dir}"',
        )


def _check_programs(facts: CniFacts, path: str, plugins: list[dict[str, Any]]) -> Iterator[Finding]:
    directories = ":".join(facts.bin_dirs)
    for name in dict.fromkeys(_programs(plugins)):
        if name not in facts.programs:
            yield PLUGIN_MISSING(
                f"is not in {directories}",
                about=name,
                source=path,
                expected="every plugin that the file names, where the runtime looks",
                fix="k8s-rdma install-cni"
                if name in OUR_PLUGINS
                else f"install {name} to {facts.bin_dirs[0]}",
            )
        elif why := facts.broken.get(name):
            yield PROGRAM(
                f"does not run: {why}",
                about=name,
                source=directories,
                expected="an executable that answers VERSION",
                fix="k8s-rdma install-cni, for this node's architecture",
            )


def _programs(plugins: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the executables of plugins, their delegates and their IPAM plugins."""
    for plugin in plugins:
        nested = [plugin, plugin.get("delegate"), plugin.get("ipam")]
        if isinstance(plugin.get("delegate"), dict):
            nested.append(plugin["delegate"].get("ipam"))
        for section in nested:
            if isinstance(section, dict) and isinstance(section.get("type"), str) and section["type"]:
                yield section["type"]
