"""Faults for which kube-scheduler refuses its configuration file, in any extender's entry.

Source: `pkg/scheduler/apis/config/validation/validation.go` and `pkg/scheduler/apis/config/scheme`, which
decodes strictly (Kubernetes 1.36).
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from k8s_rdma.wire.json_faults import nearest, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Json = dict[str, Any]

_OBJECT, _OBJECTS = "a map", "a list of maps"
_TYPES: Mapping[str, tuple[type, ...]] = {
    "text": (str,),
    "a boolean": (bool,),
    "a number": (int, float),
    "a whole number": (int,),
    "a list of texts": (list,),
    _OBJECT: (dict,),
    _OBJECTS: (list,),
}
_EXTENDER: Mapping[str, str] = {
    **dict.fromkeys(("urlPrefix", "filterVerb", "preemptVerb", "prioritizeVerb", "bindVerb"), "text"),
    **dict.fromkeys(("enableHTTPS", "nodeCacheCapable", "ignorable"), "a boolean"),
    "weight": "a whole number",
    "httpTimeout": "text",
    "tlsConfig": _OBJECT,
    "managedResources": _OBJECTS,
}
_TLS: Mapping[str, str] = {
    "insecure": "a boolean",
    **dict.fromkeys(("serverName", "certFile", "keyFile", "caFile", "certData", "keyData", "caData"), "text"),
}
_RESOURCE: Mapping[str, str] = {"name": "text", "ignoredByScheduler": "a boolean"}
_PROFILE: Mapping[str, str] = {
    "schedulerName": "text",
    "percentageOfNodesToScore": "a whole number",
    "plugins": _OBJECT,
    "pluginConfig": _OBJECTS,
}
_CONFIGURATION: Mapping[str, str] = {
    **dict.fromkeys(("kind", "apiVersion"), "text"),
    **dict.fromkeys(
        (
            "parallelism",
            "percentageOfNodesToScore",
            "podInitialBackoffSeconds",
            "podMaxBackoffSeconds",
        ),
        "a whole number",
    ),
    **dict.fromkeys(("enableProfiling", "enableContentionProfiling", "delayCacheUntilActive"), "a boolean"),
    **dict.fromkeys(("leaderElection", "clientConnection"), _OBJECT),
    **dict.fromkeys(("profiles", "extenders"), _OBJECTS),
}
_REMOVED = frozenset({"algorithmSource", "healthzBindAddress", "metricsBindAddress", "schedulerName"})
_EXTENDED_RESOURCE = re.compile(
    r"(?P<domain>[a-z0-9]([-a-z0-9.]*[a-z0-9])?)/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
)
_DURATION = re.compile(r"[+-]?(\d+(\.\d*)?(ns|us|µs|ms|s|m|h))+|0")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRefusal:
    """A reason why kube-scheduler refuses a file: the field, the reason, and the correction."""

    field: str
    why: str
    fix: str


def shape_refusals(document: Json) -> Iterator[FileRefusal]:
    """Find fields that kube-scheduler does not know, and those of a wrong type.

    An unknown field of the whole file may be of a newer release, unless it is close to a known one, or was
    removed.
    """
    newer = {name for name in document if not nearest(name, _CONFIGURATION)} - _REMOVED
    yield from _shape({k: v for k, v in document.items() if k not in newer}, _CONFIGURATION, "")
    for index, profile in enumerate(_maps(document, "profiles")):
        yield from _shape(profile, _PROFILE, f"profiles[{index}].")
    for index, extender in enumerate(_maps(document, "extenders")):
        path = f"extenders[{index}]."
        yield from _shape(extender, _EXTENDER, path)
        if isinstance(extender.get("tlsConfig"), dict):
            yield from _shape(extender["tlsConfig"], _TLS, f"{path}tlsConfig.")
        for number, resource in enumerate(_maps(extender, "managedResources")):
            yield from _shape(resource, _RESOURCE, f"{path}managedResources[{number}].")


def value_refusals(document: Json, ours: Json | None) -> Iterator[FileRefusal]:
    """Find values that kube-scheduler refuses; our entry's weight has its own check."""
    for index, extender in enumerate(_maps(document, "extenders")):
        if extender is not ours and extender.get("prioritizeVerb") and not _is_weight(extender.get("weight")):
            why = "missing, though prioritizeVerb is set"
            yield FileRefusal(field=f"extenders[{index}].weight", why=why, fix="weight: 1")
        timeout = extender.get("httpTimeout")
        if isinstance(timeout, str) and not _DURATION.fullmatch(timeout):
            why = f"{shown(timeout)} is no duration"
            yield FileRefusal(field=f"extenders[{index}].httpTimeout", why=why, fix="such as 10s")
        for number, resource in enumerate(_maps(extender, "managedResources")):
            if not _is_extended(name := str(resource.get("name", ""))):
                field = f"extenders[{index}].managedResources[{number}].name"
                why = f"{shown(name)} is no extended resource"
                yield FileRefusal(
                    field=field, why=why, fix="DOMAIN/NAME, of a domain other than kubernetes.io"
                )
    names = [str(p.get("schedulerName") or "default-scheduler") for p in _maps(document, "profiles")]
    for name in _repeated(names):
        why = f"two profiles are named {shown(name)}"
        yield FileRefusal(field="profiles[].schedulerName", why=why, fix="a name of its own for each profile")
    for index, profile in enumerate(_maps(document, "profiles")):
        arguments = [str(entry.get("name", "")) for entry in _maps(profile, "pluginConfig")]
        for name in _repeated(arguments):
            why = f"{shown(name)} has two entries"
            yield FileRefusal(
                field=f"profiles[{index}].pluginConfig", why=why, fix="one entry for each plugin"
            )


def binders(document: Json) -> list[Json]:
    """Return the entries with a `bindVerb`; kube-scheduler takes one."""
    return [extender for extender in _maps(document, "extenders") if extender.get("bindVerb")]


def managed_twice(document: Json) -> list[str]:
    """Return the resources that entries manage more than once, which kube-scheduler refuses."""
    managed = (_maps(extender, "managedResources") for extender in _maps(document, "extenders"))
    return _repeated([str(resource.get("name", "")) for resource in chain.from_iterable(managed)])


def _repeated(names: list[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _shape(section: Json, fields: Mapping[str, str], path: str) -> Iterator[FileRefusal]:
    for name, value in section.items():
        kind = fields.get(name)
        if kind is None:
            near = nearest(name, fields)
            fix = f"{near}:" if near else f"one of {', '.join(sorted(fields))}"
            yield FileRefusal(field=f"{path}{name}", why="kube-scheduler knows no such field", fix=fix)
        elif value is not None and not _is(value, kind):
            yield FileRefusal(
                field=f"{path}{name}", why=f"wanted {kind}, found {shown(str(value))}", fix=kind
            )


def _is(value: object, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "a boolean"
    if kind == _OBJECTS:
        return isinstance(value, list) and all(isinstance(element, dict) for element in value)
    return isinstance(value, _TYPES[kind])


def _is_weight(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_extended(name: str) -> bool:
    match = _EXTENDED_RESOURCE.fullmatch(name)
    if match is None or name.startswith("requests."):
        return False
    return not match["domain"].endswith("kubernetes.io")


def _maps(section: Json, key: str) -> list[Json]:
    found = section.get(key)
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []
