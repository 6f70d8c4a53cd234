"""The status of a change of rates on a pod, which its owner may have edited."""

from __future__ import annotations

import pytest

from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.rates_status import (
    MAX_STATUS_MESSAGE,
    RATES_STATUS_ANNOTATION,
    RatesStatus,
    decode_rates_status,
    describe_rates_status,
    digest,
    encode_rates_status,
)

REFUSED = RatesStatus(state="refused", generation=3, request=digest("[{}]"), message="too little")


def test_status_is_the_same_after_it_was_written_and_read():
    for status in (REFUSED, RatesStatus(state="waiting")):
        assert decode_rates_status(encode_rates_status(status)) == status


def test_status_is_described_with_its_reason():
    texts = [encode_rates_status(status) for status in (REFUSED, RatesStatus(state="programmed"))]
    described = [describe_rates_status({RATES_STATUS_ANNOTATION: text}) for text in texts]
    assert [*described, describe_rates_status({})] == ["refused: too little", "programmed", ""]


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("?", ""),
        ('{"state":"done"}', "$.state"),
        ('{"state":"refused","generation":-1}', "$.generation"),
        ('{"state":"refused","request":"' + "0" * 17 + '"}', "$.request"),
        ('{"state":"refused","message":"' + "x" * (MAX_STATUS_MESSAGE + 1) + '"}', "$.message"),
    ],
    ids=["no-json", "state", "generation", "request", "message"],
)
def test_edited_status_is_refused_and_described_by_its_field(text: str, field: str):
    with pytest.raises(MalformedError) as refused:
        decode_rates_status(text)
    assert field in refused.value.message
    assert describe_rates_status({RATES_STATUS_ANNOTATION: text}) == refused.value.message
    assert refused.value.message.startswith(RATES_STATUS_ANNOTATION)


def test_requests_are_distinguished_by_digests():
    assert digest("[{}]") == digest("[{}]") != digest("[ {}]")
    assert len(digest("x" * 10_000)) == 16
