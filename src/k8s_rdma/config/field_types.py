"""Types of fields that configurations of several processes have."""

from __future__ import annotations

from typing import Annotated

import msgspec

AbsolutePath = Annotated[str, msgspec.Meta(pattern="^/", description="an absolute path")]
"""Absolute, so that it does not depend on where the process was started."""

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
NodeText = Annotated[
    str,
    msgspec.Meta(
        pattern=rf"^{_LABEL}(\.{_LABEL})*$",
        max_length=253,
        description="the node's name in Kubernetes, such as worker-1",
    ),
]
"""A DNS subdomain (RFC 1123), as names of Node objects are (`ValidateNodeName` in Kubernetes'
pkg/apis/core/validation)."""
