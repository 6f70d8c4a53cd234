"""The Lease of a node: a renewal confirms that the state that the node's agent published still holds."""

from __future__ import annotations

from datetime import datetime
from math import inf
from typing import Annotated

from msgspec import Meta

from k8s_rdma.wire.objects.lease import LeaseSpec

MAX_LEASE_S = 3 * 3600
"""The duration that agents with the longest `renewS` write."""
UNRENEWED = "no Lease says yet that what its agent publishes holds"
_AGE_STEP_S = 10
_MOST_DIGITS = 20
"""The number of digits of a 64-bit number."""


def covers(watched: str, named: str) -> bool:
    """Report whether a report of that generation is the named one or came after it, of the same observer."""
    (epoch, _, counter), (named_epoch, _, named_counter) = watched.rpartition("."), named.rpartition(".")
    if epoch != named_epoch or not (is_count(counter) and is_count(named_counter)):
        return watched == named != ""
    return int(counter) >= int(named_counter)


def is_count(text: str) -> bool:
    """Report whether it is a number as Kubernetes and agents count; a Lease may name anything."""
    return len(text) <= _MOST_DIGITS and text.isascii() and text.isdecimal()


def silent_after_s(stale_s: float, lease_s: float) -> float:
    """Return the age in seconds up to which a node takes pods; the parameters are those of `silence`."""
    return max(stale_s, min(lease_s, MAX_LEASE_S))


def silence(age_s: float, stale_s: float, lease_s: float) -> str:
    """Describe why a node takes no pods whose agent was heard from so long ago; empty if it does.

    age_s: infinite if no Lease has confirmed the published state.
    stale_s: as in the extender's configuration.
    lease_s: the duration of the Lease. Ages are whole tens of seconds, so that few differ.
    """
    if age_s == inf:
        return UNRENEWED
    if age_s <= silent_after_s(stale_s, lease_s):
        return ""
    return f"its agent has not reported for {int(age_s // _AGE_STEP_S * _AGE_STEP_S)} s"


class NodeLease(LeaseSpec, frozen=True, kw_only=True):
    """The specification of a node's Lease (`coordination.k8s.io/v1`), whose holder is a generation."""

    renew_time: Annotated[datetime, Meta(tz=True)] | None = None

    def silence(self, generation: str, stale_s: float, now: datetime, skew_s: float) -> str:
        """Describe, as `silence`, why a node that publishes this generation takes no pods now.

        The extender's verdict takes precedence, because it knows when it saw the renewal.

        skew_s: the seconds by which the node's clock, which dated the renewal, is ahead of the one of `now`.
        """
        age_s = inf
        if self.renew_time is not None and covers(generation, self.holder_identity or ""):
            age_s = (now - self.renew_time).total_seconds() + skew_s
        return silence(age_s, stale_s, self.lease_duration_seconds or 0)
