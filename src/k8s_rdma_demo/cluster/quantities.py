"""Quantities and times in the form in which the API server writes them, whatever form a client chose.

Sources: `k8s.io/apimachinery/pkg/api/resource` (`ParseQuantity`, `CanonicalizeBytes`);
`k8s.io/apimachinery/pkg/apis/meta/v1/time.go` and `micro_time.go`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from k8s_rdma.wire.pod_spec import quantity

_FORM = re.compile(r"[+-]?[0-9.]+[eEinumkKMGTP]*[-+]?[0-9]*", re.ASCII)
_WRONG_FORM = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_DECIMAL = {-9: "n", -6: "u", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_LEAST, _MOST = min(_DECIMAL), max(_DECIMAL)

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?P<fraction>\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII)


def canonical_quantity(value: object) -> str:
    """Return a quantity in its canonical form; `value` is a JSON string or number.

    The form of the suffix stays: `1000m` and 1 become `1`, `1024Mi` `1Gi`, `1500M` `1500M`, `1e3` `1e3`.
    ValueError has the API server's words.
    """
    text = value.strip() if isinstance(value, str) else repr(value)
    if _FORM.fullmatch(text) is None:
        raise ValueError(_WRONG_FORM)
    try:
        amount = quantity(text)
    except ValueError as error:
        msg = "unable to parse quantity's suffix"
        raise ValueError(msg) from error
    if text.endswith("i") and amount.denominator == 1 and abs(amount) >= 1024:
        return _binary(amount.numerator)
    sign, size = ("-" if amount < 0 else ""), abs(amount)
    mantissa, exponent = _scaled(-(-size * 10**-_LEAST // 1))
    has_exponent = re.search(r"[eE][-+]?\d", text) is not None
    if has_exponent:
        return f"{sign}{mantissa}" + (f"e{exponent}" if exponent else "")
    return f"{sign}{mantissa}{_DECIMAL[exponent]}"


def _scaled(nanos: int) -> tuple[int, int]:
    """Return mantissa and exponent, a multiple of three: the largest that leaves no fraction."""
    if nanos == 0:
        return 0, 0
    exponent = _LEAST
    while nanos % 1000 == 0 and exponent < _MOST:
        nanos, exponent = nanos // 1000, exponent + 3
    return nanos, exponent


def _binary(amount: int) -> str:
    power = 0
    while amount % 1024 == 0 and power < len(_BINARY) - 1:
        amount, power = amount // 1024, power + 1
    return f"{amount}{_BINARY[power]}"


def canonical_time(value: object) -> str:
    """Return a `metav1.Time` as stored: in UTC, whole seconds; ValueError has the API server's words."""
    return f"{_moment(value, '2006-01-02T15:04:05Z07:00'):%Y-%m-%dT%H:%M:%SZ}"


def canonical_micro_time(value: object) -> str:
    """Return a `metav1.MicroTime` as stored: in UTC, with the six digits that it must have.

    ValueError has the API server's words.
    """
    layout = "2006-01-02T15:04:05.000000Z07:00"
    moment = _moment(value, layout)
    match = _TIME.fullmatch(str(value))
    if match is None or len(match["fraction"] or "") != len(".000000"):
        msg = f'parsing time "{value}" as "{layout}": cannot parse the fraction as ".000000"'
        raise ValueError(msg)
    return f"{moment:%Y-%m-%dT%H:%M:%S.%fZ}"


def _moment(value: object, layout: str) -> datetime:
    msg = f'parsing time "{value}" as "{layout}": cannot parse "{value}"'
    if not isinstance(value, str) or _TIME.fullmatch(value) is None:
        raise ValueError(msg)
    try:
        return datetime.fromisoformat(value).astimezone(UTC)
    except (ValueError, OverflowError) as error:  # a month 13; a year 0 in UTC
        raise ValueError(msg) from error
