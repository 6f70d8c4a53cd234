"""kube-scheduler's configuration against that of docs/extender.md: whether the extender is asked, and how."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml

from k8s_rdma.doctor.cluster.scheduler_file import (
    DEFAULT_NAME,
    SchedulerFacts,
    SchedulerFile,
    extenders,
    our_entry,
    paths,
    profile_names,
    profiles,
    read_configuration,
    wanted_paths,
)
from k8s_rdma.doctor.finding import Severity, Subject, worst

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.doctor.finding import Finding
    from k8s_rdma.extender.config import ExtenderConfig

SCHEDULER = Subject("scheduler", "kube-scheduler")
OK = SCHEDULER.ok()
NOT_SEEN = SCHEDULER.note("not-seen")
UNREADABLE = SCHEDULER.error("unreadable")
NO_CONFIGURATION = SCHEDULER.error("no-configuration")
OLD_API = SCHEDULER.error("old-api")
NO_EXTENDER = SCHEDULER.error("no-extender")
NOT_ASKING = SCHEDULER.note("not-asking")
WRONG_PATH = SCHEDULER.error("wrong-path")
NO_FILTER = SCHEDULER.error("no-filter")
NO_BIND = SCHEDULER.warning("no-bind")
NO_VERB = SCHEDULER.note("no-verb")
EVERY_POD = SCHEDULER.warning("every-pod")
IGNORABLE = SCHEDULER.error("ignorable")
SHORT_TIMEOUT = SCHEDULER.warning("short-timeout")
WHOLE_NODES = SCHEDULER.note("whole-nodes")
NO_WEIGHT = SCHEDULER.warning("no-weight")
BIND_UNWANTED = SCHEDULER.error("bind-unwanted")

API_VERSIONS = ("kubescheduler.config.k8s.io/v1",)
TIMEOUT_S = 10.0
DEFAULT_TIMEOUT_S = 5.0
"""kube-scheduler's, `DefaultExtenderTimeout` in pkg/scheduler/extender.go."""
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_ADVICE = "examples/scheduler/recommended.yaml"


def check_scheduler(facts: SchedulerFacts) -> Iterator[Finding]:
    """Each configuration that was found; that one asks the extender is enough, as there may be several."""
    if not facts.files:
        yield NOT_SEEN(
            "no configuration of kube-scheduler was seen",
            source="/etc/kubernetes/manifests/kube-scheduler.yaml; pods of kube-system; ConfigMaps",
            wanted="one that registers the extender",
            fix="run k8s-rdma doctor cluster on a control-plane node, or with --scheduler-config FILE",
        )
    asking = tuple(dict.fromkeys(each.name for each in profiles(facts) if each.asks))
    for file in facts.files:
        yield from _check_file(file, facts.extender, asking)


def _check_file(file: SchedulerFile, config: ExtenderConfig, asking: tuple[str, ...]) -> Iterator[Finding]:
    """asking: the names of those that ask the extender, in whatever file."""
    if file.unset:
        yield _not_asking(file, (DEFAULT_NAME,), asking) if asking else _without_file(file)
        return
    try:
        document = read_configuration(file)
    except (ValueError, yaml.YAMLError) as error:
        yield _unreadable(file, error, asking)
        return
    if document.get("apiVersion") not in API_VERSIONS:
        yield OLD_API(
            f"apiVersion {document.get('apiVersion')} is read by no kube-scheduler from 1.29 on",
            about=file.where,
            source=file.where,
            wanted=API_VERSIONS[0],
            fix=f"apiVersion: {API_VERSIONS[0]}",
        )
    names = profile_names(document)
    if (ours := our_entry(document, config)) is None:
        yield _not_asking(file, names, asking) if asking else _without_us(file, document, config)
        return
    found = tuple(_check_entry(f"{file.where} ({', '.join(names)})", ours, names, config))
    yield from found
    if worst(found).rank <= Severity.NOTE.rank:
        yield OK(
            f"{_ask(names)} the extender at {ours.get('urlPrefix')}", about=file.where, source=file.where
        )


def _ask(names: tuple[str, ...]) -> str:
    return f"{', '.join(names)} {'asks' if len(names) == 1 else 'ask'}"


def _not_asking(file: SchedulerFile, names: tuple[str, ...], asking: tuple[str, ...]) -> Finding:
    does = "does" if len(names) == 1 else "do"
    return NOT_ASKING(
        f"{', '.join(names)} {does} not ask the extender: pods with the annotation name "
        f"{' or '.join(asking)}",
        about=file.where,
        source=file.where,
    )


def _without_file(file: SchedulerFile) -> Finding:
    return NO_CONFIGURATION(
        "kube-scheduler runs without --config, so that no extender is asked",
        about=file.where,
        source=file.where,
        wanted="--config=FILE, with the file mounted into its pod",
        fix=f"docs/extender.md, Registration; {_ADVICE}",
    )


