"""Requests of devices by ResourceClaim: tolerations, comparisons of attributes, and constraints."""

from __future__ import annotations

import pytest

from k8s_rdma.core.devices.requests import (
    Attribute,
    AttributeComparison,
    CelSelector,
    Constraint,
    DeviceRequest,
    DeviceTaint,
    Toleration,
)

DOWN = DeviceTaint("k8s-rdma.io/link-down", effect="NoSchedule")


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        (Toleration(operator="Exists"), True),
        (Toleration(key=DOWN.key), True),
        (Toleration(key=DOWN.key, value="x"), False),
        (Toleration(key=DOWN.key, effect="NoExecute"), False),
        (Toleration(key="other", operator="Exists"), False),
    ],
)
def test_tolerations_are_those_of_kubernetes(toleration: Toleration, *, tolerates: bool):
    assert toleration.tolerates(DOWN) is tolerates


@pytest.mark.parametrize(
    ("operator", "values", "value", "expected"),
    [
        ("==", ("a",), "a", True),
        ("==", (1,), True, False),
        ("!=", ("a",), "b", True),
        ("in", ("a", "b"), "b", True),
        ("in", ("a", "b"), "c", False),
        (">=", (2,), 2, True),
        ("<", (2,), 2, False),
        (">", (2,), "3", False),
        ("startsWith", ("15b3",), "15b3:1017", True),
        ("!=", (0,), frozenset({1}), False),
    ],
)
def test_comparison_holds_as_in_cel(
    operator: str, values: tuple[Attribute, ...], value: Attribute, *, expected: bool
) -> None:
    comparison = AttributeComparison("a.example/x", operator, values)
    assert comparison.holds({"a.example/x": value}) is expected
    assert comparison.holds({"a.example/y": value}) is False


def test_selector_accepts_if_all_comparisons_of_one_alternative_hold() -> None:
    one, two = (AttributeComparison(name, "==", (1,)) for name in "xy")
    selector = CelSelector("expression", ((one, two), (AttributeComparison("z", "==", (1,)),)))
    assert [selector.accepts(found) for found in ({"x": 1}, {"x": 1, "y": 1}, {"z": 1})] == [
        False,
        True,
        True,
    ]
    assert CelSelector("anything").accepts({})


def test_constraint_includes_requests_of_its_claim_by_their_names_or_alternatives() -> None:
    constraint = Constraint(claim="c", attribute="x", distinct=False, requests=frozenset({"a", "b/small"}))
    names = ["a", "a/large", "b", "b/small", "b/large"]
    included = [constraint.includes(DeviceRequest(claim="c", name=name)) for name in names]
    assert included == [True, True, False, True, False]
    assert not constraint.includes(DeviceRequest(claim="other", name="a"))


def test_constraint_names_few_of_its_requests() -> None:
    requests = frozenset(f"r{number}" for number in range(10))
    constraint = Constraint(claim="c", attribute="x", distinct=True, requests=requests)
    assert str(constraint) == "distinctAttribute x of requests r0, r1, r2, r3, r4, r5, r6, r7 and 2 more"
