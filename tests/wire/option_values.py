"""Options of an interface as the annotation has them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.annotation import ANNOTATION, parse_request, read_request

if TYPE_CHECKING:
    from k8s_rdma.core.options import InterfaceOptions

FIRST = f"{ANNOTATION}[0]"


def options_of(**keys: object) -> InterfaceOptions:
    [wanted] = parse_request(json.dumps([keys])).interfaces
    return wanted.options


def refusal(*elements: object, strict: bool = True) -> str:
    with pytest.raises(MalformedError) as refused:
        read_request(json.dumps(elements), strict=strict)
    assert refused.value.reason is Reason.MALFORMED_ANNOTATION
    assert refused.value.message.encode()
    return refused.value.message
