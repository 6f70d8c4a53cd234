"""Check how kube-scheduler's configuration asks the extender: docs/extender-configuration.md."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from k8s_rdma.config.extender import ExtenderConfig
from k8s_rdma.doctor.cluster.scheduler_refusals import binders, managed_twice, shape_refusals, value_refusals
from k8s_rdma.doctor.finding import Finding, Severity, worst
from k8s_rdma.doctor.subject import Subject
from k8s_rdma.wire.yaml import read_yaml

if TYPE_CHECKING:
    from collections.abc import Iterator


DEFAULT_NAME = "default-scheduler"
"""Name of a profile without a name, and of the scheduler for pods that do not name one."""

_LISTS = ("profiles", "extenders")

SCHEDULER = Subject(
    "scheduler",
    "kube-scheduler",
    "The [registration](extender-configuration.md#registration) in `--scheduler-config`, kubeadm's "
    "file on a control-plane node, and ConfigMaps of `kube-system` and the chart's namespace. One "
    "that asks the extender is enough. If no pod asks by annotation and all PFs are for "
    "[claims](dra.md), none is needed.",
)
OK = SCHEDULER.ok()
NOT_SEEN = SCHEDULER.note("not-seen")
UNREADABLE = SCHEDULER.error("unreadable")
NO_CONFIGURATION = SCHEDULER.error("no-configuration")
OLD_API = SCHEDULER.error("old-api")
NO_EXTENDER = SCHEDULER.error("no-extender")
NOT_ASKING = SCHEDULER.note("not-asking")
NOT_NEEDED = SCHEDULER.note("not-needed")
WRONG_PATH = SCHEDULER.error("wrong-path")
NO_FILTER = SCHEDULER.error("no-filter")
NO_BIND = SCHEDULER.warning("no-bind")
NO_VERB = SCHEDULER.note("no-verb")
EVERY_POD = SCHEDULER.warning("every-pod")
IGNORABLE = SCHEDULER.error("ignorable")
SHORT_TIMEOUT = SCHEDULER.warning("short-timeout")
WHOLE_NODES = SCHEDULER.warning("whole-nodes")
NO_WEIGHT = SCHEDULER.error("no-weight")
REFUSED = SCHEDULER.error("refused")
SECOND_BINDER = SCHEDULER.error("second-binder")
MANAGED_TWICE = SCHEDULER.error("managed-twice")
BIND_UNWANTED = SCHEDULER.error("bind-unwanted")

API_VERSIONS = ("kubescheduler.config.k8s.io/v1",)
TIMEOUT_S = 10.0
DEFAULT_TIMEOUT_S = 5.0
"""kube-scheduler's, `DefaultExtenderTimeout` in pkg/scheduler/extender.go."""
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_ADVICE = "examples/scheduler/recommended.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerFile:
    """A KubeSchedulerConfiguration.

    location: its file, or its object and key.
    text: the configuration, if there is one; otherwise `why` is the reason.
    unset: whether the scheduler was started without a configuration.
    """

    location: str
    text: str | None
    why: str = ""
    unset: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerFacts:
    """Configurations of schedulers.

    extender: the extender's configuration if that is known; otherwise its defaults.
    needed: whether pods or PFs are for annotations; true if that is not known.
    """

    files: tuple[SchedulerFile, ...]
    extender: ExtenderConfig
    needed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A scheduler by its profile's name.

    has_extender: whether it calls our extender.
    location: the file, or the object, that configures it.
    """

    name: str
    has_extender: bool
    location: str


def profiles(facts: SchedulerFacts) -> Iterator[Profile]:
    """Yield the profiles of all readable configurations."""
    for file in facts.files:
        if file.unset:
            yield Profile(name=DEFAULT_NAME, has_extender=False, location=file.location)
            continue
        try:
            document = read_configuration(file)
        except (ValueError, yaml.YAMLError):
            continue
        has_entry = our_entry(document, facts.extender) is not None
        yield from (
            Profile(name=name, has_extender=has_entry, location=file.location)
            for name in profile_names(document)
        )


def read_configuration(file: SchedulerFile) -> dict[str, Any]:
    """Return the document. ValueError and YAMLError say why the text is not a configuration."""
    if file.text is None:
        raise ValueError(file.why)
    document = read_yaml(file.text)
    if not isinstance(document, dict) or document.get("kind") != "KubeSchedulerConfiguration":
        raise ValueError(_other_kind(document))
    if invalid := [key for key in _LISTS if not isinstance(document.get(key), list | None)]:
        msg = f"{invalid[0]}: wanted a list"
        raise ValueError(msg)
    return document


def _other_kind(document: object) -> str:
    """Say which other file the document is, of those that people mistake for the configuration."""
    kind = document.get("kind") if isinstance(document, dict) else None
    text = "kind: wanted KubeSchedulerConfiguration"
    match kind, document:
        case "ConfigMap", {"data": dict() as data}:
            keys = ", ".join(map(str, data))
            return f"{text}, found a ConfigMap; give the text of its key ({keys}) as a file of its own"
        case "Policy", _:
            return f"{text}, found a Policy, which kube-scheduler before 1.23 has by --policy-config-file"
        case "Pod" | "Deployment", _:
            return f"{text}, found a {kind}; the configuration is the file that its --config names"
    return text


def profile_names(document: dict[str, Any]) -> tuple[str, ...]:
    """Return the names of a configuration's schedulers; one scheduler if it has no profiles."""
    entries = [profile for profile in document.get("profiles") or () if isinstance(profile, dict)] or [{}]
    return tuple(dict.fromkeys(str(profile.get("schedulerName") or DEFAULT_NAME) for profile in entries))


