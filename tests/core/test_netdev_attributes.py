"""Attributes of netdevs: their differences, and programs among them, in clauses."""

from __future__ import annotations

from k8s_rdma.core.netdev_attributes import differences, faults, programs, without_programs

HOME = (("XDP", ""), ("ring sizes", "5d41"), ("tcx ingress", ""), ("txqueuelen", "1000"))


def attributes(**changes: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted({**dict(HOME), **changes}.items()))


def test_differences_name_each_attribute_with_both_values() -> None:
    now = attributes(txqueuelen="5", alias="mine")
    assert differences(HOME, HOME) == ()
    assert differences(HOME, now) == (
        "its alias is mine, at home unknown",
        "its txqueuelen is 5, at home 1000",
    )
    assert differences(now, HOME)[0] == "its alias is unknown, at home mine"
    assert differences(HOME, attributes(XDP="9 (driver)")) == ("its XDP is 9 (driver), at home none",)


def test_programs_are_listed_with_their_kind() -> None:
    now = attributes(XDP="9 (driver)", **{"tcx ingress": "2"})
    assert programs(HOME) == ()
    assert programs(now) == ("it has XDP program 9 (driver)", "it has tcx programs at ingress: 2")
    assert without_programs(now) == HOME


def test_faults_are_programs_before_differences_and_programs_alone_for_an_unknown_home() -> None:
    tuned, attached = attributes(txqueuelen="5"), attributes(txqueuelen="5", XDP="9 (generic)")
    assert faults(HOME, HOME) == faults(tuned, None) == ()
    assert faults(tuned, HOME) == ("its txqueuelen is 5, at home 1000",)
    assert faults(attached, HOME) == faults(attached, None) == ("it has XDP program 9 (generic)",)
