from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from factories import PF0, PF1, hardware, interface, pf_state, receipt
from k8s_rdma.core.allocation import Scope, candidates
from k8s_rdma.core.ledger import Ledger
from k8s_rdma.errors import MalformedError

if TYPE_CHECKING:
    from k8s_rdma.core.kernel import Hardware

LEDGER = Ledger().with_receipt(receipt("c1", interface(PF0, 0, minimum=5)))


def with_vfs(*changes: dict[str, object]) -> Hardware:
    """The first VFs of PF0 with these changes."""
    pf = pf_state(PF0)
    changed = [replace(vf, **each) for vf, each in zip(pf.vfs, changes, strict=False)]
    return hardware(replace(pf, vfs=(*changed, *pf.vfs[len(changed) :])), pf_state(PF1))


RATED = {"min_tx_rate_mbps": 5}
LEFT_BEHIND = with_vfs(
    RATED, RATED, {"vlan": 7}, {"max_tx_rate_mbps": 9, "netdev": None}
)  # of the first the ledger knows


def judged(seen: Hardware, scope: Scope) -> dict[int, str]:
    return {each.ref.index: each.exemption for each in candidates(seen, LEDGER, scope)}


def test_foreign_vfs_at_home_are_to_be_reset_and_those_away_are_spared() -> None:
    found = judged(LEFT_BEHIND, Scope())
    assert (found[1], found[2]) == ("", "")
    assert "another network namespace" in found[3]
    assert set(found) == {1, 2, 3}


@pytest.mark.parametrize("name", ["enp3s0f0", PF0])
def test_scope_is_a_pf_by_name_or_address(name: str) -> None:
    assert set(judged(LEFT_BEHIND, Scope(pf=name))) == {1, 2, 3}
    assert judged(LEFT_BEHIND, Scope(pf=PF1)) == {}


def test_vf_of_the_ledger_is_spared_even_when_it_is_named() -> None:
    assert judged(LEFT_BEHIND, Scope(pf=PF0, vf=0)) == {0: "held by pod default/p"}


def test_free_vf_is_shown_only_when_it_is_named() -> None:
    assert judged(with_vfs(RATED), Scope(pf=PF0, vf=1)) == {1: "free already"}
    assert judged(with_vfs(RATED), Scope()) == {}


def test_vf_that_is_unusable_is_spared_with_the_reason() -> None:
    seen = with_vfs({}, {"unusable": "its driver hangs", "vlan": 7})
    assert judged(seen, Scope()) == {1: "its driver hangs"}


def test_vf_whose_device_kubelet_gave_to_a_pod_is_spared() -> None:
    in_use = {"mlx5_1": "team/trainer", "mlx5_9": "team/other"}
    seen = with_vfs(RATED, {**RATED, "rdma_device": "mlx5_1"}, {**RATED, "rdma_device": "mlx5_2"})
    found = {each.ref.index: each.exemption for each in candidates(seen, LEDGER, Scope(), in_use)}
    assert found == {1: "its device was given to pod team/trainer, says kubelet", 2: ""}


@pytest.mark.parametrize(
    ("scope", "words"),
    [
        (Scope(pf="eth9"), "PF eth9: .*enp3s0f0, enp3s0f1"),
        (Scope(pf="enp3s0f0", vf=4), "VF 4 of PF enp3s0f0: unknown; it has 4 VFs"),
    ],
)
def test_pf_or_vf_that_does_not_exist_is_refused_by_name(scope: Scope, words: str) -> None:
    with pytest.raises(MalformedError, match=words):
        candidates(LEFT_BEHIND, LEDGER, scope)
