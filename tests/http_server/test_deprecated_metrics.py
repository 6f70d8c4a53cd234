"""Metrics that have new names are shown by their old ones, too, with the same values."""

from __future__ import annotations

from pathlib import Path

import pytest

from k8s_rdma.http_server.asgi import DEPRECATED_METRICS, counter, exposition, gauge


@pytest.mark.parametrize("old", DEPRECATED_METRICS)
def test_old_name_says_what_to_use(old: str):
    new = DEPRECATED_METRICS[old]
    build = counter if new.endswith("_total") else gauge
    text = exposition([build(new, "Something.", [({"a": "b"}, 3), ({"a": "c"}, 4)])]).decode()
    assert f"# HELP {old} Deprecated: use {new}.\n" in text
    for name in (old, new):
        assert f'{name}{{a="b"}} 3.0\n{name}{{a="c"}} 4.0\n' in text


@pytest.mark.parametrize("old", DEPRECATED_METRICS)
def test_old_name_is_on_the_page_of_upgrades(old: str):
    page = (Path(__file__).parents[2] / "docs" / "upgrade.md").read_text()
    assert f"| `{old}` | `{DEPRECATED_METRICS[old]}` | metric |" in page
