"""The request annotation: its meaning, and how every wrong one is refused."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from k8s_rdma.core.request import MAX_INTERFACES, InterfaceRequest, Request
from k8s_rdma.core.types import MAX_RATE_MBPS, Enforce
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.annotation import (
    ANNOTATION,
    KEYS,
    ReadRequest,
    format_request,
    parse_request,
    read_pod,
    read_request,
)

KNOWN = ", ".join(KEYS)
RATES = st.integers(min_value=0, max_value=MAX_RATE_MBPS)


@st.composite
def interfaces(draw: st.DrawFn) -> InterfaceRequest:
    cap = draw(RATES)
    reserved = draw(st.integers(min_value=0, max_value=cap) if cap else RATES)
    enforce = draw(st.sampled_from(Enforce))
    return InterfaceRequest(min_tx_rate_mbps=reserved, max_tx_rate_mbps=cap, enforce=enforce)


REQUESTS = st.lists(interfaces(), max_size=20).map(lambda found: Request(tuple(found)))


def wanted(*rates: tuple[int, int]) -> Request:
    return Request(tuple(InterfaceRequest(min_tx_rate_mbps=lo, max_tx_rate_mbps=hi) for lo, hi in rates))


def refusal(text: str, *, strict: bool = True) -> str:
    with pytest.raises(MalformedError) as refused:
        read_request(text, strict=strict)
    assert refused.value.reason is Reason.MALFORMED_ANNOTATION
    assert refused.value.message.encode()  # can be sent to anyone
    return refused.value.message


def test_request_is_read_as_existing_pods_write_it() -> None:
    text = '[{"min_tx_rate": 15000, "max_tx_rate": 20000}, {"min_tx_rate": 5000}, {}]'
    assert parse_request(text) == wanted((15000, 20000), (5000, 0), (0, 0))


def test_request_names_the_enforcer_of_its_rates() -> None:
    text = (
        '[{"min_tx_rate": 5, "enforce": "hardware"}, {"min_tx_rate": 5, "enforce": "auto"}, '
        '{"max_tx_rate": 5, "enforce": "software"}]'
    )
    first, second, third = parse_request(text).interfaces
    assert first == InterfaceRequest(min_tx_rate_mbps=5, enforce=Enforce.HARDWARE)
    assert second == InterfaceRequest(min_tx_rate_mbps=5)
    assert third == InterfaceRequest(max_tx_rate_mbps=5, enforce=Enforce.SOFTWARE)


def test_annotation_of_more_characters_than_a_placement_has_room_for_is_refused_unread() -> None:
    text = "[{}]".ljust(131_072)
    assert parse_request(text) == wanted((0, 0))
    assert refusal(f"{text} ") == "rdma_interfaces_required: is 131073 characters long; at most 131072"
    assert refusal("[" * 131_073) == "rdma_interfaces_required: is 131073 characters long; at most 131072"


@pytest.mark.parametrize("text", [None, "", "  \n\t", "[]", " [ ] "])
def test_request_is_empty_when_the_annotation_requests_no_interface(text: str | None) -> None:
    assert parse_request(text) == Request()


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        ('[{"min_tx_rate": 0, "max_tx_rate": 0}]', wanted((0, 0))),
        ('[{"min_tx_rate": 7, "max_tx_rate": 0}]', wanted((7, 0))),
        ('[{"min_tx_rate": 7, "max_tx_rate": 7}]', wanted((7, 7))),
        (f'[{{"max_tx_rate": {MAX_RATE_MBPS}}}]', wanted((0, MAX_RATE_MBPS))),
        (json.dumps([{}] * MAX_INTERFACES), wanted(*[(0, 0)] * MAX_INTERFACES)),
    ],
)
def test_request_is_read_at_the_limits_of_allowed_values(text: str, request_: Request) -> None:
    assert parse_request(text) == request_


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{}, {"max-tx-rate": 1}]', f"{ANNOTATION}[1].max-tx-rate: unknown key; did you mean max_tx_rate?"),
        ('[{"Min_Tx_Rate": 1}]', f"{ANNOTATION}[0].Min_Tx_Rate: unknown key; did you mean min_tx_rate?"),
        ('[{"colour": 1}]', f"{ANNOTATION}[0].colour: unknown key; known are {KNOWN}"),
        ('[{"": 1}]', f"{ANNOTATION}[0].'': unknown key; known are {KNOWN}"),
        (
            '[{"min_tx_rate": -1}]',
            f"{ANNOTATION}[0].min_tx_rate: -1 is negative; a rate is a whole number of Mb/s",
        ),
        (
            '[{"min_tx_rate": -0}]',
            f"{ANNOTATION}[0].min_tx_rate: -0 is negative; a rate is a whole number of Mb/s",
        ),
        (
            '[{"min_tx_rate": 1.5}]',
            f"{ANNOTATION}[0].min_tx_rate: 1.5 is not written as a whole number of Mb/s",
        ),
        (
            '[{"min_tx_rate": 1.0}]',
            f"{ANNOTATION}[0].min_tx_rate: 1.0 is not written as a whole number of Mb/s",
        ),
        (
            '[{"min_tx_rate": 1e3}]',
            f"{ANNOTATION}[0].min_tx_rate: 1e3 is not written as a whole number of Mb/s",
        ),
        (
            '[{"max_tx_rate": "1"}]',
            f"{ANNOTATION}[0].max_tx_rate: is a string; a rate is a whole number of Mb/s",
        ),
        (
            '[{"max_tx_rate": true}]',
            f"{ANNOTATION}[0].max_tx_rate: is a truth value; a rate is a whole number of Mb/s",
        ),
        (
            '[{"max_tx_rate": null}]',
            f"{ANNOTATION}[0].max_tx_rate: is null; a rate is a whole number of Mb/s",
        ),
        (
            '[{"max_tx_rate": {}}]',
            f"{ANNOTATION}[0].max_tx_rate: is an object; a rate is a whole number of Mb/s",
        ),
        (
            '[{"max_tx_rate": [1]}]',
            f"{ANNOTATION}[0].max_tx_rate: is a list; a rate is a whole number of Mb/s",
        ),
        (
            f'[{{"max_tx_rate": {MAX_RATE_MBPS + 1}}}]',
            f"{ANNOTATION}[0].max_tx_rate: 4294967296 is above 4294967295, the largest rate in Mb/s",
        ),
        (
            '[{"max_tx_rate": ' + "9" * 100_000 + "}]",
            f"{ANNOTATION}[0].max_tx_rate: {'9' * 60}... is above 4294967295, the largest rate in Mb/s",
        ),
        (
            '[{}, {}, {"min_tx_rate": 20, "max_tx_rate": 10}]',
            f"{ANNOTATION}[2].min_tx_rate: 20 is above max_tx_rate 10",
        ),
        ('[{"min_tx_rate": 1, "min_tx_rate": 1}]', f"{ANNOTATION}[0].min_tx_rate: given twice"),
        (
            '[{"enforce": "soft"}]',
            f"{ANNOTATION}[0].enforce: soft is unknown; known are hardware, software, auto",
        ),
        (
            '[{}, {"enforce": "software", "driver": "vfio-pci"}]',
            f"{ANNOTATION}[1].enforce: software caps network devices, and with driver vfio-pci there is none",
        ),
        (
            '[{"enforce": "Hardware"}]',
            f"{ANNOTATION}[0].enforce: Hardware is unknown; known are hardware, software, auto",
        ),
        (
            '[{"enforce": true}]',
            f"{ANNOTATION}[0].enforce: is a truth value; known are hardware, software, auto",
        ),
        ('[{"enforce": null}]', f"{ANNOTATION}[0].enforce: is null; known are hardware, software, auto"),
        ('[{"enforce": "auto", "enforce": "auto"}]', f"{ANNOTATION}[0].enforce: given twice"),
        ('[{"enforced": "auto"}]', f"{ANNOTATION}[0].enforced: unknown key; did you mean enforce?"),
        (json.dumps([{}] * 1025), f"{ANNOTATION}: asks for 1025 interfaces; at most 1024"),
        ("{}", f"{ANNOTATION}: is an object; wanted a list of objects, one an interface"),
        ("3", f"{ANNOTATION}: is a number; wanted a list of objects, one an interface"),
        ("null", f"{ANNOTATION}: is null; wanted a list of objects, one an interface"),
        ('"[]"', f"{ANNOTATION}: is a string; wanted a list of objects, one an interface"),
        ("[{}, 1]", f"{ANNOTATION}[1]: is a number; wanted an object such as {{}}"),
        ("[[]]", f"{ANNOTATION}[0]: is a list; wanted an object such as {{}}"),
        ("[null]", f"{ANNOTATION}[0]: is null; wanted an object such as {{}}"),
        ('[{"min_tx_rate": NaN}]', f"{ANNOTATION}: not JSON: NaN is no JSON number"),
        ('[{"min_tx_rate": -Infinity}]', f"{ANNOTATION}: not JSON: -Infinity is no JSON number"),
        ("[{}", f"{ANNOTATION}: not JSON: Expecting ',' delimiter at character 4"),
        ("[{}] x", f"{ANNOTATION}: not JSON: Extra data at character 6"),
        ("\ufeff[]", f"{ANNOTATION}: not JSON: Expecting value at character 1"),
        ("\ud800", f"{ANNOTATION}: not JSON: Expecting value at character 1"),
        ("\xa0", f"{ANNOTATION}: not JSON: Expecting value at character 1"),
        ("[" * 100_000, f"{ANNOTATION}: nested deeper than 64 levels; wanted a list of objects"),
        ('[{"\ud800": 1}]', rf"{ANNOTATION}[0].'\ud800': unknown key; known are {KNOWN}"),
    ],
)
def test_request_is_refused_by_field_and_reason_when_malformed(text: str, message: str) -> None:
    assert refusal(text) == message


def test_parsing_is_strict() -> None:
    with pytest.raises(MalformedError, match=r"\[0\]\.min_rate: unknown key"):
        parse_request('[{"min_rate": 9}]')


def test_unknown_keys_are_warnings_when_not_strict() -> None:
    text = '[{"min_tx_rate": 5, "min_rate": 9}, {"queue": {"depth": [1]}}]'
    assert read_request(text, strict=False) == ReadRequest(
        wanted((5, 0), (0, 0)),
        (
            f"{ANNOTATION}[0].min_rate: unknown key; did you mean min_tx_rate? (ignored)",
            f"{ANNOTATION}[1].queue: unknown key; known are {KNOWN} (ignored)",
        ),
    )


def test_key_in_other_letter_case_counts_with_a_warning_when_not_strict() -> None:
    assert read_request('[{"MIN_TX_RATE": 5}]', strict=False) == ReadRequest(
        wanted((5, 0)), (f"{ANNOTATION}[0].MIN_TX_RATE: unknown key; taken as min_tx_rate",)
    )


@pytest.mark.parametrize(
    "text",
    [
        '[{"MIN_TX_RATE": 5, "min_tx_rate": 5}]',
        '[{"MIN_TX_RATE": -5}]',
        '[{"x": NaN}]',
        '[{"min_tx_rate": 2, "Max_tx_rate": 1}]',
    ],
)
def test_values_are_refused_all_the_same_when_not_strict(text: str) -> None:
    assert refusal(text, strict=False).startswith(ANNOTATION)


@pytest.mark.parametrize("key", ["k{}", "min_tx_rate"])
def test_warnings_are_bounded_when_not_strict(key: str) -> None:
    elements = [{key.format(i).upper(): 1} for i in range(1000)]
    warnings = read_request(json.dumps(elements), strict=False).warnings
    assert len(warnings) == 11
    assert warnings[-1] == f"{ANNOTATION}: 990 more keys like these"


@pytest.mark.parametrize(("recased", "unknown"), [(10, 0), (6, 4), (0, 10)])
def test_every_warning_is_reported_when_there_are_ten(recased: int, unknown: int) -> None:
    elements = [{"MIN_TX_RATE": 1}] * recased + [{"colour": 1}] * unknown
    warnings = read_request(json.dumps(elements), strict=False).warnings
    assert len(warnings) == 10
    assert sum("taken as" in warning for warning in warnings) == recased


@pytest.mark.parametrize("recased", [7, 10, 12])
def test_keys_beyond_ten_are_counted_when_there_are_more(recased: int) -> None:
    elements = [{"MIN_TX_RATE": 1}] * recased + [{"colour": 1}] * 5
    warnings = read_request(json.dumps(elements), strict=False).warnings
    assert len(warnings) == 11
    assert warnings[-1] == f"{ANNOTATION}: {recased + 5 - 10} more keys like these"


@pytest.mark.parametrize("text", ["[]", '[{"min_tx_rate": 1}]'])
def test_correct_annotation_has_no_warning(text: str) -> None:
    assert read_request(text, strict=False).warnings == ()


@given(REQUESTS)
def test_request_survives_when_formatted_and_parsed(request_: Request) -> None:
    assert parse_request(format_request(request_)) == request_


def test_format_leaves_out_rates_of_zero_and_enforcement_auto() -> None:
    assert format_request(wanted((1, 2), (3, 0), (0, 0))) == (
        '[{"min_tx_rate":1,"max_tx_rate":2},{"min_tx_rate":3},{}]'
    )
    demanding = Request((InterfaceRequest(max_tx_rate_mbps=2, enforce=Enforce.HARDWARE),))
    assert format_request(demanding) == '[{"max_tx_rate":2,"enforce":"hardware"}]'


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.sampled_from(["min_tx_rate", "max_tx_rate", "enforce"]) | st.text(), inner)
    ),
)


@given(st.text() | JSON_VALUES.map(json.dumps), st.booleans())
@example("[{'a': 1}]", False)
def test_reading_raises_only_malformed_for_any_text(text: str, strict: bool) -> None:
    with contextlib.suppress(MalformedError):
        read_request(text, strict=strict)


ALIAS = "k8s-rdma.io/interfaces"


@pytest.mark.parametrize("text", ["", "[]", '[{"min_tx_rate": 5}]', '[{"count": 3, "mtu": 9000}]'])
def test_alias_asks_for_the_same(text: str) -> None:
    wanted_ = read_pod({ANNOTATION: text}, strict=True)
    assert read_pod({ALIAS: text}, strict=True) == wanted_
    assert read_pod({ALIAS: f" {text}\n", ANNOTATION: text}, strict=True) == wanted_


@pytest.mark.parametrize("text", ["", "[]", '[{"min_tx_rate": 6}]', '[{"min_tx_rate":5}]'])
def test_alias_that_differs_is_refused(text: str) -> None:
    with pytest.raises(MalformedError) as refused:
        read_pod({ANNOTATION: '[{"min_tx_rate": 5}]', ALIAS: text}, strict=False)
    assert refused.value.message == (
        "k8s-rdma.io/interfaces: differs from rdma_interfaces_required, and is an alias of it; set one "
        "of them"
    )
    assert refused.value.reason is Reason.MALFORMED_ANNOTATION


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('[{}, {"vlan": 4095}]', "[1].vlan: 4095 is no whole number from 0 to 4094, as a VLAN is"),
        ("{}", ": is an object; wanted a list of objects, one an interface"),
        ("[{}", ": not JSON: Expecting ',' delimiter at character 4"),
        ("[NaN]", ": not JSON: NaN is no JSON number"),
        ("[" * 5000, ": nested deeper than 64 levels; wanted a list of objects"),
        ('[{"count": 1024}, {}]', ": asks for 1025 interfaces or more; at most 1024"),
        (
            '[{"mac": "02:00:00:00:00:01"}, {"mac": "02:00:00:00:00:01"}]',
            "[1].mac: 02:00:00:00:00:01 is that of k8s-rdma.io/interfaces[0], too",
        ),
    ],
)
def test_errors_name_the_annotation_that_the_pod_has(text: str, error: str) -> None:
    with pytest.raises(MalformedError) as refused:
        read_pod({ALIAS: text}, strict=True)
    assert refused.value.message == f"{ALIAS}{error}"
