"""Answers of Prometheus, and selectors for its queries."""

from __future__ import annotations

import msgspec
import pytest

from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.prometheus import (
    MAX_LABEL,
    Labels,
    VectorDecoder,
    decode_matrix,
    decode_refusal,
    decode_series,
    selector,
)

LONG = "x" * (MAX_LABEL + 1)


def answer(*result: object) -> bytes:
    return msgspec.json.encode({"status": "success", "data": {"result": result}})


def test_amounts_are_the_values_that_something_can_have_used():
    values = ("1.5", "0", "-1", "NaN", "+Inf")
    body = answer(*({"metric": {"pod": value, "job": "x"}, "value": [1.0, value]} for value in values))
    assert [(labels.pod, amount) for labels, amount in VectorDecoder(Labels).amounts(body)] == [
        ("1.5", 1.5),
        ("0", 0.0),
    ]


def test_series_over_a_range_has_the_values_that_are_numbers():
    series = {"metric": {"pod": "p"}, "values": [[1.0, "2"], [2.0, "NaN"], [3.0, "-4"]]}
    [found] = decode_matrix(answer(series, {"metric": {"pod": LONG}, "values": [[1.0, "2"]]}))
    assert (found.labels.pod, found.values) == ("p", {1.0: 2.0, 3.0: -4.0})


def test_text_that_is_no_number_is_refused_in_few_characters():
    sample = {"metric": {}, "value": [1.0, LONG], "values": [[1.0, LONG]]}
    for read in (lambda body: list(VectorDecoder(Labels).amounts(body)), decode_matrix):
        with pytest.raises(MalformedError, match=f"query(_range)?: '{LONG[:40]}' is no number$"):
            read(answer(sample))


def test_listed_series_have_labels_that_names_can_have():
    body = msgspec.json.encode({"data": [{"pod": "p", "vf": "1"}, {"pod": LONG}]})
    assert decode_series(body) == [Labels(pod="p", vf="1")]


@pytest.mark.parametrize(
    ("body", "said"), [(b'{"status":"error","error":"too many"}', "too many"), (b"{}", ""), (b"<html>", "")]
)
def test_refusal_is_the_error_of_an_answer_that_has_one(body: bytes, said: str):
    assert decode_refusal(body) == said


def test_selector_quotes_texts_and_takes_names_literally():
    assert selector({"job": 'a"b\\'}, {"pod": ["q", "p.0"]}) == r'{job="a\"b\\", pod=~"p\\.0|q"}'
