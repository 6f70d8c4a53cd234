"""Which of the interfaces that a pod asks for an attachment gives it.

A pod has one annotation and, with Multus, several attachments: each gives what names its network, the first
that comes also gives what names none.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.annotation_values import ANNOTATION
from k8s_rdma.wire.json import shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Set

    from k8s_rdma.core.request import Request

NETWORKS_ANNOTATION = "k8s.v1.cni.cncf.io/networks"
"""A pod's further attachments (NPWG network custom resource definition, section 4.1): Multus acts on it."""
_NAME = re.compile(r"[\w.\-]+")
"""Whatever may be a name in that annotation, which is a list with commas or one of JSON objects."""


def share(
    request: Request, *, own: Set[str], taken: Set[int], annotations: Mapping[str, str]
) -> tuple[int, ...]:
    """The attachment's part of a request, as indices.

    own: networks that are this attachment's. taken: what other attachments of the sandbox have given.
    MalformedError (`MALFORMED_ANNOTATION`) for an interface of a network that no attachment can be of.
    """
    part = []
    for index, interface in enumerate(request.interfaces):
        network = interface.options.network
        if network and network not in own:
            if not annotations.get(NETWORKS_ANNOTATION):
                _refuse(index, network, own)
        elif index not in taken:
            part.append(index)
    return tuple(part)


def doubtful(request: Request, *, own: Set[str], annotations: Mapping[str, str]) -> dict[int, str]:
    """Networks, by index, that are not this attachment's and that the pod's further ones do not name either.

    They may still be others': a network's name and its definition's need not be one. So nothing is refused.
    """
    listed = set(_NAME.findall(annotations.get(NETWORKS_ANNOTATION, "")))
    named = {index: each.options.network for index, each in enumerate(request.interfaces)}
    return {index: name for index, name in named.items() if name and name not in own | listed}


def _refuse(index: int, network: str, own: Set[str]) -> None:
    msg = (
        f"{ANNOTATION}[{index}].network: {shown(network)} is not {' nor '.join(sorted(own))}, and the pod "
        f"has no annotation {NETWORKS_ANNOTATION} that attaches it to others"
    )
    raise MalformedError(msg, reason=Reason.MALFORMED_ANNOTATION)
