"""Which clusters a scenario runs on."""

from __future__ import annotations

import pytest

from cluster.real import obstacle


@pytest.fixture(params=["stand-in", "real"])
def kind(request: pytest.FixtureRequest) -> str:
    """Every scenario runs on both; on the real programs if they are installed."""
    if request.param == "real" and (why := obstacle()):
        pytest.skip(f"no real cluster: {why}")
    return request.param
