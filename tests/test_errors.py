from __future__ import annotations

from k8s_rdma.errors import STATUS, TRY_AGAIN_LATER, K8sRdmaError, Reason

DEFINED_BY_CNI = {1, 2, 3, 4, 5, 6, 7, TRY_AGAIN_LATER, 50, 51}


def test_every_reason_has_its_words_in_every_protocol() -> None:
    assert set(STATUS) == set(Reason)
    for status in STATUS.values():
        assert 400 <= status.http <= 599
        assert status.cni in DEFINED_BY_CNI or status.cni >= 100  # 1-99 are the specification's


def test_reasons_of_our_own_have_cni_codes_of_their_own() -> None:
    own = [status.cni for status in STATUS.values() if status.cni >= 100]
    assert len(own) == len(set(own))


def test_error_has_the_reason_of_its_class_by_default() -> None:
    assert K8sRdmaError("m").reason is Reason.INTERNAL
    assert K8sRdmaError("m", reason=Reason.CONFLICT).reason is Reason.CONFLICT
    assert str(K8sRdmaError("m", details="d")) == "m"
