"""What an extender's configuration cannot mean. Values in, values out."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.extender.config import ExtenderConfig

OWN_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
OWN_PREFIX = "/v1/"


def contradictions(config: ExtenderConfig) -> Iterator[str]:
    """Each in one line that names the fields."""
    yield from _paths(config)
    yield from _sources(config)
    yield from _times(config)
    seen: set[str] = set()
    for index, limit in enumerate(config.limits):
        if limit.namespace in seen:
            yield f"limits[{index}].namespace: {limit.namespace!r} is limited twice"
        seen.add(limit.namespace)


def _paths(config: ExtenderConfig) -> Iterator[str]:
    paths = {
        "filterPath": config.filter_path,
        "prioritizePath": config.prioritize_path,
        "preemptPath": config.preempt_path,
        "bindPath": config.bind_path,
    }
    for (one, path), (other, same) in combinations(paths.items(), 2):
        if path == same:
            yield f"{one} and {other}: both are {path}"
    for field, path in paths.items():
        if path in OWN_PATHS or path.startswith(OWN_PREFIX):
            yield f"{field}: {path} is a path of the extender's own"


def _sources(config: ExtenderConfig) -> Iterator[str]:
    if not config.api and config.binder == "extender":
        yield "api and binder: without an API server nobody can bind; set binder: scheduler"
    if not config.api and config.source == "crd":
        yield "api and source: RdmaNode objects are read from the API server; set source: http"
    if not config.api and config.kubeconfig is not None:
        yield "api and kubeconfig: without an API server there is nothing to reach by it"
    tls = config.node_tls
    if tls is not None and (tls.cert_file is None) != (tls.key_file is None):
        there, missing = ("certFile", "keyFile") if tls.key_file is None else ("keyFile", "certFile")
        yield f"nodeTls.{there} and nodeTls.{missing}: the second is missing"


def _times(config: ExtenderConfig) -> Iterator[str]:
    if config.source != "http":
        return
    if config.max_age_s > config.stale_s:
        yield (
            f"maxAgeS and staleS: what is known of a node counts for {config.max_age_s:g} s without a "
            f"question, and for no more than {config.stale_s:g} s at all"
        )
    if 4 * config.node_timeout_s > config.stale_s:
        yield (
            f"nodeTimeoutS and staleS: a node that is followed is known to be silent after half of staleS "
            f"and two time-outs, which must not be more than {config.stale_s:g} s"
        )
