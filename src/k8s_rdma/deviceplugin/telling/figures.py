"""The device plugin in the Prometheus text format."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from k8s_rdma import __version__
from k8s_rdma.http_server.exposition import family, labels

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from k8s_rdma.deviceplugin.kubelet.keeper import Keeper
    from k8s_rdma.deviceplugin.seeing.looking import Looking
    from k8s_rdma.http_server.exposition import Sample

_PREFIX = "k8s_rdma_device_plugin_"
_OUTCOMES = {True: "taken", False: "failed"}


def render_figures(keepers: Sequence[Keeper], looking: Looking) -> str:
    """The exposition."""
    parts = (*_of_build(), *_of_resources(keepers), *_of_health(looking), *_of_looks(looking))
    return "\n".join(parts) + "\n"


def _of_build() -> Iterator[str]:
    sample = labels({"version": __version__}), 1
    yield from family(f"{_PREFIX}build_info", "gauge", "1, with the program's version.", [sample])


def _of_resources(keepers: Sequence[Keeper]) -> Iterator[str]:
    yield from family(
        f"{_PREFIX}kubelet_up",
        "gauge",
        "Whether kubelet follows the list of any resource.",
        [("", any(keeper.followed for keeper in keepers))],
    )
    yield from family(
        f"{_PREFIX}followed",
        "gauge",
        "Whether kubelet follows the resource's list.",
        [(labels({"resource": keeper.resource.name}), keeper.followed) for keeper in keepers],
    )
    yield from family(f"{_PREFIX}devices", "gauge", "Devices offered, by health.", _devices(keepers))
    yield from family(
        f"{_PREFIX}unusable_resource",
        "gauge",
        "Resources that no container can have, and why.",
        [
            (labels({"resource": keeper.resource.name, "why": keeper.resource.fault}), 1)
            for keeper in keepers
            if keeper.resource.fault
        ],
    )
    yield from family(
        f"{_PREFIX}allocations_total",
        "counter",
        "Containers that were given devices.",
        [
            (labels({"resource": keeper.resource.name}), keeper.resource.counts.allocations)
            for keeper in keepers
        ],
    )
    yield from family(
        f"{_PREFIX}refusals_total", "counter", "Allocations refused, by reason.", _refusals(keepers)
    )
    yield from family(
        f"{_PREFIX}registrations_total", "counter", "Registrations with kubelet.", _registrations(keepers)
    )


def _devices(keepers: Sequence[Keeper]) -> Iterator[Sample]:
    for keeper in keepers:
        counts = Counter("unhealthy" if device.unhealthy else "healthy" for device in keeper.resource.devices)
        for health in ("healthy", "unhealthy"):
            yield labels({"resource": keeper.resource.name, "health": health}), counts[health]


def _refusals(keepers: Sequence[Keeper]) -> Iterator[Sample]:
    for keeper in keepers:
        for reason, count in sorted(keeper.resource.counts.refusals.items()):
            yield labels({"resource": keeper.resource.name, "reason": reason}), count


def _registrations(keepers: Sequence[Keeper]) -> Iterator[Sample]:
    for keeper in keepers:
        for took, outcome in _OUTCOMES.items():
            count = keeper.resource.counts.registrations[took]
            yield labels({"resource": keeper.resource.name, "outcome": outcome}), count


def _of_health(looking: Looking) -> Iterator[str]:
    yield from family(
        f"{_PREFIX}unhealthy_rdma_device",
        "gauge",
        "RDMA devices that are not healthy, and why.",
        [
            (labels({"device": each.name, "pf": each.pf_name or each.pf, "why": "; ".join(each.faults)}), 1)
            for each in looking.seen.devices.values()
            if each.faults
        ],
    )
    yield from family(
        f"{_PREFIX}health_changes_total",
        "counter",
        "How often RDMA devices became healthy, or unhealthy.",
        [
            (labels({"device": name, "health": "healthy" if healthy else "unhealthy"}), count)
            for (name, healthy), count in sorted(looking.health_changes.items())
        ],
    )


def _of_looks(looking: Looking) -> Iterator[str]:
    looks = looking.looks
    yield from family(f"{_PREFIX}looks_total", "counter", "Looks at the hardware.", [("", looks.total)])
    yield from family(
        f"{_PREFIX}failed_looks_total",
        "counter",
        "Looks at the hardware that could not see everything.",
        [("", looks.failed)],
    )
    yield from family(
        f"{_PREFIX}look_age_seconds",
        "gauge",
        "Time since the last look at the hardware.",
        [("", looking.look_age_s)],
    )
    yield from family(
        f"{_PREFIX}unreadable",
        "gauge",
        "What could not be looked at the last time.",
        [("", len(looking.seen.unreadable))],
    )
