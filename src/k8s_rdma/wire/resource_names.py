"""Names of extended resources, as Kubernetes takes them."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"


RESOURCE_PATTERN = (
    r"^(?!requests\.)(?![^/]*kubernetes\.io/)"
    rf"(?=[^/]{{1,244}}/){_LABEL}(\.{_LABEL})*/"
    "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
)


ResourceName = Annotated[str, msgspec.Meta(pattern=RESOURCE_PATTERN)]
"""Of an extended resource: a domain that is not Kubernetes' own, and a name of at most 63 characters.

Kubelet takes no other, as a quota is to name it with `requests.` before it (`IsExtendedResourceName` in
Kubernetes' pkg/apis/core/v1/helper).
"""


ResourceText = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": RESOURCE_PATTERN})]
"""A `ResourceName` that people write: checked by `require_resource_name`, as a pattern explains nothing."""


def is_resource_name(text: str) -> bool:
    """Report whether a text is a `ResourceName`."""
    return re.fullmatch(RESOURCE_PATTERN, text) is not None


def require_resource_name(key: str, text: str) -> None:
    """ValueError, in words, when a key's text is no `ResourceName`."""
    if not is_resource_name(text):
        msg = (
            f"{key}: {text!r}; wanted a domain other than Kubernetes' own, a slash, and at most 63 "
            "letters, digits and -_. between them, as in example.com/rdma"
        )
        raise ValueError(msg)
