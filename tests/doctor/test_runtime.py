"""Findings on container runtimes, beside the table of cases."""

from __future__ import annotations

import pytest

from doctor.cases.runtime import crio


@pytest.mark.parametrize(
    ("version", "credentials", "told"),
    [
        ("1.28.11", None, "runtime-asked-annotations"),
        ("1.29.0", False, "runtime-ok"),
        ("1.36.3", False, "runtime-ok"),
        ("1.27.9", False, "runtime-too-old"),
    ],
)
def test_runtime_that_delivers_no_annotations_is_reported_by_its_consequence(version, credentials, told):
    assert [each.id for each in crio(version, credentials=credentials)] == [told]
