"""Rates of running pods on netdevsim, as each kind of driver."""

from __future__ import annotations

import pytest

from contract.test_live_rates import *  # noqa: F403


@pytest.fixture(params=["ice", "mlx5_core", "bnxt_en", "i40e", "ixgbe", "qede"])
def lab(request, make_lab):
    """Three that take minimum rates, two that take caps alone, one that takes no rates."""
    return make_lab(driver=request.param, link_mbps=10_000)
