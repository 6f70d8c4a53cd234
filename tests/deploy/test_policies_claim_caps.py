"""deploy/policies/claim-caps.yaml refuses caps of claims that agents refuse, with advice."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission import made_from, policy
from caps_cases import BAD, GOOD
from k8s_rdma.core.types import MAX_RATE_MBPS
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.claim_caps import CLAIM_CAPS_ANNOTATION, CapsRequest
from k8s_rdma.wire.cni_request import ifname_fault


def pod(text: str) -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {"annotations": {CLAIM_CAPS_ANNOTATION: text}}, "spec": {}}


def refusals(text: str) -> list[str]:
    return policy("claim-caps").refusals(pod(text))


def agent_accepts(text: str) -> bool:
    """Report whether there are interfaces for which an agent programs this."""
    try:
        return not any(map(ifname_fault, CapsRequest(text).caps()))
    except MalformedError:
        return False


@pytest.mark.parametrize("text", GOOD)
def test_caps_that_agents_accept_are_taken(text: str):
    assert agent_accepts(text)
    assert refusals(text) == []


@pytest.mark.parametrize(("text", "sentence"), BAD)
def test_caps_that_agents_refuse_are_refused_with_advice(text: str, sentence: str):
    assert not agent_accepts(text)
    assert sentence in refusals(text)[0]


_NAMES = st.sampled_from(
    ["rdma0", "a" * 15, "a" * 16, "", "a/b", "a:1", "é", "50%", '\\"', "a b", "4294967296"]
)
_VALUES = st.sampled_from(
    [0, 1, MAX_RATE_MBPS, MAX_RATE_MBPS + 1, 10**20, -1, 1.5, "80G", None, True, [], {}]
)
_TEXTS = st.one_of(
    st.dictionaries(_NAMES, _VALUES, max_size=3).map(json.dumps),
    st.lists(st.sampled_from([*'{}[]":,-+.e0189a \\\n', '"rdma0"', "80000"]), max_size=12).map("".join),
)


@given(_TEXTS)
def test_policy_refuses_no_caps_that_agents_accept(text: str):
    if refusals(text):
        assert not agent_accepts(text)


@given(_TEXTS)
def test_policy_leaves_to_agents_only_text_with_a_backslash_or_beyond_ascii(text: str):
    if not refusals(text) and "\\" not in text and text.isascii():
        assert agent_accepts(text)


def test_templates_are_checked_and_existing_values_may_stay():
    wrong = pod('{"rdma0": -1}')
    for owner in made_from({"metadata": wrong["metadata"], "spec": {}}):
        assert policy("claim-caps").refusals(owner), owner["kind"]
        assert policy("claim-caps").refusals(owner, oldObject=owner) == []
    assert policy("claim-caps").refusals(wrong, oldObject=wrong) == []
    assert policy("claim-caps").refusals(wrong, oldObject=pod('{"rdma0": 1}'))
