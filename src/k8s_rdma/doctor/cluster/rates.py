"""Changes of running pods' rates that are refused, not decided, or not programmed on their node."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from k8s_rdma.doctor.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from k8s_rdma.doctor.finding import Finding


RATES = Subject(
    "rates",
    "Rates of running pods",
    "[Changes](live-rates.md) that are not in force: the first 20. A refusal of an agent is found at "
    "once, a change under way after two minutes, by `metadata.managedFields` of the pod.",
)
RATES_OK = RATES.ok()
REFUSED = RATES.warning("refused")
UNDECIDED = RATES.warning("undecided")
NOT_PROGRAMMED = RATES.warning("not-programmed")
REFUSED_ON_NODE = RATES.warning("refused-on-node")

LATE_S = 120.0
"""A change takes seconds, and its agent tries a refused one again within 60 s."""

_SHOWN = 20
_CHANGED, _REFUSED = "RdmaRatesChanged", "RdmaRatesRefused"
"""The agent's events on changes (docs/agent.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RatesFact:
    """The rates of a running pod with a placement.

    generation: the generation of the placement.
    is_programmed: whether its node reports that generation.
    is_decided: whether the extender has decided on the annotation as it is now.
    refusal: why the extender refuses the annotation.
    refusal_on_node: the agent's latest event on rates, if that is a refusal.
    age_s: seconds since the change that is not decided, or not programmed, was written, if that is known.
    """

    pod: str
    node: str
    generation: int = 0
    is_programmed: bool = True
    is_decided: bool = True
    refusal: str = ""
    refusal_on_node: str = ""
    age_s: float | None = None

    def with_events(self, events: Iterable[tuple[str, str]]) -> RatesFact:
        """Add the agent's refusal from the pod's events, reason and message, the latest last."""
        latest = ("", "")
        for event in events:
            if event[0] in (_CHANGED, _REFUSED):
                latest = event
        return replace(self, refusal_on_node=latest[1]) if latest[0] == _REFUSED else self

    @property
    def is_late(self) -> bool:
        """Report whether a change takes too long; also if that is unknown."""
        return self.age_s is None or self.age_s > LATE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningRates:
    """The rates of all running pods with a placement."""

    pods: tuple[RatesFact, ...]


@RATES.check(RunningRates)
def check_rates(facts: RunningRates) -> Iterator[Finding]:
    """Check the changes of running pods' rates; report the first of many."""
    found = [finding for pod in facts.pods for finding in _check_pod(pod)]
    yield from found[:_SHOWN]
    if len(found) > _SHOWN:
        yield NOT_PROGRAMMED(
            f"and {len(found) - _SHOWN} more pods",
            source="pods",
            expected="the rates of their annotations",
            fix="k8s-rdma explain pod NAMESPACE/NAME",
        )
    if not found:
        changed = sum(pod.generation > 0 for pod in facts.pods)
        yield RATES_OK(
            f"{changed} of {len(facts.pods)} running pods have other rates than at their start; "
            "no change is stuck",
            source="pods; rdmanodes",
        )


def _check_pod(pod: RatesFact) -> Iterator[Finding]:
    """Report whether the pod's change is refused or stuck, on its node or before the extender."""
    if not pod.is_programmed and pod.refusal_on_node:
        yield REFUSED_ON_NODE(
            f"{pod.node}: {pod.refusal_on_node}",
            about=pod.pod,
            source=f"events, {_REFUSED}",
            expected="the rates of its placement",
            fix=f"correct what the message names: the agent tries again; k8s-rdma doctor node on {pod.node}",
        )
    elif not pod.is_programmed and pod.is_late:
        yield NOT_PROGRAMMED(
            f"{pod.node} has not reported generation {pod.generation}{_since(pod)}",
            about=pod.pod,
            source=f"annotation k8s-rdma.io/placement; rdmanode {pod.node}",
            expected="a few seconds",
            fix=f"docs/live-rates.md: what agents need for it; k8s-rdma doctor node on {pod.node}",
        )
    elif pod.refusal:
        yield REFUSED(
            f"keeps its rates: {pod.refusal}",
            about=pod.pod,
            source="annotation k8s-rdma.io/rates-status",
            expected="rates that its PFs have left",
            fix=f"annotate rates that fit, or those it has; k8s-rdma explain pod {pod.pod}",
        )
    elif not pod.is_decided and pod.is_late:
        yield UNDECIDED(
            f"its annotation differs from its placement, and no extender decides on it{_since(pod)}",
            about=pod.pod,
            source="annotations k8s-rdma.io/placement, k8s-rdma.io/rates-status",
            expected="a decision",
            fix="an extender that binds and signs placements: docs/live-rates.md, docs/howto-keys.md",
        )


def _since(pod: RatesFact) -> str:
    return "" if pod.age_s is None else f", for {pod.age_s:.0f} s"