def _unreadable(file: SchedulerFile, error: Exception, asking: tuple[str, ...]) -> Finding:
    """Where others ask the extender, this one need not."""
    return (NOT_SEEN if asking else UNREADABLE)(
        f"cannot be used: {' '.join(str(error).split())}",
        about=file.where,
        source=file.where,
        wanted="a KubeSchedulerConfiguration that its pod can read",
        fix=_ADVICE,
    )


def _without_us(file: SchedulerFile, document: dict[str, Any], config: ExtenderConfig) -> Finding:
    others = ", ".join(str(each.get("urlPrefix")) for each in extenders(document)) or "none"
    return NO_EXTENDER(
        f"of its extenders ({others}) none is k8s-rdma's",
        about=file.where,
        source=file.where,
        wanted=f"an entry whose urlPrefix and filterVerb make {config.filter_path}",
        fix=f"the section extenders of {_ADVICE}",
    )


def _check_entry(
    where: str, entry: dict[str, Any], names: tuple[str, ...], config: ExtenderConfig
) -> Iterator[Finding]:
    yield from _check_verbs(where, entry, config)
    if not entry.get("managedResources") and DEFAULT_NAME in names:
        yield EVERY_POD(
            "managedResources is not set: while the extender is away, every pod of the cluster waits",
            about="managedResources",
            source=where,
            wanted="the resources that RDMA pods request",
            fix="managedResources: [{name: k8s-rdma.io/slot, ignoredByScheduler: false}]",
        )
    if entry.get("ignorable"):
        yield IGNORABLE(
            "ignorable: true has pods put anywhere while the extender is away, and past a refused bind",
            about="ignorable",
            source=where,
            wanted="false",
            fix="ignorable: false",
        )
    if entry.get("bindVerb") and (timeout_s := _seconds(entry.get("httpTimeout"))) < TIMEOUT_S:
        yield SHORT_TIMEOUT(
            f"httpTimeout is {timeout_s:g} s: a bind may take longer, and is then done without being known",
            about="httpTimeout",
            source=where,
            wanted=f"{TIMEOUT_S:g}s",
            fix=f"httpTimeout: {TIMEOUT_S:g}s",
        )
    if not entry.get("nodeCacheCapable"):
        yield WHOLE_NODES(
            "nodeCacheCapable is not set: whole node objects are sent, 10 KB each",
            about="nodeCacheCapable",
            source=where,
            wanted="true",
            fix="nodeCacheCapable: true",
        )
    if entry.get("prioritizeVerb") and not (isinstance(weight := entry.get("weight"), int) and weight > 0):
        yield NO_WEIGHT(
            "prioritizeVerb needs a weight: kube-scheduler refuses the file",
            about="weight",
            source=where,
            wanted="1 or more",
            fix="weight: 1",
        )


def _check_verbs(where: str, entry: dict[str, Any], config: ExtenderConfig) -> Iterator[Finding]:
    given, wanted = paths(entry), wanted_paths(config)
    for verb, path in given.items():
        if path != wanted[verb]:
            yield WRONG_PATH(
                f"{verb} leads to {path}, where the extender answers 404",
                about=verb,
                source=where,
                wanted=wanted[verb],
                fix=f"urlPrefix and {verb} that make {wanted[verb]}",
            )
    if "filterVerb" not in given:
        yield NO_FILTER(
            "there is no filterVerb: pods come to nodes that cannot keep their promise",
            about="filterVerb",
            source=where,
            wanted=wanted["filterVerb"],
            fix="filterVerb: rdma_scheduling",
        )
    if "bindVerb" in given and config.binder == "scheduler":
        yield BIND_UNWANTED(
            "a bindVerb is registered, and the extender's file says binder: scheduler",
            about="bindVerb",
            source=where,
            wanted="one of them",
            fix="binder: extender in the extender's file",
        )
    if "bindVerb" not in given and config.binder == "extender":
        yield NO_BIND(
            "there is no bindVerb: pods are bound without a placement, see docs/extender.md, Filter only",
            about="bindVerb",
            source=where,
            wanted=wanted["bindVerb"],
            fix="bindVerb: bind; or binder: scheduler in the extender's file",
        )
    for verb in ("prioritizeVerb", "preemptVerb"):
        if verb not in given:
            lost = "nodes are not compared" if verb == "prioritizeVerb" else "no pod is evicted for another"
            yield NO_VERB(f"there is no {verb}: {lost}", about=verb, source=where)


def _seconds(duration: object) -> float:
    if duration is None:
        return DEFAULT_TIMEOUT_S
    return sum(float(number) * _UNITS[unit] for number, unit in _DURATION.findall(str(duration)))
