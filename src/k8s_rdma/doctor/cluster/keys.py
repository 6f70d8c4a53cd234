"""By which keys the placements of bound pods are signed: one that pods depend on must not go."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.doctor.finding import Subject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.doctor.finding import Finding

KEYS = Subject("keys", "Placement keys")
KEYS_OK = KEYS.ok()
REMOVED = KEYS.warning("removed")

_SHOWN = 16
_BY_ITSELF = "annotation k8s-rdma.io/placement, as it says itself"
_BY_EXTENDER = "the extender's metric pods_signed"


class KeyUsage(NamedTuple):
    """How many bound pods have a placement by a key, and what that is for: as in the extender's metrics."""

    pods: int
    key: str
    algorithm: str
    use: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFacts:
    """named: of each bound pod's placement the key that it names (`key_named_in`).

    usage: as the extender counts them; None where it was not asked, none where it signs nothing.
    """

    named: tuple[str, ...]
    usage: tuple[KeyUsage, ...] | None = None


def check_keys(facts: KeyFacts) -> Iterator[Finding]:
    """The keys with their pods, and keys that are missing."""
    if not facts.usage:
        shown = Counter(facts.named).most_common(_SHOWN)
        pods, source = [f"{number} by {_named(key)}" for key, number in shown], _BY_ITSELF
    else:
        pods, source = [_verified(each) for each in facts.usage], _BY_EXTENDER
    yield KEYS_OK(
        f"placements of bound pods are signed: {', '.join(pods) or 'there are none'}", source=source
    )
    for each in facts.usage or ():
        if each.use in ("removed", "none") and each.pods:
            yield REMOVED(
                f"{each.pods} bound pods depend on {f'key {each.key}' if each.key else 'a key'} that the "
                "extender does not accept: they are refused when their sandboxes are made anew",
                source=source,
                expected="none",
                fix="put the key back until they have ended: docs/howto-keys.md",
            )


def _named(key: str) -> str:
    return {"": "none", "hmac": "a secret (HMAC)"}.get(key, f"Ed25519 key {key}")


def _verified(usage: KeyUsage) -> str:
    return f"{usage.pods} by " + (f"{usage.algorithm} key {usage.key} ({usage.use})" if usage.key else "none")
