"""kube-scheduler's configuration against that of docs/extender.md: whether the extender is asked, and how."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from k8s_rdma.config.yaml_text import read_yaml
from k8s_rdma.doctor.finding import Subject
from k8s_rdma.extender.config import ExtenderConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.doctor.finding import Finding

SCHEDULER = Subject("scheduler", "kube-scheduler")
OK = SCHEDULER.ok()
NOT_SEEN = SCHEDULER.note("not-seen")
UNREADABLE = SCHEDULER.error("unreadable")
NO_CONFIGURATION = SCHEDULER.error("no-configuration")
OLD_API = SCHEDULER.error("old-api")
NO_EXTENDER = SCHEDULER.error("no-extender")
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
TIMEOUT_S = 20.0
DEFAULT_TIMEOUT_S = 5.0
"""kube-scheduler's, `DefaultExtenderTimeout` in pkg/scheduler/extender.go."""
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_ADVICE = "examples/scheduler/recommended.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerFile:
    """A KubeSchedulerConfiguration. where: the file, or the object and key, that it is in.

    text: None where there is none, for `why`: `manifest` tells then of a kube-scheduler without one.
    """

    where: str
    text: str | None
    why: str = ""
    unset: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerFacts:
    """extender: its configuration where that is known; else its defaults count."""

    files: tuple[SchedulerFile, ...]
    extender: ExtenderConfig


def check_scheduler(facts: SchedulerFacts) -> Iterator[Finding]:
    """Each configuration that was found; that there is one is enough, as there may be several schedulers."""
    if not facts.files:
        yield NOT_SEEN(
            "no configuration of kube-scheduler was seen",
            source="/etc/kubernetes/manifests/kube-scheduler.yaml; ConfigMap k8s-rdma-extender",
            wanted="one that registers the extender",
            fix="run k8s-rdma doctor cluster on a control-plane node, or with --scheduler-config FILE",
        )
    for file in facts.files:
        yield from _check_file(file, facts.extender)


def _check_file(file: SchedulerFile, config: ExtenderConfig) -> Iterator[Finding]:
    if file.unset:
        yield NO_CONFIGURATION(
            "kube-scheduler runs without --config, so that no extender is asked",
            about=file.where,
            source=file.where,
            wanted="--config=FILE, with the file mounted into its pod",
            fix=f"docs/extender.md, Registration; {_ADVICE}",
        )
        return
    try:
        document = _read(file)
    except (ValueError, yaml.YAMLError) as error:
        yield UNREADABLE(
            f"cannot be used: {' '.join(str(error).split())}",
            about=file.where,
            source=file.where,
            wanted="a KubeSchedulerConfiguration that its pod can read",
            fix=_ADVICE,
        )
        return
    if document.get("apiVersion") not in API_VERSIONS:
        yield OLD_API(
            f"apiVersion {document.get('apiVersion')} is read by no kube-scheduler from 1.29 on",
            about=file.where,
            source=file.where,
            wanted=API_VERSIONS[0],
            fix=f"apiVersion: {API_VERSIONS[0]}",
        )
    extenders = [each for each in document.get("extenders") or () if isinstance(each, dict)]
    ours = next((each for each in extenders if _is_ours(each, config)), None)
    if ours is None:
        yield _without_us(file, extenders, config)
        return
    found = tuple(_check_entry(file, ours, document, config))
    yield from found
    if not found:
        yield OK(f"asks the extender at {ours.get('urlPrefix')}", about=file.where, source=file.where)


def _read(file: SchedulerFile) -> dict[str, Any]:
    if file.text is None:
        raise ValueError(file.why)
    document = read_yaml(file.text)
    if not isinstance(document, dict) or document.get("kind") != "KubeSchedulerConfiguration":
        msg = "kind: wanted KubeSchedulerConfiguration"
        raise ValueError(msg)
    return document


