"""Configurations of kube-scheduler: what is in them, and which schedulers ask the extender by them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from k8s_rdma.config.yaml_text import read_yaml
from k8s_rdma.extender.config import ExtenderConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_NAME = "default-scheduler"
"""Of the profile that names itself nothing else, and of pods that name none."""

_LISTS = ("profiles", "extenders")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerFile:
    """A KubeSchedulerConfiguration. where: the file, or the object and key, that it is in.

    text: None where there is none, for `why`. unset: the scheduler was started without a configuration.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A scheduler, by the name that pods have for it. asks: whether it asks our extender. where: says so."""

    name: str
    asks: bool
    where: str


def profiles(facts: SchedulerFacts) -> Iterator[Profile]:
    """Those of all configurations that can be read."""
    for file in facts.files:
        if file.unset:
            yield Profile(name=DEFAULT_NAME, asks=False, where=file.where)
            continue
        try:
            document = read_configuration(file)
        except (ValueError, yaml.YAMLError):
            continue
        asks = our_entry(document, facts.extender) is not None
        yield from (Profile(name=name, asks=asks, where=file.where) for name in profile_names(document))


def read_configuration(file: SchedulerFile) -> dict[str, Any]:
    """The document; ValueError and YAMLError say why it is none."""
    if file.text is None:
        raise ValueError(file.why)
    document = read_yaml(file.text)
    if not isinstance(document, dict) or document.get("kind") != "KubeSchedulerConfiguration":
        msg = "kind: wanted KubeSchedulerConfiguration"
        raise ValueError(msg)
    if others := [key for key in _LISTS if not isinstance(document.get(key), list | None)]:
        msg = f"{others[0]}: wanted a list"
        raise ValueError(msg)
    return document


def profile_names(document: dict[str, Any]) -> tuple[str, ...]:
    """What pods name the schedulers of a configuration; without profiles there is one."""
    given = [each for each in document.get("profiles") or () if isinstance(each, dict)] or [{}]
    return tuple(dict.fromkeys(str(each.get("schedulerName") or DEFAULT_NAME) for each in given))


def extenders(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries of all extenders; every profile asks all of them."""
    return [each for each in document.get("extenders") or () if isinstance(each, dict)]


def our_entry(document: dict[str, Any], config: ExtenderConfig) -> dict[str, Any] | None:
    """The first of which any verb leads to one of our extender's paths, or to its port."""
    return next((each for each in extenders(document) if _is_ours(each, config)), None)


def paths(entry: dict[str, Any]) -> dict[str, str]:
    """The path of each verb that is set: that of `urlPrefix`, and the verb."""
    prefix = re.sub(r"^https?://[^/]*", "", str(entry.get("urlPrefix", ""))).rstrip("/")
    verbs = ("filterVerb", "prioritizeVerb", "preemptVerb", "bindVerb")
    return {verb: f"{prefix}/{entry[verb]}" for verb in verbs if entry.get(verb)}


def wanted_paths(config: ExtenderConfig) -> dict[str, str]:
    """Where the extender answers to each verb."""
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
