"""Rates that a driver takes, and the rates that are programmed for those asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.rate_ranges import RANGES
from k8s_rdma.core.inventory import Pf
from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.programming import Programmed, enforcers, objection, objection_cause, programmed, reserved
from k8s_rdma.core.rate_ability import EVERY_RATE, NO_RATE, RateAbility, RateRange
from k8s_rdma.core.request import InterfaceRequest
from k8s_rdma.core.types import MAX_RATE_MBPS, Enforce, PciAddress, Setting, VfDriver

I40E = RateAbility(max=RateRange(step=50, smallest=50, largest=10_000))

STEPS = RateAbility(
    min=RateRange(step=100, smallest=200, largest=10_000), max=RateRange(step=50, smallest=50, largest=10_000)
)

NEEDS_LINK = RateAbility(min=RateRange(), max=RateRange(), needs_link=True)

ABILITIES = st.builds(RateAbility, min=st.none() | RANGES, max=st.none() | RANGES, needs_link=st.booleans())

WANTED = st.tuples(
    st.integers(0, 30_000), st.integers(0, 30_000), st.sampled_from(Enforce), st.sampled_from(VfDriver)
).map(
    lambda drawn: InterfaceRequest(
        min_tx_rate_mbps=drawn[0],
        max_tx_rate_mbps=drawn[1] and max(drawn[:2]),
        enforce=drawn[2],
        options=InterfaceOptions(driver=drawn[3]),
    )
)

Expected = tuple[int, int, int, bool, bool]

BY_SOFTWARE = frozenset({Setting.SOFTWARE_CAPS})


def pf(
    rates: RateAbility,
    *,
    link: int | None = 10_000,
    enforce: Enforce = Enforce.AUTO,
    takes: frozenset[Setting] = BY_SOFTWARE,
) -> Pf:
    return Pf(
        name="enp1s0",
        pci=PciAddress("0000:01:00.0"),
        capacity_vfs=8,
        link_mbps=link,
        rates=rates,
        enforce=enforce,
        driver="igb",
        supported_settings=takes,
    )


def wanted(least: int = 0, most: int = 0, enforce: Enforce = Enforce.AUTO) -> InterfaceRequest:
    return InterfaceRequest(min_tx_rate_mbps=least, max_tx_rate_mbps=most, enforce=enforce)


@pytest.mark.parametrize(
    ("ability", "link", "asked", "expected"),
    [
        pytest.param(EVERY_RATE, 10_000, (123, 456), (123, 456, 0, True, True), id="every rate"),
        pytest.param(EVERY_RATE, None, (0, 456), (0, 456, 0, True, True), id="every rate, link down"),
        pytest.param(STEPS, 10_000, (101, 449), (200, 400, 0, True, True), id="up and down"),
        pytest.param(STEPS, 10_000, (0, 0), (0, 0, 0, True, True), id="nothing asked"),
        pytest.param(STEPS, 10_000, (10_001, 0), (0, 0, 0, False, True), id="reservation above the largest"),
        pytest.param(STEPS, 10_000, (0, 49), (0, 0, 49, True, True), id="cap below the smallest"),
        pytest.param(STEPS, 10_000, (0, 12_000), (0, 0, 0, True, True), id="cap that the link holds"),
        pytest.param(STEPS, 25_000, (0, 12_000), (0, 10_000, 0, True, True), id="cap above the largest"),
        pytest.param(STEPS, None, (0, 12_000), (0, 10_000, 0, True, True), id="cap above, link unknown"),
        pytest.param(STEPS, 10_000, (0, 10_000), (0, 10_000, 0, True, True), id="cap of the link's speed"),
        pytest.param(STEPS, 10_000, (101, 140), (200, 0, 140, True, True), id="less than a step apart"),
        pytest.param(NO_RATE, 10_000, (5, 10), (0, 0, 10, False, True), id="no rates"),
        pytest.param(NO_RATE, 10_000, (0, 10_000), (0, 0, 0, True, True), id="no rates, the link holds it"),
        pytest.param(NO_RATE, None, (0, 10_000), (0, 0, 10_000, True, True), id="no rates, link unknown"),
        pytest.param(I40E, 10_000, (500, 520), (0, 500, 0, False, True), id="maximum alone"),
        pytest.param(NEEDS_LINK, None, (0, 10), (0, 0, 10, True, True), id="link needed and down"),
        pytest.param(NEEDS_LINK, 100, (5, 10), (5, 10, 0, True, True), id="link needed and up"),
    ],
)
def test_auto_programs_rates_that_the_driver_takes_and_caps_the_rest_by_software(
    ability: RateAbility, link: int | None, asked: tuple[int, int], expected: Expected
) -> None:
    assert programmed(pf(ability, link=link), wanted(*asked)) == Programmed(*expected)


@pytest.mark.parametrize("by", ["pf", "interface"])
@pytest.mark.parametrize(
    ("ability", "link", "asked", "expected"),
    [
        pytest.param(EVERY_RATE, 10_000, (123, 456), (123, 0, 456, True, True), id="every rate"),
        pytest.param(STEPS, 10_000, (101, 449), (200, 0, 449, True, True), id="reservation by the driver"),
        pytest.param(STEPS, 10_000, (101, 140), (200, 0, 140, True, True), id="less than a step apart"),
        pytest.param(STEPS, 10_000, (0, 0), (0, 0, 0, True, True), id="nothing asked"),
        pytest.param(NO_RATE, 100, (50, 10_000), (0, 0, 10_000, False, True), id="the link holds it now"),
        pytest.param(NEEDS_LINK, None, (0, 10), (0, 0, 10, True, True), id="link needed and down"),
    ],
)
def test_software_caps_exactly_as_requested_and_programs_reservations_only(
    ability: RateAbility, link: int | None, asked: tuple[int, int], expected: Expected, by: str
) -> None:
    there, wants = pf(ability, link=link), wanted(*asked, Enforce.SOFTWARE)
    if by == "pf":
        there, wants = pf(ability, link=link, enforce=Enforce.SOFTWARE), wanted(*asked)
    assert programmed(there, wants) == Programmed(*expected)


@pytest.mark.parametrize("by", ["pf", "interface"])
def test_hardware_is_stricter_than_software(by: str) -> None:
    there, wants = pf(STEPS, enforce=Enforce.SOFTWARE), wanted(0, 449, Enforce.HARDWARE)
    if by == "pf":
        there, wants = pf(STEPS, enforce=Enforce.HARDWARE), wanted(0, 449, Enforce.SOFTWARE)
    assert programmed(there, wants) == Programmed(0, 400, 0, min_held=True, max_held=True)


@given(ABILITIES, st.none() | st.integers(1, 30_000), WANTED, st.sampled_from(Enforce))
def test_programmed_rates_hold_the_requested_ones_or_report_that_they_do_not(
    ability: RateAbility, link: int | None, asked: InterfaceRequest, enforce: Enforce
) -> None:
    there = pf(ability, link=link, enforce=enforce)
    found = programmed(there, asked)
    least, most, software = found[:3]
    assert not least or (ability.min and least in range(0, ability.min.largest + 1, ability.min.step))
    assert not most or (ability.max and most in range(0, ability.max.largest + 1, ability.max.step))
    assert not 0 < most < least  # the kernel refuses that
    assert software in (0, asked.max_tx_rate_mbps)
    assert not (most and software)
    if found.min_held:
        assert least >= asked.min_tx_rate_mbps
    if found.max_held and asked.max_tx_rate_mbps:
        held = min(each or MAX_RATE_MBPS for each in (most, software, link))
        assert held <= asked.max_tx_rate_mbps
    assert reserved(there, asked.min_tx_rate_mbps) == (least or asked.min_tx_rate_mbps)


@given(ABILITIES, st.none() | st.integers(1, 30_000), WANTED, st.sampled_from(Enforce))
def test_enforcer_decides_whether_software_caps(
    ability: RateAbility, link: int | None, asked: InterfaceRequest, enforce: Enforce
) -> None:
    found = programmed(pf(ability, link=link, enforce=enforce), asked)
    demanded = {enforce, asked.enforce}
    if Enforce.HARDWARE in demanded or asked.options.driver is VfDriver.VFIO_PCI:
        assert not found.software_max_tx_rate_mbps
    elif Enforce.SOFTWARE in demanded:
        assert found.software_max_tx_rate_mbps == asked.max_tx_rate_mbps
    if demanded == {Enforce.AUTO} and asked.options.driver is VfDriver.KERNEL:
        assert found.max_held
    if Enforce.HARDWARE not in demanded and Enforce.SOFTWARE in demanded:
        assert not found.max_tx_rate_mbps


@given(ABILITIES, st.none() | st.integers(1, 30_000), WANTED)
def test_auto_only_accounts_a_cap_of_software_that_the_kernel_cannot_keep(
    ability: RateAbility, link: int | None, asked: InterfaceRequest
) -> None:
    able, unable = (pf(ability, link=link, takes=takes) for takes in (BY_SOFTWARE, frozenset[Setting]()))
    can, cannot = programmed(able, asked), programmed(unable, asked)
    assert cannot.software_max_tx_rate_mbps == 0
    assert cannot[:2] == can[:2]
    assert cannot.max_held == (can.max_held and not can.software_max_tx_rate_mbps)
    assert (enforcers(unable, asked).max == "accounted") == (not cannot.max_held)
    if asked.enforce is Enforce.AUTO:
        assert not objection(unable, asked)


def test_pf_whose_caps_software_must_keep_takes_no_cap_that_the_kernel_cannot_keep() -> None:
    there = pf(EVERY_RATE, enforce=Enforce.SOFTWARE, takes=frozenset())
    why = "its node caps nothing by software: the kernel lacks sch_tbf, or the agent is too old"
    assert objection(there, wanted(0, 500)) == f"{why} (500 Mb/s wanted)"
    assert objection_cause(there, wanted(0, 500)) == why
    assert objection(there, wanted(500)) == ""


@given(ABILITIES, st.none() | st.integers(1, 30_000), WANTED, st.sampled_from(Enforce))
def test_objection_is_raised_exactly_when_the_demanded_enforcer_does_not_hold_a_rate(
    ability: RateAbility, link: int | None, asked: InterfaceRequest, enforce: Enforce
) -> None:
    there = pf(ability, link=link, enforce=enforce)
    found, demanded = programmed(there, asked), {enforce, asked.enforce}
    if Enforce.HARDWARE in demanded:
        refused = not (found.min_held and found.max_held)
    else:
        refused = Enforce.SOFTWARE in demanded and not found.max_held
    assert bool(objection(there, asked)) == refused


@pytest.mark.parametrize("ability", [EVERY_RATE, NO_RATE])
def test_objection_is_raised_if_software_must_cap_a_vf_that_the_kernel_does_not_drive(
    ability: RateAbility,
) -> None:
    there, programs = pf(ability, enforce=Enforce.SOFTWARE), InterfaceOptions(driver=VfDriver.VFIO_PCI)
    capped = InterfaceRequest(max_tx_rate_mbps=500, options=programs)
    assert objection(there, capped) == "software cannot cap a VF that is given to vfio-pci (500 Mb/s wanted)"
    assert objection(there, InterfaceRequest(min_tx_rate_mbps=500, options=programs)) == ""
    assert objection(pf(ability), capped) == ""


@pytest.mark.parametrize(
    ("ability", "link", "asked", "why"),
    [
        (NO_RATE, 10_000, (500, 0), "igb takes no minimum rates (500 Mb/s wanted)"),
        (NO_RATE, 10_000, (0, 500), "igb takes no maximum rates (500 Mb/s wanted)"),
        (NEEDS_LINK, None, (0, 5), "igb takes maximum rates only while the link is up (5 Mb/s wanted)"),
        (I40E, 10_000, (0, 49), "igb takes maximum rates of 50 to 10000 Mb/s in steps of 50 (49 wanted)"),
        (
            STEPS,
            10_000,
            (101, 140),
            "igb takes maximum rates of 50 to 10000 Mb/s in steps of 50 (140 wanted)",
        ),
    ],
)
def test_objection_names_driver_and_value(
    ability: RateAbility, link: int | None, asked: tuple[int, int], why: str
) -> None:
    assert objection(pf(ability, link=link), wanted(*asked)) == ""
    assert objection(pf(ability, link=link, enforce=Enforce.HARDWARE), wanted(*asked)) == why
    assert objection(pf(ability, link=link), wanted(*asked, Enforce.HARDWARE)) == why
