"""Checks of the extender and of the keys that sign the placements of bound pods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.doctor.subject import Subject

if TYPE_CHECKING:
    from k8s_rdma.doctor.finding import Finding

KEYS = Subject(
    "keys",
    "Placement keys",
    "`keys-ok` counts the bound, unfinished pods of each key, so that you know when to remove one: by"
    " verified signatures with `--extender`, else by the key that placements name (Ed25519 only).",
)
KEYS_OK = KEYS.ok()
REMOVED = KEYS.warning("removed")

_SHOWN = 16
_BY_ITSELF = "annotation k8s-rdma.io/placement, as it says itself"
_BY_EXTENDER = "the extender's metric pods_signed"

EXTENDER = Subject(
    "extender",
    "Scheduler extender",
    "Pods, and with `--extender URL` the extender itself; configured by the chart's ConfigMap or "
    "`--extender-config`, else `source: crd` is assumed.",
)
EXTENDER_OK = EXTENDER.ok()
NOT_ASKED = EXTENDER.note("not-asked")
NO_POD = EXTENDER.error("no-pod")
NOT_NEEDED = EXTENDER.note("not-needed")
UNREACHABLE = EXTENDER.error("unreachable")
NOT_RELOADED = EXTENDER.warning("not-reloaded")
STANDBY = EXTENDER.note("standby")
NOT_READY = EXTENDER.error("not-ready")


class KeyUsage(NamedTuple):
    """The number of bound pods with a placement by a key, and the key's use, by the extender's metrics."""

    pods: int
    key: str
    algorithm: str
    use: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFacts:
    """Keys of bound pods' placements, and their use.

    named: the key that each bound pod's placement names (`key_named_in`).
    usage: the extender's counts, if the extender was queried; empty if it does not sign placements.
    """

    named: tuple[str, ...]
    usage: tuple[KeyUsage, ...] | None = None


@KEYS.check(KeyFacts)
def check_keys(facts: KeyFacts) -> Iterator[Finding]:
    """Check that the extender accepts every key that bound pods depend on."""
    if not facts.usage:
        shown = Counter(facts.named).most_common(_SHOWN)
        pods, source = [f"{number} by {_named(key)}" for key, number in shown], _BY_ITSELF
    else:
        pods, source = [_verified(usage) for usage in facts.usage], _BY_EXTENDER
    yield KEYS_OK(
        f"placements of bound pods are signed: {', '.join(pods) or 'there are none'}", source=source
    )
    for usage in facts.usage or ():
        if usage.use in ("removed", "none") and usage.pods:
            yield REMOVED(
                f"{usage.pods} bound pods need {f'key {usage.key}' if usage.key else 'a key'}, which is not "
                "accepted: their next sandboxes are refused",
                source=source,
                expected="none",
                fix="restore the key until these pods have ended: docs/howto-keys.md",
            )


def _named(key: str) -> str:
    return {"": "none", "hmac": "a secret (HMAC)"}.get(key, f"Ed25519 key {key}")


def _verified(usage: KeyUsage) -> str:
    return f"{usage.pods} by " + (f"{usage.algorithm} key {usage.key} ({usage.use})" if usage.key else "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderFacts:
    """Facts of the extender.

    url: its address; empty if it is unknown.
    refused: its answer if it is not ready.
    why: the reason if it does not answer.
    version: the version that it reports; empty if it reports no version, or not to this client.
    warning: its warning, although it is ready.
    nodes: why it refuses nodes, by name, if it reports that; empty if it refuses no node.
    key_usage: the keys that signed bound pods' placements, if it reports them.
    pods: names of the cluster's extender pods and whether they are ready, if they are known.
    needed: whether pods or PFs are for annotations; true if that is not known.
    """

    url: str = ""
    refused: str = ""
    why: str = ""
    version: str = ""
    warning: str = ""
    nodes: Mapping[str, str] | None = None
    key_usage: tuple[KeyUsage, ...] | None = None
    pods: tuple[tuple[str, bool], ...] | None = None
    needed: bool = True


@EXTENDER.check(ExtenderFacts)
def check_extender(facts: ExtenderFacts) -> Iterator[Finding]:
    """Check that the extender runs, is reachable and is ready to bind, if it is needed."""
    if facts.pods == () and not facts.url and not facts.needed:
        yield NOT_NEEDED(
            "no extender pod runs, and none is needed: no pod asks by annotation, and all PFs are for claims",
            source="pods; rdmanodes",
        )
        return
    for name, ready in facts.pods or ():
        if ready:
            yield EXTENDER_OK("the pod is ready", about=name, source="pods")
        elif any(mismatch for _, mismatch in facts.pods or ()):
            yield STANDBY(
                "standby: another replica is the leader",
                about=name,
                source="pods",
            )
        else:
            yield NOT_READY(
                "not ready: pods with the annotation wait",
                about=name,
                source="pods",
                expected="ready; with several replicas the one that holds the Lease",
                fix=f"kubectl -n {name.partition('/')[0]} logs {name.partition('/')[2]}",
            )
    if facts.pods == () and not facts.url:
        yield NO_POD(
            "no extender pod runs",
            source="pods with app.kubernetes.io/component=extender",
            expected="one, or one beside kube-scheduler that --extender names",
            fix="install the chart, or give --extender URL; kubectl -n k8s-rdma get deployments,events",
        )
    if not facts.url:
        yield NOT_ASKED("needs --extender URL", source="--extender")
    elif facts.why:
        yield UNREACHABLE(
            facts.why,
            about=facts.url,
            source=f"{facts.url}/readyz",
            expected="an answer",
            fix="check the extender, and --extender with its options",
        )
    elif facts.refused:
        yield NOT_READY(
            facts.refused,
            about=facts.url,
            source=f"{facts.url}/readyz",
            expected="ready",
            fix="correct what the message names; docs/extender-availability.md",
        )
    else:
        version = f", version {facts.version}," if facts.version else ","
        yield EXTENDER_OK(f"answers{version} and is ready", about=facts.url, source=f"{facts.url}/readyz")
        if facts.warning:
            yield NOT_RELOADED(
                f"uses the previous keys and policies: {facts.warning}",
                about=facts.url,
                source=f"{facts.url}/readyz",
                expected="files that can be used",
                fix="correct what the message names; restarts fail until then",
            )
