"""Annotations of pods under this system's prefix, and keys that may be misspelt ones.

`deploy/policies/annotation-keys.yaml` says the same in CEL; `tests/deploy/test_policies_annotation_keys.py`
holds both to one table.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from k8s_rdma.wire.annotation import (
    ANNOTATION,
    ANNOTATION_ALIAS,
    CONTAINERS_ANNOTATION,
    MEMLOCK_ANNOTATION,
    NCCL_ANNOTATION,
    POLICY_ANNOTATION,
    TOPOLOGY_ANNOTATION,
)
from k8s_rdma.wire.claim_caps import CLAIM_CAPS_ANNOTATION, CLAIM_CAPS_STATUS_ANNOTATION
from k8s_rdma.wire.json_faults import nearest, shown
from k8s_rdma.wire.network_status import NETWORK_STATUS_ANNOTATION
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION
from k8s_rdma.wire.rates_status import RATES_STATUS_ANNOTATION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PREFIX = "k8s-rdma.io/"

OF_OWNERS = (
    ANNOTATION_ALIAS,
    POLICY_ANNOTATION,
    TOPOLOGY_ANNOTATION,
    CONTAINERS_ANNOTATION,
    NCCL_ANNOTATION,
    MEMLOCK_ANNOTATION,
    CLAIM_CAPS_ANNOTATION,
)
"""Annotations that a pod's owner writes."""

OF_PROCESSES = (
    PLACEMENT_ANNOTATION,
    RATES_STATUS_ANNOTATION,
    CLAIM_CAPS_STATUS_ANNOTATION,
    NETWORK_STATUS_ANNOTATION,
    f"{PREFIX}capacity-freed",
    f"{PREFIX}fence",
)
"""Annotations that extender and agents write to pods."""

_KNOWN = frozenset((*OF_OWNERS, *OF_PROCESSES))
_NAMES = {key.removeprefix(PREFIX): key for key in OF_OWNERS}
_MAX_KEYS = 10
"""The limit for sentences: each costs a search for the nearest key, and an owner decides their number."""


def unknown_keys(keys: Iterable[str]) -> tuple[str, ...]:
    """Describe the keys of annotations that have no effect because they are misspelt, a sentence each."""
    return tuple(islice(_sentences(keys), _MAX_KEYS))


def _sentences(keys: Iterable[str]) -> Iterator[str]:
    for key in keys:
        if key.startswith(PREFIX) and key not in _KNOWN:
            near = nearest(key.removeprefix(PREFIX), _NAMES)
            hint = f"did you mean {_NAMES[near]}?" if near else f"known are {', '.join(OF_OWNERS)}"
            yield f"{shown(key)}: unknown annotation, which has no effect; {hint}"
        elif "rdma" in key and "/" not in key and key != ANNOTATION and nearest(key, (ANNOTATION,)):
            yield f"{shown(key)}: unknown annotation, which has no effect; did you mean {ANNOTATION}?"
