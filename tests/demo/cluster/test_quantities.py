"""Quantities and times in the one form in which they are stored."""

from __future__ import annotations

import pytest

from k8s_rdma_demo.cluster.quantities import canonical_micro_time, canonical_quantity, canonical_time


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        *((1, "1"), ("1", "1"), (0, "0"), (0.5, "500m"), (2.0, "2"), ("0.5", "500m"), ("1000m", "1")),
        *(("1500m", "1500m"), ("1k", "1k"), ("1000", "1k"), ("1500M", "1500M"), ("25000M", "25G")),
        *(("1Gi", "1Gi"), ("1024Mi", "1Gi"), ("1536Mi", "1536Mi"), ("1.5Gi", "1536Mi"), ("512", "512")),
        *(("0.5Ki", "512"), ("0.1Ki", "102400m"), ("0Gi", "0"), (1073741824, "1073741824")),
        *(
            ("1e3", "1e3"),
            ("12E2", "1200"),
            ("1E", "1E"),
            ("10E", "10E"),
            ("1000E", "1000E"),
            ("1e-3", "1e-3"),
        ),
        *(("100n", "100n"), ("0.1n", "1n"), ("-1000m", "-1"), ("+5", "5"), (" 5 ", "5"), (".5", "500m")),
    ],
)
def test_quantity_has_one_form(written: object, stored: str):
    assert canonical_quantity(written) == stored
    assert canonical_quantity(stored) == stored


@pytest.mark.parametrize(
    ("written", "says"),
    [
        *((text, "quantities must match the regular expression") for text in ("", "one", "1 Gi", True, {})),
        *((text, "unable to parse quantity's suffix") for text in ("1ki", "1.2.3", "1kk", "1Kii")),
    ],
)
def test_malformed_quantity_is_refused(written: object, says: str):
    with pytest.raises(ValueError, match=says):
        canonical_quantity(written)


def test_time_is_stored_in_utc_by_its_type():
    assert canonical_time("2026-11-28T10:30:00.9+02:00") == "2026-11-28T08:30:00Z"
    assert canonical_micro_time("2026-11-28T10:30:00.900000+02:00") == "2026-11-28T08:30:00.900000Z"
    for time in ("2026-11-28", "2026-13-28T10:30:00Z", "2026-11-28 10:30:00Z", 5):
        with pytest.raises(ValueError, match="parsing time"):
            canonical_time(time)
    for fraction in ("", ".9", ".9000000"):
        with pytest.raises(ValueError, match=r'cannot parse the fraction as "\.000000"'):
            canonical_micro_time(f"2026-11-28T10:30:00{fraction}Z")
