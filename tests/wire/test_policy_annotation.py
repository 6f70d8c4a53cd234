from __future__ import annotations

import pytest

from k8s_rdma.core.request import InterfaceRequest, PfPolicy, Request
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.annotation import read_pod, read_policy, request_texts

ONE = {"rdma_interfaces_required": '[{"min_tx_rate": 5}]'}


@pytest.mark.parametrize("policy", PfPolicy)
def test_policy_is_read_by_its_name(policy: PfPolicy) -> None:
    assert read_policy(policy.value) is policy
    assert read_policy(f" {policy.value}\n") is policy


@pytest.mark.parametrize("text", [None, "", " \n"])
def test_policy_is_any_without_a_name(text: str | None) -> None:
    assert read_policy(text) is PfPolicy.ANY


@pytest.mark.parametrize(
    ("text", "found", "near"),
    [
        ("same_pf", "same_pf", "; did you mean same-pf?"),
        ("Spread-PFs", "Spread-PFs", "; did you mean spread-pfs?"),
        ("sane-numa", "sane-numa", "; did you mean same-numa?"),
        ("0", "0", ""),
        ("same-pf,spread-pfs\x07" + "x" * 99, "'same-pf,spread-pfs\\x07" + "x" * 41 + "...'", ""),
        ("\udcff", "'\\udcff'", ""),
    ],
)
def test_unknown_policy_is_refused_with_the_known_ones(text: str, found: str, near: str) -> None:
    with pytest.raises(MalformedError) as refused:
        read_policy(text)
    assert refused.value.reason is Reason.MALFORMED_ANNOTATION
    assert refused.value.message == (
        f"k8s-rdma.io/policy: {found} is no policy; known are any, same-pf, spread-pfs, same-numa{near}"
    )


def test_pod_asks_for_its_interfaces_under_its_policy() -> None:
    wanted = (InterfaceRequest(min_tx_rate_mbps=5),)
    assert read_pod(ONE, strict=True).request == Request(wanted)
    under = read_pod({**ONE, "k8s-rdma.io/policy": "same-numa"}, strict=True)
    assert under.request == Request(wanted, PfPolicy.SAME_NUMA)


@pytest.mark.parametrize("strict", [True, False])
def test_policy_is_refused_whether_or_not_keys_must_be_known(strict: bool) -> None:
    with pytest.raises(MalformedError, match=r"k8s-rdma\.io/policy: none is no policy"):
        read_pod({**ONE, "k8s-rdma.io/policy": "none"}, strict=strict)


@pytest.mark.parametrize("asks", ["", "[]", None])
def test_policy_of_a_pod_without_interfaces_is_ignored(asks: str | None) -> None:
    annotations = {"k8s-rdma.io/policy": "nonsense"} | (
        {} if asks is None else {"rdma_interfaces_required": asks}
    )
    assert read_pod(annotations, strict=True).request == Request()


def test_texts_differ_if_requests_of_pods_differ() -> None:
    others = [{}, ONE, {**ONE, "k8s-rdma.io/policy": "any"}, {"k8s-rdma.io/policy": "any"}]
    others.append({"k8s-rdma.io/interfaces": ONE["rdma_interfaces_required"]})
    assert len({request_texts(each) for each in others}) == len(others)
    assert request_texts({**ONE, "other": "x"}) == request_texts(ONE)
