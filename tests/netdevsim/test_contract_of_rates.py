"""The contract's tests of rates on netdevsim, as each kind of driver that takes minimum rates."""

from __future__ import annotations

import pytest

from contract.test_rates import *  # noqa: F403


@pytest.fixture(params=["ice", "mlx5_core", "bnxt_en"])
def lab(request, make_lab):
    """With a sum that is checked, as weights of any size, up to the link."""
    return make_lab(driver=request.param)
