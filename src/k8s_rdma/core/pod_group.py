"""A PodGroup: its rules for its pods, the same for each version of its API."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGroup:
    """The specification of a group of pods.

    min_count: pods that are bound together or not at all; 0 for a group whose pods are bound one by one.
    disrupted_together: whether evicting one of its pods means evicting all.
    priority: the group's own, which counts instead of its pods' priorities, if it has one.
    preempts: whether pods may be evicted for its pods.
    parent: the name of the CompositePodGroup that it belongs to, empty for a group of no tree.
    """

    min_count: int = 0
    disrupted_together: bool = False
    priority: int | None = None
    preempts: bool = True
    parent: str = ""