def plugin_arguments(profile: dict[str, Any], plugin: str) -> dict[str, Any]:
    """Return the arguments of a plugin in a profile; empty if it has the defaults."""
    for entry in profile.get("pluginConfig") or ():
        if isinstance(entry, dict) and entry.get("name") == plugin and isinstance(entry.get("args"), dict):
            return dict(entry["args"])
    return {}


def extenders(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the entries of all extenders; every profile asks all of them."""
    return [entry for entry in document.get("extenders") or () if isinstance(entry, dict)]


def our_entry(document: dict[str, Any], config: ExtenderConfig) -> dict[str, Any] | None:
    """Return the first entry with a verb that leads to one of our extender's paths, or to its port."""
    return next((extender for extender in extenders(document) if _is_ours(extender, config)), None)


def paths(entry: dict[str, Any]) -> dict[str, str]:
    """Return the path of each verb that is set: the path of `urlPrefix`, and the verb."""
    prefix = re.sub(r"^https?://[^/]*", "", str(entry.get("urlPrefix", ""))).rstrip("/")
    verbs = ("filterVerb", "prioritizeVerb", "preemptVerb", "bindVerb")
    return {verb: f"{prefix}/{entry[verb]}" for verb in verbs if entry.get(verb)}


def wanted_paths(config: ExtenderConfig) -> dict[str, str]:
    """Return the extender's paths by verb."""
    return {
        "filterVerb": config.filter_path,
        "prioritizeVerb": config.prioritize_path,
        "preemptVerb": config.preempt_path,
        "bindVerb": config.bind_path,
    }


def _is_ours(entry: dict[str, Any], config: ExtenderConfig) -> bool:
    port = f":{config.port}"
    host = re.sub(r"^https?://([^/]*).*", r"\1", str(entry.get("urlPrefix", "")))
    return host.endswith(port) or bool(set(paths(entry).values()) & set(wanted_paths(config).values()))


@SCHEDULER.check(SchedulerFacts)
def check_scheduler(facts: SchedulerFacts) -> Iterator[Finding]:
    """Check each configuration that was found.

    One that asks the extender is enough, because a cluster may have several schedulers.
    """
    if not facts.files and facts.needed:
        yield NOT_SEEN(
            "no kube-scheduler configuration was found",
            source="/etc/kubernetes/manifests/kube-scheduler.yaml; pods of kube-system; ConfigMaps",
            expected="one that registers the extender",
            fix="run it on a control-plane node, or with --scheduler-config FILE",
        )
    extended = tuple(dict.fromkeys(profile.name for profile in profiles(facts) if profile.has_extender))
    if not extended and not facts.needed:
        yield NOT_NEEDED(
            "asks no extender, and none is needed: no pod asks by annotation, and all PFs are for claims",
            source="; ".join(file.location for file in facts.files) or "pods; rdmanodes",
        )
        return
    for file in facts.files:
        yield from _check_file(file, facts.extender, extended)


def _check_file(
    file: SchedulerFile, config: ExtenderConfig, schedulers: tuple[str, ...]
) -> Iterator[Finding]:
    """Check a configuration. schedulers: the names of those that ask the extender, in any file."""
    if file.unset:
        yield _without_extender(file, (DEFAULT_NAME,), schedulers) if schedulers else _without_file(file)
        return
    try:
        document = read_configuration(file)
    except (ValueError, yaml.YAMLError) as error:
        yield _unreadable(file, error, schedulers)
        return
    if document.get("apiVersion") not in API_VERSIONS:
        yield OLD_API(
            f"kube-scheduler 1.29 and newer refuses {document.get('apiVersion')}",
            about=file.location,
            source=file.location,
            expected=API_VERSIONS[0],
            fix=f"apiVersion: {API_VERSIONS[0]}",
        )
    names = profile_names(document)
    ours = our_entry(document, config)
    refused = tuple(_check_refusals(file, document, ours))
    yield from refused
    if ours is None:
        yield (
            _without_extender(file, names, schedulers) if schedulers else _without_us(file, document, config)
        )
        return
    found = tuple(_check_entry(f"{file.location} ({', '.join(names)})", ours, names, config))
    yield from found
    if worst((*refused, *found)).rank <= Severity.NOTE.rank:
        yield OK(
            f"{_scheduler_names(names)} the extender at {ours.get('urlPrefix')}",
            about=file.location,
            source=file.location,
        )


def _check_refusals(
    file: SchedulerFile, document: dict[str, Any], ours: dict[str, Any] | None
) -> Iterator[Finding]:
    """Check for faults in any entry for which kube-scheduler refuses the file."""
    for refusal in (*shape_refusals(document), *value_refusals(document, ours)):
        yield REFUSED(
            f"{refusal.why}: kube-scheduler refuses the file",
            about=refusal.field,
            source=file.location,
            expected="a file that kube-scheduler takes",
            fix=refusal.fix,
        )
    if len(binding := binders(document)) > 1:
        yield SECOND_BINDER(
            f"{' and '.join(str(entry.get('urlPrefix')) for entry in binding)} have a bindVerb: "
            "kube-scheduler takes one, and refuses the file",
            about="bindVerb",
            source=file.location,
            expected="one extender that binds",
            fix="binder: scheduler, without our bindVerb; or a second scheduler: "
            "docs/extender-configuration.md#registration",
        )
    for resource in managed_twice(document):
        yield MANAGED_TWICE(
            f"{resource} is managed twice: kube-scheduler refuses the file",
            about="managedResources",
            source=file.location,
            expected="each resource in one entry",
            fix=f"take {resource} out of one entry: docs/extender-configuration.md#registration",
        )


def _scheduler_names(names: tuple[str, ...]) -> str:
    return f"{', '.join(names)} {'asks' if len(names) == 1 else 'ask'}"


def _without_extender(file: SchedulerFile, names: tuple[str, ...], schedulers: tuple[str, ...]) -> Finding:
    verb = "does" if len(names) == 1 else "do"
    return NOT_ASKING(
        f"{', '.join(names)} {verb} not call the extender: pods with the annotation must name "
        f"{' or '.join(schedulers)}",
        about=file.location,
        source=file.location,
    )


def _without_file(file: SchedulerFile) -> Finding:
    return NO_CONFIGURATION(
        "runs without --config, and calls no extender",
        about=file.location,
        source=file.location,
        expected="--config=FILE, with the file mounted into its pod",
        fix=f"docs/extender-configuration.md#registration; {_ADVICE}",
    )


def _unreadable(file: SchedulerFile, error: Exception, schedulers: tuple[str, ...]) -> Finding:
    """Return the finding for an unusable configuration; its kind depends on the other schedulers."""
    return (NOT_SEEN if schedulers else UNREADABLE)(
        f"cannot be used: {' '.join(str(error).split())}",
        about=file.location,
        source=file.location,
        expected="a KubeSchedulerConfiguration that its pod can read",
        fix=_ADVICE,
    )


def _without_us(file: SchedulerFile, document: dict[str, Any], config: ExtenderConfig) -> Finding:
    prefixes = ", ".join(str(extender.get("urlPrefix")) for extender in extenders(document)) or "none"
    return NO_EXTENDER(
        f"its extenders are not k8s-rdma's: {prefixes}",
        about=file.location,
        source=file.location,
        expected=f"an entry whose urlPrefix and filterVerb make {config.filter_path}",
        fix=f"extenders of {_ADVICE}",
    )


def _check_entry(
    path: str, entry: dict[str, Any], names: tuple[str, ...], config: ExtenderConfig
) -> Iterator[Finding]:
    yield from _check_verbs(path, entry, config)
    if not entry.get("managedResources") and DEFAULT_NAME in names:
        yield EVERY_POD(
            "not set: while the extender is down, every pod waits",
            about="managedResources",
            source=path,
            expected="the resources that RDMA pods request",
            fix="managedResources: [{name: k8s-rdma.io/slot, ignoredByScheduler: false}]",
        )
    if entry.get("ignorable"):
        yield IGNORABLE(
            "pods go to any node while the extender is down, and refused binds are ignored",
            about="ignorable",
            source=path,
            expected="false",
            fix="ignorable: false",
        )
    if (
        entry.get("bindVerb")
        and (timeout_s := duration_s(entry.get("httpTimeout"), default=DEFAULT_TIMEOUT_S)) < TIMEOUT_S
    ):
        yield SHORT_TIMEOUT(
            f"{timeout_s:g} s: a longer bind completes unnoticed",
            about="httpTimeout",
            source=path,
            expected=f"{TIMEOUT_S:g}s",
            fix=f"httpTimeout: {TIMEOUT_S:g}s",
        )
    if not entry.get("nodeCacheCapable"):
        yield WHOLE_NODES(
            "not set: from 1.33 on kube-scheduler's own plugins score every node as if it had no pods; "
            "it also sends whole nodes, 10 KB each",
            about="nodeCacheCapable",
            source=path,
            expected="true",
            fix="nodeCacheCapable: true",
        )
    if entry.get("prioritizeVerb") and not (isinstance(weight := entry.get("weight"), int) and weight > 0):
        yield NO_WEIGHT(
            "missing: kube-scheduler refuses the file",
            about="weight",
            source=path,
            expected="1 or more",
            fix="weight: 1",
        )


def _check_verbs(location: str, entry: dict[str, Any], config: ExtenderConfig) -> Iterator[Finding]:
    configured, expected = paths(entry), wanted_paths(config)
    for verb, path in configured.items():
        if path != expected[verb]:
            yield WRONG_PATH(
                f"leads to {path}: the extender answers 404",
                about=verb,
                source=location,
                expected=expected[verb],
                fix=f"urlPrefix and {verb} must make {expected[verb]}",
            )
    if "filterVerb" not in configured:
        yield NO_FILTER(
            "missing: pods go to nodes without capacity",
            about="filterVerb",
            source=location,
            expected=expected["filterVerb"],
            fix="filterVerb: rdma_scheduling",
        )
    if "bindVerb" in configured and config.binder == "scheduler":
        yield BIND_UNWANTED(
            "registered although the extender has binder: scheduler",
            about="bindVerb",
            source=location,
            expected="one of them",
            fix="the extender's binder: extender",
        )
    if "bindVerb" not in configured and config.binder == "extender":
        yield NO_BIND(
            "missing: pods are bound without a placement",
            about="bindVerb",
            source=location,
            expected=expected["bindVerb"],
            fix="bindVerb: bind; or the extender's binder: scheduler",
        )
    for verb in ("prioritizeVerb", "preemptVerb"):
        if verb not in configured:
            consequence = (
                "nodes are not compared" if verb == "prioritizeVerb" else "no pod is evicted for another"
            )
            yield NO_VERB(f"missing: {consequence}", about=verb, source=location)


def duration_s(duration: object, *, default: float) -> float:
    """Return a duration in Go's format, in seconds; the default if it is absent."""
    if duration is None:
        return default
    return sum(float(number) * _UNITS[unit] for number, unit in _DURATION.findall(str(duration)))