def _paths(entry: dict[str, Any]) -> dict[str, str]:
    """The path of each verb that is set: that of `urlPrefix`, and the verb."""
    prefix = re.sub(r"^https?://[^/]*", "", str(entry.get("urlPrefix", ""))).rstrip("/")
    verbs = ("filterVerb", "prioritizeVerb", "preemptVerb", "bindVerb")
    return {verb: f"{prefix}/{entry[verb]}" for verb in verbs if entry.get(verb)}


def _wanted(config: ExtenderConfig) -> dict[str, str]:
    return {
        "filterVerb": config.filter_path,
        "prioritizeVerb": config.prioritize_path,
        "preemptVerb": config.preempt_path,
        "bindVerb": config.bind_path,
    }


def _is_ours(entry: dict[str, Any], config: ExtenderConfig) -> bool:
    """Whether any verb leads to one of the extender's paths, or to its port."""
    port = f":{config.port}"
    host = re.sub(r"^https?://([^/]*).*", r"\1", str(entry.get("urlPrefix", "")))
    return host.endswith(port) or bool(set(_paths(entry).values()) & set(_wanted(config).values()))


def _without_us(file: SchedulerFile, extenders: list[dict[str, Any]], config: ExtenderConfig) -> Finding:
    others = ", ".join(str(each.get("urlPrefix")) for each in extenders) or "none"
    return NO_EXTENDER(
        f"of its extenders ({others}) none is k8s-rdma's",
        about=file.where,
        source=file.where,
        wanted=f"an entry whose urlPrefix and filterVerb make {config.filter_path}",
        fix=f"the section extenders of {_ADVICE}",
    )


def _check_entry(
    file: SchedulerFile, entry: dict[str, Any], document: dict[str, Any], config: ExtenderConfig
) -> Iterator[Finding]:
    where = file.where
    yield from _check_verbs(where, entry, config)
    if not entry.get("managedResources") and not _of_its_own(document):
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
    paths, wanted = _paths(entry), _wanted(config)
    for verb, path in paths.items():
        if path != wanted[verb]:
            yield WRONG_PATH(
                f"{verb} leads to {path}, where the extender answers 404",
                about=verb,
                source=where,
                wanted=wanted[verb],
                fix=f"urlPrefix and {verb} that make {wanted[verb]}",
            )
    if "filterVerb" not in paths:
        yield NO_FILTER(
            "there is no filterVerb: pods come to nodes that cannot keep their promise",
            about="filterVerb",
            source=where,
            wanted=wanted["filterVerb"],
            fix="filterVerb: rdma_scheduling",
        )
    if "bindVerb" in paths and config.binder == "scheduler":
        yield BIND_UNWANTED(
            "a bindVerb is registered, and the extender's file says binder: scheduler",
            about="bindVerb",
            source=where,
            wanted="one of them",
            fix="binder: extender in the extender's file",
        )
    if "bindVerb" not in paths and config.binder == "extender":
        yield NO_BIND(
            "there is no bindVerb: pods are bound without a placement, see docs/extender.md, Filter only",
            about="bindVerb",
            source=where,
            wanted=wanted["bindVerb"],
            fix="bindVerb: bind; or binder: scheduler in the extender's file",
        )
    for verb in ("prioritizeVerb", "preemptVerb"):
        if verb not in paths:
            lost = "nodes are not compared" if verb == "prioritizeVerb" else "no pod is evicted for another"
            yield NO_VERB(f"there is no {verb}: {lost}", about=verb, source=where)


def _of_its_own(document: dict[str, Any]) -> bool:
    """Whether only pods that name this scheduler come to it."""
    profiles = document.get("profiles") or [{}]
    names = {each.get("schedulerName", "default-scheduler") for each in profiles if isinstance(each, dict)}
    return "default-scheduler" not in names


def _seconds(duration: object) -> float:
    if duration is None:
        return DEFAULT_TIMEOUT_S
    return sum(float(number) * _UNITS[unit] for number, unit in _DURATION.findall(str(duration)))
