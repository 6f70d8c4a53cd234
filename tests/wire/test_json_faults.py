"""Unknown keys in words, with the nearest known one."""

from __future__ import annotations

import pytest

from k8s_rdma.wire.json_faults import describe_unknown, shown


@pytest.mark.parametrize("key", ["max-tx-rate", "MAX_TX_RATE", "max_tx_rat", "maxtxrate"])
def test_unknown_key_is_described_by_the_nearest_known_one(key: str) -> None:
    description = describe_unknown(key, ["min_tx_rate", "max_tx_rate"])
    assert description == "unknown key; did you mean max_tx_rate?"


@pytest.mark.parametrize("key", ["", "colour", "x" * 100_000])
def test_unknown_key_is_described_by_all_known_ones_when_no_key_is_near(key: str) -> None:
    assert describe_unknown(key, ["aa_aa", "bb_bb"]) == "unknown key; known are aa_aa, bb_bb"


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("vlan", "vlan"),
        ("", "''"),
        ("a\nb", r"'a\nb'"),
        ("\ud800", r"'\ud800'"),
        ("é", r"'\xe9'"),
        ("k" * 60, "k" * 60),
        ("k" * 61, "k" * 60 + "..."),
    ],
)
def test_shown_key_is_printable_and_bounded(key: str, text: str) -> None:
    assert shown(key) == text
